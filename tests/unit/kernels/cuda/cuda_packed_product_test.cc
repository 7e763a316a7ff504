// Products with packed weights on a GPU: for few rows by their own kernel, for many by unpacked
// tiles. Numbers that a table of embeddings gives stand in for what the device keeps; the
// reference judges these, and a sum in double precision judges products with them.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/packed/packed_product.h"
#include "kernels/params/layer.h"
#include "kernels/weights/integer_groups.h"
#include "tests/testing/kernels/kernel_harness.h"
#include "tests/testing/kernels/random_blocks.h"

namespace eta::testing {
namespace {

constexpr float kPackedEps = 1e-5f;
constexpr int64_t kMostFewRows = 64;
// Full and ragged groups of columns, and more rows than the kernel has.
constexpr int64_t kRowCounts[] = {1, 2, 7, 8, 9, 16, 17, 31, 33, 64, 65, 130};

struct PackedShape {
  int64_t n;
  int64_t blocks;  // of K, 256 numbers each
};
// Ragged tiles of channels; with clusters and without; more tiles than thread blocks.
constexpr PackedShape kPackedShapes[] = {{1, 1}, {16, 2}, {40, 3}, {257, 17}, {3072, 8}, {9000, 1}};

class CudaPackedProduct : public ::testing::TestWithParam<DType> {
 protected:
  CudaPackedProduct() : device_({.name = "cuda", .compute = GetParam()}) {}
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }

  HostTensor AsComputed(const HostTensor& values) const { return Rounded(values, GetParam()); }

  std::unique_ptr<Matrix> Pack(std::span<const HostMatrix> parts,
                               WeightFormat format = WeightFormat::kNative) {
    auto matrix = device_->Pack(parts, format);
    EXPECT_TRUE(matrix.ok()) << matrix.status();
    return *std::move(matrix);
  }
  void Plan(std::vector<int32_t> tokens) {
    tokens_ = std::move(tokens);
    sequence_ = {.num_rows = static_cast<int32_t>(tokens_.size())};
    device_->Plan({tokens_, {&sequence_, 1}});
  }
  void PlanRows(int64_t rows) { Plan(std::vector<int32_t>(static_cast<size_t>(rows), 0)); }

  // The numbers that the device keeps of one matrix.
  HostTensor Kept(const Matrix& matrix) {
    HostTensor numbers(matrix.rows(), matrix.cols());
    for (int64_t first = 0; first < matrix.rows(); first += 512) {
      const int64_t count = std::min<int64_t>(512, matrix.rows() - first);
      std::vector<int32_t> tokens;
      for (int64_t i = 0; i < count; ++i) tokens.push_back(static_cast<int32_t>(first + i));
      const TensorView out = device_.Empty(count, matrix.cols(), 3);
      Plan(std::move(tokens));
      device_->Embed({&matrix, out});
      EXPECT_EQ(device_->Finish(), absl::OkStatus());
      const HostTensor some = device_.Get(out);
      std::ranges::copy(some.data, numbers.row(first));
      device_.Clear();
    }
    return numbers;
  }

  HostTensor Multiply(const Matrix& weight, const HostTensor& x, const HostTensor* onto) {
    const TensorView in = device_.Put(x, 8, GetParam());
    const TensorView out =
        onto != nullptr ? device_.Put(*onto, 3) : device_.Empty(x.rows, weight.rows(), 3);
    PlanRows(x.rows);
    device_->MatMul({in, &weight, out, onto != nullptr, true});
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    HostTensor result = device_.Get(out);
    device_.Clear();
    return result;
  }

