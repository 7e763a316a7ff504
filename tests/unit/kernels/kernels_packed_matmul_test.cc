// Products of packed weights against the reference, to the last bit.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>

#include "kernels/cpu/targets.h"
#include "kernels/params/layer.h"
#include "kernels/weights/host_rows.h"
#include "kernels/weights/integer_groups.h"
#include "tests/testing/kernels/block_halves.h"
#include "tests/testing/kernels/kernel_harness.h"
#include "tests/testing/kernels/random_blocks.h"

namespace eta::testing {
namespace {

// The backends that multiply weights in blocks; AVX-512 and AVX2 without their VNNI too.
std::vector<BackendUnderTest> Backends() {
  std::vector<BackendUnderTest> backends = JudgedBackends();
  std::erase_if(backends, [](const BackendUnderTest& backend) { return backend.name != "cpu"; });
  backends.push_back({.name = "cpu", .no_vnni = true});
  for (const int64_t target : cpu::AttainableTargets()) {
    if (cpu::TargetName(target) != "AVX2") continue;
    backends.push_back({.name = "cpu", .target = target, .no_vnni = true});
  }
  return backends;
}

class PackedMatMulOn : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!WhyMissing(GetParam()).empty()) GTEST_SKIP() << WhyMissing(GetParam());
  }

  // SSSE3 rounds a product before it adds it.
  bool HasFusedMultiplyAdd() const {
    return GetParam().target == 0 || cpu::TargetName(GetParam().target) != "SSSE3";
  }

  static HostTensor Multiply(Device& device, const HostTensor& x, const Matrix& weight,
                             const HostTensor* onto) {
    const TensorView out =
        onto != nullptr ? device.Put(*onto, 3) : device.Empty(x.rows, weight.rows(), 3);
    const std::vector<int32_t> tokens(static_cast<size_t>(x.rows));
    const SequenceRows rows[] = {
        {.num_rows = static_cast<int32_t>(x.rows), .kind = RowKind::kPrefill}};
    device->Plan({tokens, rows});
    device->MatMul({.x = device.Put(x, 5),
                    .weight = &weight,
                    .out = out,
                    .accumulate = onto != nullptr,
                    .rows_of_step = true});
    EXPECT_TRUE(device->Finish().ok());
    return device.Get(out);
  }

  // Every element the same number, or NaN in both. What is no number need not have the same bits.
  void ExpectSame(const HostTensor& got, const HostTensor& want) const {
    ASSERT_EQ(got.data.size(), want.data.size());
    float largest = 0.0f;
    for (const float b : want.data) largest = std::max(largest, std::isnan(b) ? 0.0f : std::abs(b));
    for (size_t i = 0; i < got.data.size(); ++i) {
      const float a = got.data[i];
      const float b = want.data[i];
      if (std::isnan(b)) {
        ASSERT_TRUE(std::isnan(a)) << "element " << i << " of rows of " << want.cols << ": " << a;
      } else if (HasFusedMultiplyAdd()) {
        ASSERT_EQ(a, b) << "element " << i << " of rows of " << want.cols;
      } else {
        ASSERT_NEAR(a, b, 1e-5 * (1.0 + largest));
      }
    }
  }

  void ExpectTheReferencesBits(std::span<const HostMatrix> parts, WeightFormat format,
                               std::span<const int64_t> counts, Random& random) const {
    Device judge({"reference"});
    Device device(GetParam());
    const auto want = *judge->Pack(parts, format);
    const auto got = *device->Pack(parts, format);
    for (const int64_t rows : counts) {
      SCOPED_TRACE(rows);
      const HostTensor x = Normal(random, rows, want->cols());
      const HostTensor onto = Normal(random, rows, want->rows());
      ExpectSame(Multiply(device, x, *got, nullptr), Multiply(judge, x, *want, nullptr));
      ExpectSame(Multiply(device, x, *got, &onto), Multiply(judge, x, *want, &onto));
    }
  }
};

