// Products of float weights and the embedding look-up against the reference. Weights in blocks:
// kernels_packed_matmul_test.cc.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <iterator>

#include "kernels/params/layer.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

using ::testing::ValuesIn;

struct Shape {
  int64_t rows;
  int64_t n;
  int64_t k;
};

constexpr Shape kShapes[] = {{1, 1, 1},    {1, 64, 64},  {2, 7, 5},      {3, 129, 200},
                             {5, 33, 127}, {8, 96, 512}, {17, 65, 31},   {33, 130, 96},
                             {64, 64, 64}, {70, 37, 65}, {1, 1031, 257}, {4, 2, 1023}};

constexpr DType kDTypes[] = {DType::kFloat32, DType::kBFloat16, DType::kFloat16};

class MatMulOn : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!WhyMissing(GetParam()).empty()) GTEST_SKIP() << WhyMissing(GetParam());
  }

  // AMX has two bfloat16 for a float32.
  double tolerance() const {
    if (GetParam().name == "cuda") return 4e-6;
    return GetParam().amx ? 1e-5 : 1e-6;
  }

  // `values` as the backend multiplies with them: it may keep weights, and be given activations, in
  // less than float32.
  HostTensor AsComputed(const HostTensor& values) const {
    return Rounded(values, GetParam().compute);
  }

  std::unique_ptr<Matrix> Pack(Device& device, const HostTensor& weights, DType dtype) {
    std::vector<std::byte> storage;
    const HostMatrix host = ToHostMatrix(weights, dtype, storage);
    return *device->Pack({&host, 1}, WeightFormat::kNative);
  }

  HostTensor Multiply(Device& device, const HostTensor& x, const Matrix& weight,
                      const HostTensor* onto) {
    const TensorView out =
        onto != nullptr ? device.Put(*onto, 3) : device.Empty(x.rows, weight.rows(), 3);
    const std::vector<int32_t> tokens(static_cast<size_t>(x.rows));
    const SequenceRows rows[] = {
        {.num_rows = static_cast<int32_t>(x.rows), .kind = RowKind::kPrefill}};
    device->Plan({tokens, rows});
    device->MatMul({.x = device.Put(x, 5, device.activation_dtype()),
                    .weight = &weight,
                    .out = out,
                    .accumulate = onto != nullptr,
                    .rows_of_step = true});
    EXPECT_TRUE(device->Finish().ok());
    return device.Get(out);
  }

  // Every element within `tolerance` of |x| |w|.
  void ExpectProduct(const HostTensor& got, const HostTensor& want, const HostTensor& x,
                     const HostTensor& weights, double tolerance) {
    for (int64_t r = 0; r < want.rows; ++r) {
      for (int64_t n = 0; n < want.cols; ++n) {
        const double scale = Norm(x.row(r), x.cols) * Norm(weights.row(n), weights.cols) + 1.0;
        ASSERT_NEAR(got.row(r)[n], want.row(r)[n], tolerance * scale)
            << "row " << r << " of " << want.rows << ", column " << n << " of " << want.cols
            << ", inner " << x.cols;
      }
    }
  }
};

TEST_P(MatMulOn, NativeWeightsMatchTheReference) {
  Random random(11);
  for (const Shape& shape : kShapes) {
    const HostTensor x = AsComputed(Normal(random, shape.rows, shape.k));
    const HostTensor weights = Normal(random, shape.n, shape.k);
    const HostTensor onto = Normal(random, shape.rows, shape.n);
    for (const DType dtype : kDTypes) {
      Device judge({"reference"});
      Device device(GetParam());
      const HostTensor kept = AsComputed(Rounded(weights, dtype));
      const auto want = Pack(judge, kept, DType::kFloat32);
      const auto got = Pack(device, weights, dtype);
      EXPECT_EQ(got->rows(), shape.n);
      EXPECT_EQ(got->cols(), shape.k);
      for (const HostTensor* base : {static_cast<const HostTensor*>(nullptr), &onto}) {
        ExpectProduct(Multiply(device, x, *got, base), Multiply(judge, x, *want, base), x, weights,
                      tolerance());
      }
    }
  }
}

TEST_P(MatMulOn, ProductsMayBeActivationsThemselves) {
  Random random(17);
  Device judge({"reference"});
  Device device(GetParam());
  const HostTensor x = AsComputed(Normal(random, 9, 64));
  const HostTensor weights = AsComputed(Normal(random, 96, 64));
  const auto want = Pack(judge, weights, DType::kFloat32);
  const auto got = Pack(device, weights, DType::kFloat32);
  const TensorView out = device.Empty(9, 96, 3, device.activation_dtype());
  const std::vector<int32_t> tokens(9);
  const SequenceRows rows[] = {{.num_rows = 9}};
  device->Plan({tokens, rows});
  device->MatMul({.x = device.Put(x, 5, device.activation_dtype()),
                  .weight = got.get(),
                  .out = out,
                  .accumulate = false});
  EXPECT_EQ(device->Finish(), absl::OkStatus());
  const HostTensor product = device.Get(out);
  const HostTensor exact = Multiply(judge, x, *want, nullptr);
  for (int64_t r = 0; r < 9; ++r) {
    EXPECT_LT(RelativeError(product.row(r), exact.row(r), 96),
              2e-6 + RoundingError(device.activation_dtype()));
  }
}