  // Some outputs of every row. Where no kernel of few rows is, weights are rounded to the type of
  // products.
  void ExpectProducts(const HostTensor& got, const HostTensor& x, const HostTensor& weights,
                      const HostTensor* onto) {
    const bool few = x.rows <= kMostFewRows && x.cols % 8 == 0;
    const double rounding = few ? 4e-6 : 4e-6 + RoundingError(GetParam());
    const int64_t step = std::max<int64_t>(weights.rows / 40, 1);
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t c = r % step; c < weights.rows; c += step) {
        double want = onto != nullptr ? double{onto->row(r)[c]} : 0.0;
        for (int64_t k = 0; k < x.cols; ++k) want += double{x.row(r)[k]} * weights.row(c)[k];
        const double scale = Norm(x.row(r), x.cols) * Norm(weights.row(c), x.cols) +
                             (onto != nullptr ? std::abs(onto->row(r)[c]) : 0.0);
        ASSERT_NEAR(got.row(r)[c], want, rounding * scale + 1e-30)
            << "row " << r << " of " << x.rows << ", column " << c << " of " << weights.rows
            << ", inner " << x.cols;
      }
    }
  }

  void ExpectEveryCount(const Matrix& weight, const HostTensor& kept, Random& random) {
    for (const int64_t rows : kRowCounts) {
      const HostTensor x = AsComputed(Normal(random, rows, weight.cols()));
      const HostTensor onto = Normal(random, rows, weight.rows());
      for (const HostTensor* to : {static_cast<const HostTensor*>(nullptr), &onto}) {
        ExpectProducts(Multiply(weight, x, to), x, kept, to);
        if (HasFatalFailure()) return;
      }
    }
  }

  Device device_;
  std::vector<int32_t> tokens_;
  SequenceRows sequence_;
};

int64_t Padded(int64_t count, int64_t to) {
  return (count + to - 1) / to * to;
}

// What the nearest form loses of a type, as a share of a row's numbers.
double LossOf(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_K:
      return 1e-3;  // scales become float16
    case GgmlType::kQ5_K:
    case GgmlType::kQ5_1:
    case GgmlType::kQ6_K:
      return 1e-2;  // numbers become 127ths
    default:
      return 1e-7;
  }
}

TEST_P(CudaPackedProduct, KeepsWhatABlockOfEachTypeHolds) {
  Random random(51);
  for (const GgmlLayout& layout : PackedLayouts()) {
    for (const PackedShape& shape : kPackedShapes) {
      std::vector<std::byte> storage;
      const HostMatrix host =
          RandomPackedMatrix(random, layout, shape.n, 256 * shape.blocks, storage);
      const HostTensor want = Unpacked(host);
      const HostTensor got = Kept(*Pack({&host, 1}));
      for (int64_t r = 0; r < want.rows; ++r) {
        ASSERT_LE(RelativeError(got.row(r), want.row(r), want.cols), LossOf(layout.type))
            << layout.name << ", row " << r << " of " << want.rows;
      }
    }
  }
}

TEST_P(CudaPackedProduct, MatchesForEveryTypeAndNumberOfRows) {
  Random random(52);
  for (const GgmlLayout& layout : PackedLayouts()) {
    for (const PackedShape& shape : kPackedShapes) {
      std::vector<std::byte> storage;
      const HostMatrix host =
          RandomPackedMatrix(random, layout, shape.n, 256 * shape.blocks, storage);
      const auto weight = Pack({&host, 1});
      ExpectEveryCount(*weight, Kept(*weight), random);
      ASSERT_FALSE(HasFatalFailure()) << layout.name;
    }
  }
}

// K of no whole group, of no whole chunk, and one that no kernel of few rows takes.
TEST_P(CudaPackedProduct, MatchesWherePackedAtLoadAndRagged) {
  Random random(53);
  for (const WeightFormat format : {WeightFormat::kInt8, WeightFormat::kInt4}) {
    for (const int64_t k : {8, 40, 576, 100, 4104}) {
      const HostTensor weights = Normal(random, 130, k, 0.02f);
      std::vector<std::byte> storage;
      const HostMatrix host = ToHostMatrix(weights, DType::kBFloat16, storage);
      const auto weight = Pack({&host, 1}, format);
      const HostTensor kept = Kept(*weight);
      for (int64_t r = 0; r < weights.rows; ++r) {
        ASSERT_LE(RelativeError(kept.row(r), weights.row(r), k),
                  format == WeightFormat::kInt8 ? 0.01 : 0.15)
            << Name(format) << ", " << k;
      }
      ExpectEveryCount(*weight, kept, random);
      ASSERT_FALSE(HasFatalFailure()) << Name(format) << ", " << k;
    }
  }
}