constexpr int64_t kFewRows[] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10,
                                11, 12, 13, 14, 15, 16, 17, 18, 19, 20};
constexpr int64_t kSomeRows[] = {1, 3, 8, 33};

TEST_P(PackedMatMulOn, EveryTypeHasTheReferencesBits) {
  Random random(1);
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    for (const int64_t n : {1, 16, 37}) {
      for (const int64_t blocks : {1, 3}) {
        std::vector<std::byte> storage;
        const HostMatrix matrix =
            RandomPackedMatrix(random, layout, n, blocks * layout.block_elements, storage);
        ExpectTheReferencesBits({&matrix, 1}, WeightFormat::kNative,
                                n == 37 ? std::span<const int64_t>(kFewRows) : kSomeRows, random);
      }
    }
  }
}

TEST_P(PackedMatMulOn, PartsThatKeepEightBitsHaveTheReferencesBits) {
  Random random(17);
  std::vector<std::byte> storage[3];
  std::vector<HostMatrix> parts;
  for (std::vector<std::byte>& bytes : storage) {
    parts.push_back(ToHostMatrix(Normal(random, 19, 96, 0.05f), DType::kBFloat16, bytes));
  }
  parts[1].keeps_eight = parts[2].keeps_eight = true;
  ExpectTheReferencesBits(parts, WeightFormat::kInt4, kSomeRows, random);
  Device judge({"reference"});
  EXPECT_EQ((*judge->Pack(parts, WeightFormat::kInt4))->bytes(), 19u * 3 * (20 + 34 + 34));
  EXPECT_EQ((*judge->Pack(parts, WeightFormat::kNative))->bytes(), 3u * 19 * 96 * sizeof(float));
}

// Blocks that are unpacked, and e4m3, are the floats that they stand for.
TEST_P(PackedMatMulOn, UnpackedBlocksAndE4M3AreFloats) {
  Random random(18);
  Device device(GetParam());
  const auto expect_floats = [&](const HostMatrix& matrix, WeightFormat format) {
    const HostTensor numbers = Unpacked(matrix);
    std::vector<std::byte> storage;
    const HostMatrix floats = ToHostMatrix(numbers, DType::kFloat32, storage);
    const auto got = *device->Pack({&matrix, 1}, format);
    const auto want = *device->Pack({&floats, 1}, WeightFormat::kNative);
    EXPECT_EQ(got->bytes(), want->bytes());
    const HostTensor x = Normal(random, 5, matrix.cols);
    EXPECT_EQ(Multiply(device, x, *got, nullptr).data, Multiply(device, x, *want, nullptr).data);
  };
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    std::vector<std::byte> storage;
    expect_floats(RandomPackedMatrix(random, layout, 21, 512, storage), WeightFormat::kUnpacked);
  }
  for (const int64_t block : {1, 16, 128}) {
    const Float8Matrix matrix(random, 37, 200, block, block == 1 ? 200 : block);
    expect_floats(matrix.host(), WeightFormat::kNative);
    expect_floats(matrix.host(), WeightFormat::kUnpacked);
    ExpectTheReferencesBits({&matrix.host(), 1}, WeightFormat::kInt8, kSomeRows, random);
    ExpectTheReferencesBits({&matrix.host(), 1}, WeightFormat::kInt4, kSomeRows, random);
  }
}

// More rows than a task takes, and more panels than there are tasks.
TEST_P(PackedMatMulOn, ManyRowsHaveTheReferencesBits) {
  Random random(2);
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    std::vector<std::byte> storage;
    const HostMatrix matrix = RandomPackedMatrix(random, layout, 530, 512, storage);
    const int64_t counts[] = {70};
    ExpectTheReferencesBits({&matrix, 1}, WeightFormat::kNative, counts, random);
  }
  std::vector<std::byte> storage;
  const HostMatrix matrix = RandomPackedMatrix(random, PackedLayouts()[0], 33, 4096, storage);
  const int64_t counts[] = {300};
  ExpectTheReferencesBits({&matrix, 1}, WeightFormat::kNative, counts, random);
}