TEST_P(MatMulOn, StackedPartsAreOneMatrix) {
  Random random(14);
  const HostTensor first = Normal(random, 5, 48);
  const HostTensor second = Normal(random, 33, 48);
  HostTensor whole(38, 48);
  std::copy(first.data.begin(), first.data.end(), whole.row(0));
  std::copy(second.data.begin(), second.data.end(), whole.row(5));
  const HostTensor x = Normal(random, 3, 48);
  Device device(GetParam());
  for (const DType dtype : kDTypes) {
    std::vector<std::byte> storage[2];
    const HostMatrix parts[] = {ToHostMatrix(first, dtype, storage[0]),
                                ToHostMatrix(second, dtype, storage[1])};
    const auto stacked = *device->Pack(parts, WeightFormat::kNative);
    const auto one = Pack(device, whole, dtype);
    EXPECT_EQ(stacked->bytes(), one->bytes());
    EXPECT_EQ(Multiply(device, x, *stacked, nullptr).data, Multiply(device, x, *one, nullptr).data);
  }
}

TEST_P(MatMulOn, PartsOfSeveralFormatsAreFloat32) {
  Random random(18);
  Device device(GetParam());
  HostTensor whole(9, 40);
  std::vector<std::byte> storage[std::size(kDTypes)];
  std::vector<HostMatrix> parts;
  for (const DType dtype : kDTypes) {
    const HostTensor part = Rounded(Normal(random, 3, 40), dtype);
    std::copy(part.data.begin(), part.data.end(),
              whole.row(3 * static_cast<int64_t>(parts.size())));
    parts.push_back(ToHostMatrix(part, dtype, storage[parts.size()]));
  }
  const HostTensor x = Normal(random, 3, 40);
  const auto stacked = *device->Pack(parts, WeightFormat::kNative);
  const auto one = Pack(device, whole, DType::kFloat32);
  EXPECT_EQ(stacked->bytes(), one->bytes());
  EXPECT_EQ(Multiply(device, x, *stacked, nullptr).data, Multiply(device, x, *one, nullptr).data);
}

TEST_P(MatMulOn, BothFormatsOf16BitsTakeAsManyBytes) {
  Random random(19);
  Device device(GetParam());
  const HostTensor weights = Normal(random, 70, 96);
  const auto bytes = [&](DType dtype) { return Pack(device, weights, dtype)->bytes(); };
  EXPECT_EQ(bytes(DType::kFloat16), bytes(DType::kBFloat16));
  if (GetParam().name == "cpu") {
    EXPECT_EQ(2 * bytes(DType::kFloat16), bytes(DType::kFloat32));
  }
}

// Subnormals, infinities and NaN among them. With one column a product is the weight itself.
TEST_P(MatMulOn, EveryFloat16WeightIsMultipliedAsItIs) {
  constexpr int64_t kPatterns = 1 << 16;
  HostTensor weights(kPatterns, 1);
  for (int64_t i = 0; i < kPatterns; ++i) {
    weights.data[static_cast<size_t>(i)] = HalfToFloat(static_cast<uint16_t>(i));
  }
  const HostTensor want = AsComputed(weights);
  Device device(GetParam());
  const auto packed = Pack(device, weights, DType::kFloat16);
  for (const int64_t rows : {1, 5, 40}) {  // the panels of few rows and of many
    HostTensor x(rows, 1);
    std::fill(x.data.begin(), x.data.end(), 1.0f);
    const HostTensor got = Multiply(device, x, *packed, nullptr);
    for (int64_t i = 0; i < kPatterns; ++i) {
      const float weight = want.data[static_cast<size_t>(i)];
      const float product = got.row(rows - 1)[i];
      // Infinity is not the sum of two bfloat16.
      const bool never = std::isnan(weight) || (GetParam().amx && std::isinf(weight));
      ASSERT_TRUE(never ? std::isnan(product) : product == weight)
          << "pattern " << i << ", " << rows << " rows: " << product << ", not " << weight;
    }
  }
}