TEST_P(CudaPackedProduct, MatchesForE4M3OfChannelsAndOfBlocks) {
  Random random(60);
  struct Blocks {
    int64_t rows, cols;
  };
  for (const Blocks& blocks : {Blocks{1, 1 << 20}, Blocks{128, 128}}) {
    for (const PackedShape& shape : {PackedShape{1, 8}, {40, 200}, {257, 4104}, {3072, 2048}}) {
      const Float8Matrix matrix(random, shape.n, shape.blocks, blocks.rows, blocks.cols);
      const auto weight = Pack({&matrix.host(), 1});
      EXPECT_LT(
          weight->bytes(),
          static_cast<size_t>(Padded(shape.n, 16) * (Padded(shape.blocks, 64) * 9 / 8 + 8) + 256));
      const HostTensor kept = Kept(*weight);
      EXPECT_EQ(kept.data, Unpacked(matrix.host()).data);
      ExpectEveryCount(*weight, kept, random);
      ASSERT_FALSE(HasFatalFailure()) << blocks.rows << " x " << blocks.cols;
    }
  }
}

TEST_P(CudaPackedProduct, TakesScalesFromTheLeastToTheGreatest) {
  Random random(54);
  for (const GgmlLayout& layout : PackedLayouts()) {
    std::vector<std::byte> storage;
    const HostMatrix host = RandomPackedMatrix(random, layout, 64, 1024, storage);
    const size_t scale_at = layout.type == GgmlType::kQ6_K ? 208 : 0;
    const auto row_bytes = storage.size() / 64;
    for (size_t row = 0; row < 64; ++row) {
      constexpr uint16_t kHalves[] = {0x0000, 0x8000, 0x0001, 0x7BFF, 0xFBFF, 0x0400};
      constexpr uint8_t kExponents[] = {4, 28, 60, 128, 200, 220};  // of MXFP4
      for (size_t at = 0; at < row_bytes; at += layout.block_bytes) {
        std::byte* const scale = &storage[row * row_bytes + at + scale_at];
        if (layout.type == GgmlType::kMXFP4) {
          *scale = static_cast<std::byte>(kExponents[row % 6]);
        } else {
          std::memcpy(scale, &kHalves[row % 6], 2);
        }
      }
    }
    const auto weight = Pack({&host, 1});
    const HostTensor kept = Kept(*weight);
    const HostTensor want = Unpacked(host);
    for (int64_t r = 0; r < want.rows; ++r) {
      ASSERT_LE(RelativeError(kept.row(r), want.row(r), want.cols), LossOf(layout.type) + 1e-6)
          << layout.name << ", row " << r;
    }
    if (GetParam() == DType::kFloat16) continue;  // the sums of many rows pass its range
    for (const int64_t rows : {3, 40}) {
      const HostTensor x = AsComputed(Normal(random, rows, 1024));
      ExpectProducts(Multiply(*weight, x, nullptr), x, kept, nullptr);
    }
    ASSERT_FALSE(HasFatalFailure()) << layout.name;
  }
}