TEST_P(PackedMatMulOn, BlocksMadeAtLoadHaveTheReferencesBits) {
  Random random(3);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const DType dtype : {DType::kFloat32, DType::kFloat16, DType::kBFloat16}) {
      for (const int64_t k : {1, 5, 31, 32, 33, 257}) {
        SCOPED_TRACE(k);
        std::vector<std::byte> storage;
        const HostTensor weights = Normal(random, 19, k, 0.05f);
        const HostMatrix matrix = ToHostMatrix(weights, dtype, storage);
        ExpectTheReferencesBits({&matrix, 1}, format, kSomeRows, random);
      }
    }
  }
}

// The contract's roundings cost no more than 8 bits of activations do.
TEST_P(PackedMatMulOn, ProductsAreNearThoseOfTheUnpackedNumbers) {
  Random random(4);
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    std::vector<std::byte> storage;
    const HostMatrix matrix = RandomPackedMatrix(random, layout, 40, 512, storage);
    const HostTensor weights = Unpacked(matrix);
    const HostTensor x = Normal(random, 6, 512);
    Device device(GetParam());
    const auto packed = *device->Pack({&matrix, 1}, WeightFormat::kNative);
    const HostTensor got = Multiply(device, x, *packed, nullptr);
    for (int64_t r = 0; r < 6; ++r) {
      for (int64_t n = 0; n < 40; ++n) {
        double want = 0.0;
        for (int64_t k = 0; k < 512; ++k) want += double{x.row(r)[k]} * weights.row(n)[k];
        // A step is a 127th of a group's largest, about 2.5 deviations; its error at random.
        ASSERT_NEAR(got.row(r)[n], want, 0.03 * Norm(weights.row(n), 512));
      }
    }
  }
}

TEST_P(PackedMatMulOn, FloatsInFewerBitsAreNear) {
  Random random(5);
  const HostTensor weights = Normal(random, 50, 300, 0.05f);
  const HostTensor x = Normal(random, 4, 300);
  std::vector<std::byte> storage;
  const HostMatrix matrix = ToHostMatrix(weights, DType::kBFloat16, storage);
  Device device(GetParam());
  const auto exact = *device->Pack({&matrix, 1}, WeightFormat::kNative);
  const HostTensor want = Multiply(device, x, *exact, nullptr);
  const auto error = [&](WeightFormat format) {
    const auto packed = *device->Pack({&matrix, 1}, format);
    const HostTensor got = Multiply(device, x, *packed, nullptr);
    return RelativeError(got.row(0), want.row(0), got.rows * got.cols);
  };
  EXPECT_LT(error(WeightFormat::kInt8), 0.015);
  EXPECT_LT(error(WeightFormat::kInt4), 0.12);
}

TEST_P(PackedMatMulOn, ARowDoesNotFeelItsBatch) {
  Random random(6);
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    std::vector<std::byte> storage;
    const HostMatrix matrix = RandomPackedMatrix(random, layout, 83, 512, storage);
    const HostTensor x = Normal(random, 70, 512);
    Device device(GetParam(), /*num_threads=*/3);
    Device single(GetParam(), /*num_threads=*/1);
    const auto packed = *device->Pack({&matrix, 1}, WeightFormat::kNative);
    const auto alone = *single->Pack({&matrix, 1}, WeightFormat::kNative);
    const HostTensor together = Multiply(device, x, *packed, nullptr);
    for (int64_t begin = 0, count = 1; begin < x.rows; begin += count, ++count) {
      HostTensor part(std::min(count, x.rows - begin), 512);
      std::copy_n(x.row(begin), part.rows * 512, part.row(0));
      const HostTensor out = Multiply(single, part, *alone, nullptr);
      EXPECT_EQ(std::memcmp(out.row(0), together.row(begin), out.data.size() * sizeof(float)), 0)
          << part.rows << " rows from " << begin;
    }
  }
}