TEST_P(MatMulOn, ARowDoesNotFeelItsBatch) {
  Random random(15);
  for (const int64_t k : {31, 64, 300}) {
    const HostTensor x = Normal(random, 70, k);
    const HostTensor weights = Normal(random, 83, k);
    for (const DType dtype : kDTypes) {
      Device device(GetParam(), /*num_threads=*/3);
      Device single(GetParam(), /*num_threads=*/1);
      const auto packed = Pack(device, weights, dtype);
      const auto packed_alone = Pack(single, weights, dtype);
      const HostTensor together = Multiply(device, x, *packed, nullptr);
      for (int64_t begin = 0, count = 1; begin < x.rows; begin += count, ++count) {
        HostTensor part(std::min(count, x.rows - begin), k);
        std::copy_n(x.row(begin), part.rows * k, part.row(0));
        const HostTensor out = Multiply(single, part, *packed_alone, nullptr);
        if (RowsAreExact(GetParam())) {
          EXPECT_EQ(std::memcmp(out.row(0), together.row(begin), out.data.size() * sizeof(float)),
                    0)
              << part.rows << " rows from " << begin << ", inner " << k;
        } else {
          EXPECT_LT(RelativeError(out.row(0), together.row(begin), out.rows * out.cols), 2e-6)
              << part.rows << " rows from " << begin << ", inner " << k;
        }
      }
    }
  }
}

// A step of decode rows, then prefill rows of two sequences, and a product that is not of the step.
TEST_P(MatMulOn, EachKindOfRowIsMultipliedAsIfAlone) {
  if (!RowsAreExact(GetParam())) GTEST_SKIP() << "rows are not exact on this backend";
  constexpr int32_t kDecode = 5;
  constexpr int32_t kPrefill[] = {1, 40};
  Random random(20);
  const HostTensor x = Normal(random, kDecode + kPrefill[0] + kPrefill[1], 72);
  const HostTensor weights = Normal(random, 90, 72);
  BackendUnderTest plain = GetParam();
  plain.amx = false;
  Device device(GetParam());
  Device judge(plain);
  const auto packed = Pack(device, weights, DType::kBFloat16);
  const auto judged = Pack(judge, weights, DType::kBFloat16);
  const std::vector<int32_t> tokens(static_cast<size_t>(x.rows));
  const SequenceRows rows[] = {
      {.num_rows = kDecode, .kind = RowKind::kDecode},
      {.row_begin = kDecode, .num_rows = kPrefill[0], .kind = RowKind::kPrefill},
      {.row_begin = kDecode + kPrefill[0], .num_rows = kPrefill[1], .kind = RowKind::kPrefill}};
  device->Plan({tokens, rows});
  const TensorView view = device.Put(x, 5);
  const TensorView of_step = device.Empty(x.rows, 90, 3);
  const TensorView of_logits = device.Empty(x.rows, 90, 3);
  device->MatMul({view, packed.get(), of_step, false, true});
  device->MatMul({view, packed.get(), of_logits, false});
  const HostTensor got = device.Get(of_step);
  const HostTensor exact = Multiply(judge, x, *judged, nullptr);
  const HostTensor prefill = Multiply(device, x, *packed, nullptr);
  EXPECT_EQ(device.Get(of_logits).data, exact.data);
  for (int64_t r = 0; r < x.rows; ++r) {
    const HostTensor& want = r < kDecode ? exact : prefill;
    EXPECT_EQ(std::memcmp(got.row(r), want.row(r), 90 * sizeof(float)), 0) << "row " << r;
  }
}

TEST_P(MatMulOn, EmbedsTokensByTheirRow) {
  Random random(16);
  const HostTensor table = Normal(random, 50, 72);
  const std::vector<int32_t> tokens = {49, 0, 7, 7, 31};
  const SequenceRows rows[] = {{.num_rows = 5, .kind = RowKind::kPrefill}};
  for (const DType dtype : kDTypes) {
    Device judge({"reference"});
    Device device(GetParam());
    HostTensor results[2];
    for (int i = 0; i < 2; ++i) {
      Device& on = i == 0 ? judge : device;
      const auto packed = Pack(on, table, dtype);
      const TensorView out = on.Empty(5, 72, 1);
      on->Plan({tokens, rows});
      on->Embed({.table = packed.get(), .out = out, .scale = dtype == kDTypes[0] ? 1.0f : 25.3f});
      EXPECT_TRUE(on->Finish().ok());
      results[i] = on.Get(out);
    }
    for (int64_t r = 0; r < 5; ++r) {
      EXPECT_LT(RelativeError(results[1].row(r), results[0].row(r), 72),
                1e-7 + RoundingError(GetParam().compute));
    }
  }
}

TEST_P(MatMulOn, RefusesPartsOfUnequalWidth) {
  Device device(GetParam());
  const std::vector<float> zeros(64);
  const HostMatrix parts[] = {{zeros.data(), DType::kFloat32, 4, 8},
                              {zeros.data(), DType::kFloat32, 4, 16}};
  EXPECT_EQ(device->Pack(parts, WeightFormat::kNative).status().code(),
            absl::StatusCode::kInvalidArgument);
}

INSTANTIATE_TEST_SUITE_P(Kernels, MatMulOn, ValuesIn(JudgedBackends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