// One or two rows are multiplied as integers of a group's power of two.
TEST_P(CudaPackedProduct, OneRowMayHaveAnyNumbers) {
  Random random(61);
  const GgmlLayout layout = *std::ranges::find(PackedLayouts(), GgmlType::kQ4_K, &GgmlLayout::type);
  std::vector<std::byte> storage;
  const HostMatrix host = RandomPackedMatrix(random, layout, 40, 1024, storage);
  const auto weight = Pack({&host, 1});
  const HostTensor kept = Kept(*weight);
  for (const int64_t rows : {1, 2}) {
    HostTensor x = Normal(random, rows, 1024);
    const int most = GetParam() == DType::kBFloat16 ? 60 : 6;
    for (float& value : x.data) {
      value = std::ldexp(value, static_cast<int>(Uniform(random, -most, most)));
    }
    std::ranges::fill_n(x.row(0) + 64, 96, 0.0f);
    x = AsComputed(x);
    ExpectProducts(Multiply(*weight, x, nullptr), x, kept, nullptr);
    // Of a row that has no number every output is none, and the other row's stay as they were.
    for (const float bad :
         {std::numeric_limits<float>::quiet_NaN(), std::numeric_limits<float>::infinity()}) {
      HostTensor with = x;
      with.row(rows - 1)[700] = bad;
      const HostTensor got = Multiply(*weight, with, nullptr);
      for (int64_t c = 0; c < got.cols; ++c) EXPECT_TRUE(std::isnan(got.row(rows - 1)[c])) << c;
      const HostTensor want = Multiply(*weight, x, nullptr);
      EXPECT_TRUE(std::equal(got.row(0), got.row(rows - 1), want.row(0)));
    }
  }
}

TEST_P(CudaPackedProduct, StackedPartsKeepTheirOwnTypes) {
  Random random(55);
  const auto layout_of = [](GgmlType type) {
    return *std::ranges::find(PackedLayouts(), type, &GgmlLayout::type);
  };
  const GgmlLayout four = layout_of(GgmlType::kQ4_K);
  const GgmlLayout six = layout_of(GgmlType::kQ6_K);
  for (const int64_t cols : {512, 4096}) {
    std::vector<std::byte> storage[3];
    const HostTensor numbers = AsComputed(Normal(random, 72, cols, 0.05f));
    const HostMatrix parts[] = {RandomPackedMatrix(random, four, 200, cols, storage[0]),
                                ToHostMatrix(numbers, GetParam(), storage[1]),
                                RandomPackedMatrix(random, six, 40, cols, storage[2])};
    HostTensor kept(0, cols);
    for (const HostMatrix& part : parts) {
      const HostTensor own = Kept(*Pack({&part, 1}));
      kept.data.insert(kept.data.end(), own.data.begin(), own.data.end());
      kept.rows += own.rows;
    }
    const auto weight = Pack(parts);
    EXPECT_LT(weight->bytes(), static_cast<size_t>(weight->rows() * cols * 2));
    ExpectEveryCount(*weight, kept, random);
  }
}

TEST_P(CudaPackedProduct, RefusesWhatItCannotKeep) {
  Random random(56);
  std::vector<std::byte> storage;
  const HostMatrix host = RandomPackedMatrix(random, PackedLayouts()[0], 16, 256, storage);
  const std::vector<HostMatrix> many(5, host);
  const auto stacked = device_->Pack(many, WeightFormat::kNative);
  EXPECT_EQ(stacked.status().message(), "parts: a stack of packed weights has 4 matrices at most");
  Device wide({.name = "cuda", .compute = DType::kFloat32});
  const auto floats = wide->Pack({&host, 1}, WeightFormat::kInt8);
  EXPECT_EQ(floats.status().message(),
            "weights: int8 on cuda needs products in bfloat16 or float16 (--compute)");
  EXPECT_EQ((*wide->Pack({&host, 1}, WeightFormat::kNative))->bytes(), 16u * 256 * 4);
  EXPECT_EQ((*device_->Pack({&host, 1}, WeightFormat::kUnpacked))->bytes(), 16u * 256 * 2);
}