// Decode rows and prefill rows of one step.
TEST_P(PackedMatMulOn, BothKindsOfRowsAreMultipliedAlike) {
  Random random(7);
  std::vector<std::byte> storage;
  const HostMatrix matrix = RandomPackedMatrix(random, PackedLayouts()[0], 40, 256, storage);
  const HostTensor x = Normal(random, 24, 256);
  Device device(GetParam());
  const auto packed = *device->Pack({&matrix, 1}, WeightFormat::kNative);
  const HostTensor want = Multiply(device, x, *packed, nullptr);
  const std::vector<int32_t> tokens(24);
  const SequenceRows rows[] = {{.num_rows = 3, .kind = RowKind::kDecode},
                               {.row_begin = 3, .num_rows = 21, .kind = RowKind::kPrefill}};
  device->Plan({tokens, rows});
  const TensorView out = device.Empty(24, 40, 3);
  device->MatMul({device.Put(x, 5), packed.get(), out, false, true});
  EXPECT_EQ(device.Get(out).data, want.data);
}

TEST_P(PackedMatMulOn, OnlyARowThatIsNotFiniteBecomesNan) {
  Random random(8);
  for (const GgmlLayout& layout : PackedLayouts()) {
    std::vector<std::byte> storage;
    const HostMatrix matrix = RandomPackedMatrix(random, layout, 20, 256, storage);
    for (const float bad : {NAN, INFINITY, -INFINITY}) {
      HostTensor x = Normal(random, 9, 256);
      Device device(GetParam());
      const auto packed = *device->Pack({&matrix, 1}, WeightFormat::kNative);
      const HostTensor finite = Multiply(device, x, *packed, nullptr);
      x.row(4)[255] = bad;
      const HostTensor got = Multiply(device, x, *packed, nullptr);
      for (int64_t r = 0; r < 9; ++r) {
        for (int64_t n = 0; n < 20; ++n) {
          if (r == 4) {
            EXPECT_TRUE(std::isnan(got.row(r)[n]));
          } else {
            EXPECT_EQ(got.row(r)[n], finite.row(r)[n]);
          }
        }
      }
    }
  }
}

// The greatest sums of integers, and zeros, which have no scale.
TEST_P(PackedMatMulOn, ExtremesHaveTheReferencesBits) {
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    for (const int fill : {0x00, 0xFF, 0x80, 0x7F}) {
      Random random(9);
      std::vector<std::byte> storage;
      const HostMatrix matrix = RandomPackedMatrix(random, layout, 17, 256, storage);
      for (std::byte& byte : storage) byte = static_cast<std::byte>(fill);
      // Scales of one: 0x3C00 where float16 numbers are.
      const auto half = [&](size_t at) {
        for (size_t i = at; i < storage.size(); i += layout.block_bytes) {
          storage[i] = std::byte{0x00};
          storage[i + 1] = std::byte{0x3C};
        }
      };
      if (layout.type == GgmlType::kMXFP4) {
        for (size_t i = 0; i < storage.size(); i += layout.block_bytes) storage[i] = std::byte{128};
      } else {
        half(layout.type == GgmlType::kQ6_K ? 208 : 0);
      }
      if (FormOf(layout.type).has_low) half(2);
      Device judge({"reference"});
      Device device(GetParam());
      const auto want = *judge->Pack({&matrix, 1}, WeightFormat::kNative);
      const auto got = *device->Pack({&matrix, 1}, WeightFormat::kNative);
      for (const float sign : {1.0f, -1.0f, 0.0f}) {
        HostTensor x(5, 256);
        for (size_t i = 0; i < x.data.size(); ++i) {
          x.data[i] = sign * (i % 3 == 0 && i >= 256 ? -1.0f : 1.0f);
        }
        ExpectSame(Multiply(device, x, *got, nullptr), Multiply(judge, x, *want, nullptr));
      }
    }
  }
}