// A feed-forward part as in a layer.
class CudaPackedLayer : public CudaPackedProduct {
 protected:
  // `mixed`: gate and up differ in their type, so SwiGLU is an op of its own.
  void Make(Random& random, int64_t width, int64_t inner, bool mixed) {
    for (const GgmlLayout& layout : PackedLayouts()) {
      if (layout.type == GgmlType::kQ4_1) four_ = layout;
      if (layout.type == GgmlType::kQ8_0) eight_ = layout;
    }
    const HostMatrix gate_up[] = {
        Weights(random, four_, inner, width, storage_[0]),
        Weights(random, mixed ? eight_ : four_, inner, width, storage_[1])};
    const HostMatrix down = Weights(random, eight_, width, inner, storage_[2]);
    gate_up_ = Pack(gate_up);
    down_ = Pack({&down, 1});
  }
  static HostMatrix Weights(Random& random, const GgmlLayout& layout, int64_t rows, int64_t cols,
                            std::vector<std::byte>& storage) {
    const HostMatrix host = RandomPackedMatrix(random, layout, rows, cols, storage);
    // Small, so that chains of products stay finite.
    for (size_t at = 0; at < storage.size(); at += layout.block_bytes) {
      const uint16_t scale = FloatToHalf(static_cast<float>(UniformReal(random, 1e-4, 3e-4)));
      std::memcpy(&storage[at], &scale, 2);
      if (layout.type != GgmlType::kQ4_1) continue;
      const uint16_t low = FloatToHalf(-7.5f * HalfToFloat(scale));
      std::memcpy(&storage[at + 2], &low, 2);
    }
    return host;
  }
  // `apart`: each op is a step of its own, so that nothing is done together.
  struct Results {
    HostTensor normed, both, activated, residual;
  };
  Results Run(const HostTensor& start, const std::vector<int32_t>& rows, bool apart) {
    const auto count = static_cast<int64_t>(rows.size());
    const int64_t width = down_->rows();
    const TensorView source = device_.Put(start, 4);
    const TensorView residual = device_.Put(HostTensor(count, width));
    const float* norm = device_.Put(std::vector<float>(static_cast<size_t>(width), 0.7f));
    const TensorView normed = device_.Empty(count, width, 8, GetParam());
    const TensorView both = device_.Empty(count, gate_up_->rows(), 0, GetParam());
    const TensorView activated = device_.Empty(count, down_->cols(), 8, GetParam());
    const auto finish = [&] {
      if (!apart) return;
      EXPECT_EQ(device_->Finish(), absl::OkStatus());
      PlanRows(count);
    };
    PlanRows(count);
    device_->RmsNorm({source, norm, kPackedEps, rows, normed});
    finish();
    device_->MatMul({normed, gate_up_.get(), both, false, true});
    finish();
    device_->SwiGlu({both, activated});
    finish();
    device_->MatMul({activated, down_.get(), residual, true, true});
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    Results results = {device_.Get(normed), device_.Get(both), device_.Get(activated),
                       device_.Get(residual)};
    device_.Clear();
    return results;
  }

  GgmlLayout four_, eight_;
  std::vector<std::byte> storage_[3];
  std::unique_ptr<Matrix> gate_up_, down_;
};

TEST_P(CudaPackedLayer, TheOpsAroundAProductMatchThemselvesApart) {
  Random random(57);
  for (const bool mixed : {false, true}) {
    for (const int64_t inner : {160, 3072}) {
      Make(random, 1024, inner, mixed);
      const HostTensor start = Normal(random, 70, 1024, 3.0f);
      for (const int64_t count : {1, 2, 8, 9, 16, 17, 64, 66}) {
        std::vector<int32_t> rows;
        for (int64_t i = 0; i < count; ++i) {
          rows.push_back(static_cast<int32_t>(Uniform(random, 0, 69)));
        }
        const Results together = Run(start, rows, false);
        const Results apart = Run(start, rows, true);
        EXPECT_EQ(together.normed.data, apart.normed.data) << count;
        // With SwiGLU integers are cut otherwise.
        if (count > cuda::kMostIntegerRows) {
          EXPECT_EQ(together.both.data, apart.both.data) << count;
        }
        for (int64_t r = 0; r < count; ++r) {
          const double tolerance = 2 * RoundingError(GetParam()) + 1e-5;
          EXPECT_LT(RelativeError(together.both.row(r), apart.both.row(r), 2 * inner), tolerance);
          EXPECT_LT(RelativeError(together.activated.row(r), apart.activated.row(r), inner),
                    tolerance);
          EXPECT_LT(RelativeError(together.residual.row(r), apart.residual.row(r), 1024),
                    2 * tolerance);
        }
      }
    }
  }
}