// The greatest and the least scales, and those of zero.
TEST_P(PackedMatMulOn, ExtremeScalesHaveTheReferencesBits) {
  Random random(14);
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    for (const int bits : {0x7BFF, 0xFBFF, 0x0001, 0x8001, 0x0000, 0x8000}) {
      SCOPED_TRACE(bits);
      const auto scale = static_cast<uint16_t>(bits);
      std::vector<std::byte> storage;
      const HostMatrix matrix = RandomPackedMatrix(random, layout, 17, 512, storage);
      for (size_t block = 0; block < storage.size(); block += layout.block_bytes) {
        for (const size_t at : HalvesOf(layout.type)) {
          std::memcpy(&storage[block + at], &scale, sizeof(scale));
        }
      }
      ExpectTheReferencesBits({&matrix, 1}, WeightFormat::kNative, kSomeRows, random);
    }
  }
}

// A row of zeros and one that is all but zeros: neither may disturb those beside it.
TEST_P(PackedMatMulOn, RowsOfNearlyNothingAreNothing) {
  Random random(15);
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    std::vector<std::byte> storage;
    const HostMatrix matrix = RandomPackedMatrix(random, layout, 20, 256, storage);
    Device judge({"reference"});
    Device device(GetParam());
    const auto want = *judge->Pack({&matrix, 1}, WeightFormat::kNative);
    const auto got = *device->Pack({&matrix, 1}, WeightFormat::kNative);
    HostTensor x = Normal(random, 18, 256);
    for (int64_t k = 0; k < 256; ++k) {
      x.row(3)[k] = 0.0f;
      x.row(17)[k] *= 0x1p-120f;
    }
    const HostTensor out = Multiply(device, x, *got, nullptr);
    ExpectSame(out, Multiply(judge, x, *want, nullptr));
    for (int64_t n = 0; n < 20; ++n) {
      EXPECT_EQ(out.row(3)[n], 0.0f);
      EXPECT_EQ(out.row(17)[n], 0.0f);
    }
  }
}

TEST_P(PackedMatMulOn, StackedPartsKeepTheirTypes) {
  Random random(10);
  const std::vector<GgmlLayout>& layouts = PackedLayouts();
  std::vector<std::vector<std::byte>> storage(layouts.size() + 2);
  std::vector<HostMatrix> parts;
  size_t bytes = 0;
  Device device(GetParam());
  for (size_t i = 0; i < layouts.size(); ++i) {
    parts.push_back(RandomPackedMatrix(random, layouts[i], i == 2 ? 5 : 32, 256, storage[i]));
    const HostMatrix part = parts.back();
    bytes += (*device->Pack({&part, 1}, WeightFormat::kNative))->bytes();
    if (i != 3) continue;
    const size_t count = layouts.size();
    for (std::vector<std::byte>& floats :
         {std::ref(storage[count]), std::ref(storage[count + 1])}) {
      parts.push_back(ToHostMatrix(Normal(random, 16, 256), DType::kFloat16, floats));
      bytes += 16 * 256 * 2;
    }
  }
  Device judge({"reference"});
  const auto want = *judge->Pack(parts, WeightFormat::kNative);
  const auto got = *device->Pack(parts, WeightFormat::kNative);
  EXPECT_EQ(got->rows(), want->rows());
  EXPECT_EQ(got->bytes(), bytes);
  for (const int64_t rows : kSomeRows) {
    const HostTensor x = Normal(random, rows, 256);
    const HostTensor exact = Multiply(judge, x, *want, nullptr);
    const HostTensor product = Multiply(device, x, *got, nullptr);
    int64_t first = 0;
    for (const HostMatrix& part : parts) {
      HostTensor a(rows, part.rows);
      HostTensor b(rows, part.rows);
      for (int64_t r = 0; r < rows; ++r) {
        std::copy_n(product.row(r) + first, part.rows, a.row(r));
        std::copy_n(exact.row(r) + first, part.rows, b.row(r));
      }
      if (part.blocks != nullptr) {
        ExpectSame(a, b);
      } else {
        EXPECT_LT(RelativeError(a.row(0), b.row(0), rows * part.rows), 1e-4);
      }
      first += part.rows;
    }
  }
}

TEST_P(PackedMatMulOn, PartsOfOneTypeAreOneMatrix) {
  Random random(11);
  const GgmlLayout& layout = PackedLayouts()[0];
  std::vector<std::byte> storage[2];
  HostMatrix parts[] = {RandomPackedMatrix(random, layout, 5, 256, storage[0]),
                        RandomPackedMatrix(random, layout, 11, 256, storage[1])};
  std::vector<std::byte> whole = storage[0];
  whole.insert(whole.end(), storage[1].begin(), storage[1].end());
  const HostMatrix one = {whole.data(), DType::kFloat32, 16, 256, &layout};
  Device device(GetParam());
  const auto stacked = *device->Pack(parts, WeightFormat::kNative);
  const auto single = *device->Pack({&one, 1}, WeightFormat::kNative);
  EXPECT_EQ(stacked->bytes(), single->bytes());
  const HostTensor x = Normal(random, 3, 256);
  EXPECT_EQ(Multiply(device, x, *stacked, nullptr).data,
            Multiply(device, x, *single, nullptr).data);
}

TEST_P(PackedMatMulOn, TakesNoMoreThanATenthAboveTheFile) {
  Random random(12);
  Device device(GetParam());
  for (const GgmlLayout& layout : PackedLayouts()) {
    for (const int64_t cols : {256, 1536}) {
      std::vector<std::byte> storage;
      const HostMatrix matrix = RandomPackedMatrix(random, layout, 96, cols, storage);
      const auto packed = *device->Pack({&matrix, 1}, WeightFormat::kNative);
      EXPECT_LE(packed->bytes(), 1.1 * static_cast<double>(storage.size())) << layout.name;
    }
  }
  std::vector<std::byte> storage;
  const HostMatrix floats = ToHostMatrix(Normal(random, 96, 320), DType::kBFloat16, storage);
  EXPECT_EQ((*device->Pack({&floats, 1}, WeightFormat::kInt8))->bytes(), 96u * 320 * 34 / 32);
  EXPECT_EQ((*device->Pack({&floats, 1}, WeightFormat::kInt4))->bytes(), 96u * 320 * 20 / 32);
}

TEST_P(PackedMatMulOn, EmbedsTheNumbersOfGgml) {
  Random random(13);
  const std::vector<int32_t> tokens = {49, 0, 7, 7, 31};
  const SequenceRows rows[] = {{.num_rows = 5, .kind = RowKind::kPrefill}};
  for (const GgmlLayout& layout : PackedLayouts()) {
    SCOPED_TRACE(layout.name);
    std::vector<std::byte> storage;
    const HostMatrix table = RandomPackedMatrix(random, layout, 50, 512, storage);
    const HostTensor numbers = Unpacked(table);
    for (const BackendUnderTest& backend : {GetParam(), BackendUnderTest{"reference"}}) {
      Device device(backend);
      const auto packed = *device->Pack({&table, 1}, WeightFormat::kNative);
      const TensorView out = device.Empty(5, 512, 1);
      const TensorView scaled = device.Empty(5, 512, 1);
      device->Plan({tokens, rows});
      device->Embed({.table = packed.get(), .out = out});
      device->Embed({.table = packed.get(), .out = scaled, .scale = 25.25f});
      EXPECT_TRUE(device->Finish().ok());
      const HostTensor got = device.Get(out);
      const HostTensor larger = device.Get(scaled);
      for (int64_t r = 0; r < 5; ++r) {
        const float* want = numbers.row(tokens[static_cast<size_t>(r)]);
        EXPECT_EQ(std::memcmp(got.row(r), want, 512 * sizeof(float)), 0);
        for (int64_t i = 0; i < 512; ++i) ASSERT_EQ(larger.row(r)[i], want[i] * 25.25f);
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, PackedMatMulOn, ::testing::ValuesIn(Backends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