TEST_P(CudaPackedLayer, ARowDoesNotFeelTheRowsBesideIt) {
  Random random(58);
  Make(random, 1024, 3072, false);
  const HostTensor start = Normal(random, kMostFewRows, 1024);
  std::vector<int32_t> all;
  for (int32_t i = 0; i < kMostFewRows; ++i) all.push_back(i);
  const auto run = [&](int64_t first, int64_t rows) {
    return Run(start, {all.begin() + first, all.begin() + first + rows}, false).residual;
  };
  const HostTensor two_of_layer = run(0, cuda::kMostIntegerRows);
  const HostTensor few_of_layer = run(0, cuda::kMostNarrowRows);
  const auto multiply = [&](int64_t first, int64_t rows) {
    HostTensor x(rows, 1024);
    std::copy_n(start.row(first), rows * 1024, x.data.data());
    return Multiply(*gate_up_, AsComputed(x), nullptr);
  };
  const HostTensor two = multiply(0, cuda::kMostIntegerRows);
  const HostTensor few = multiply(0, cuda::kMostNarrowRows);
  const HostTensor many = multiply(0, kMostFewRows);
  for (const int64_t rows : {1, 2, 5, 8, 11, 16, 23, 32, 50}) {
    // Another kernel may take more rows: each has its own bits.
    const HostTensor& whole = rows <= cuda::kMostIntegerRows  ? two
                              : rows <= cuda::kMostNarrowRows ? few
                                                              : many;
    const int64_t first = Uniform(random, 0, whole.rows - rows);
    const HostTensor got = multiply(first, rows);
    EXPECT_TRUE(std::equal(got.data.begin(), got.data.end(), whole.row(first))) << rows << " rows";
    if (rows > cuda::kMostNarrowRows) continue;
    const HostTensor& of_layer = rows <= cuda::kMostIntegerRows ? two_of_layer : few_of_layer;
    const int64_t begin = Uniform(random, 0, of_layer.rows - rows);
    const HostTensor some = run(begin, rows);
    EXPECT_TRUE(std::equal(some.data.begin(), some.data.end(), of_layer.row(begin)))
        << rows << " rows";
  }
}

// Launched, captured, replayed. Each kernel starts while the one before it ends, so a missing wait
// would show as a changing result.
TEST_P(CudaPackedLayer, ReplaysGiveTheSameBits) {
  Random random(59);
  Make(random, 512, 1536, false);
  for (const int64_t rows : {1, 2, 8, 16, 33, 64, 100}) {
    const TensorView start = device_.Put(Normal(random, rows, 512));
    const TensorView residual = device_.Empty(rows, 512);
    const float* norm = device_.Put(std::vector<float>(512, 1.0f));
    const TensorView normed = device_.Empty(rows, 512, 0, GetParam());
    const TensorView both = device_.Empty(rows, 2 * 1536, 0, GetParam());
    const TensorView activated = device_.Empty(rows, 1536, 0, GetParam());
    HostTensor first;
    for (int run = 0; run < 12; ++run) {
      PlanRows(rows);
      device_->RmsNorm({start, norm, kPackedEps, {}, normed});
      device_->MatMul({normed, gate_up_.get(), both, false, true});
      device_->SwiGlu({both, activated});
      device_->MatMul({activated, down_.get(), residual, false, true});
      for (int layer = 0; layer < 8; ++layer) {
        device_->RmsNorm({residual, norm, kPackedEps, {}, normed});
        device_->MatMul({normed, gate_up_.get(), both, false, true});
        device_->SwiGlu({both, activated});
        device_->MatMul({activated, down_.get(), residual, true, true});
      }
      ASSERT_EQ(device_->Finish(), absl::OkStatus());
      const HostTensor got = device_.Get(residual);
      if (run == 0) first = got;
      EXPECT_EQ(got.data, first.data) << "run " << run << ", " << rows << " rows";
    }
    device_.Clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaPackedProduct,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& type) { return std::string(Name(type.param)); });
INSTANTIATE_TEST_SUITE_P(Kernels, CudaPackedLayer,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& type) { return std::string(Name(type.param)); });

}  // namespace
}  // namespace eta::testing
