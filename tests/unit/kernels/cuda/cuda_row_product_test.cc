// Products of few rows on a GPU, with the ops that their kernel does along, against the reference.
// Every tensor that the separate ops would write is judged too.

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/rows/row_product.h"
#include "kernels/params/layer.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

constexpr float kEps = 1e-5f;

struct Shape {
  int64_t n;
  int64_t k;
};
// Ragged and whole, longer and shorter than what all warps take at once; with more tiles of
// channels than thread blocks; one whose K no kernel of few rows takes.
constexpr Shape kProductShapes[] = {{1, 8},     {16, 64},     {40, 200},   {96, 1024},
                                    {130, 576}, {3072, 2048}, {256, 8192}, {9000, 264},
                                    {56, 4104}, {64, 100},    {2, 16}};

class CudaRowProduct : public ::testing::TestWithParam<DType> {
 protected:
  CudaRowProduct() : device_({.name = "cuda", .compute = GetParam()}) {}
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }

  HostTensor AsComputed(const HostTensor& values) const { return Rounded(values, GetParam()); }
  double rounding() const { return RoundingError(GetParam()); }

  std::unique_ptr<Matrix> Pack(Device& device, const HostTensor& weight) {
    std::vector<std::byte> storage;
    const HostMatrix host = ToHostMatrix(weight, DType::kFloat32, storage);
    return *device->Pack({&host, 1}, WeightFormat::kNative);
  }
  void Plan(Device& device, int64_t rows) {
    const SequenceRows sequence = {.num_rows = static_cast<int32_t>(rows)};
    device->Plan({std::span(tokens_).first(static_cast<size_t>(rows)), {&sequence, 1}});
  }
  void ExpectNear(const HostTensor& got, const HostTensor& want, double tolerance,
                  const char* what) {
    ASSERT_EQ(got.rows, want.rows);
    for (int64_t r = 0; r < want.rows; ++r) {
      EXPECT_LT(RelativeError(got.row(r), want.row(r), want.cols), tolerance)
          << what << ": row " << r << " of " << want.rows << ", " << want.cols << " columns";
    }
  }

  Device judge_{{"reference"}};
  Device device_;
  std::vector<int32_t> tokens_ = std::vector<int32_t>(64, 0);
};

// What a layer's part gives: the norm, the product, and SwiGlu of it.
struct Outputs {
  HostTensor normed;
  HostTensor product;
  HostTensor activated;
};

struct Part {
  HostTensor residual;          // [rows, K]
  HostTensor norm;              // [K]
  HostTensor bias{};            // [N]; empty: none
  std::vector<int32_t> rows{};  // of the residual; empty: all
  bool activates = false;
  bool apart = false;  // the step is finished after each op, so nothing is done together
};

std::span<const float> RowOf(const HostTensor& tensor, int64_t row) {
  return {tensor.row(row), static_cast<size_t>(tensor.cols)};
}

Outputs RunPart(Device& device, const Matrix& weight, const Part& part,
                const std::function<void(int64_t)>& plan) {
  const int64_t rows =
      part.rows.empty() ? part.residual.rows : static_cast<int64_t>(part.rows.size());
  const DType type = device.activation_dtype();
  const TensorView residual = device.Put(part.residual, 4);
  const float* norm = device.Put(part.norm.data);
  const float* bias = part.bias.data.empty() ? nullptr : device.Put(part.bias.data);
  const int64_t n = weight.rows();
  const TensorView normed = device.Empty(rows, weight.cols(), 8, type);
  const TensorView product = device.Empty(rows, n, 0, part.activates ? type : DType::kFloat32);
  const TensorView activated = device.Empty(rows, n / 2, 8, type);
  const auto finish = [&] {
    if (!part.apart) return;
    EXPECT_EQ(device->Finish(), absl::OkStatus());
    plan(rows);
  };
  plan(rows);
  device->RmsNorm({residual, norm, kEps, part.rows, normed});
  finish();
  device->MatMul({normed, &weight, product, false, true});
  finish();
  if (bias != nullptr) device->AddBias({product, bias});
  finish();
  if (part.activates) device->SwiGlu({product, activated});
  EXPECT_EQ(device->Finish(), absl::OkStatus());
  Outputs outputs = {device.Get(normed), device.Get(product), {}};
  if (part.activates) outputs.activated = device.Get(activated);
  return outputs;
}

TEST_P(CudaRowProduct, MatchesTheReferenceForEveryNumberOfRows) {
  Random random(31);
  for (const Shape& shape : kProductShapes) {
    const HostTensor weights = AsComputed(Normal(random, shape.n, shape.k));
    const auto want_weight = Pack(judge_, weights);
    const auto got_weight = Pack(device_, weights);
    for (int64_t rows = 1; rows <= cuda::kMostProductRows + 1; ++rows) {
      const HostTensor x = AsComputed(Normal(random, rows, shape.k));
      const HostTensor onto = Normal(random, rows, shape.n);
      for (const bool accumulate : {false, true}) {
        HostTensor results[2];
        for (int i = 0; i < 2; ++i) {
          Device& on = i == 0 ? judge_ : device_;
          const TensorView in = on.Put(x, 8, on.activation_dtype());
          const TensorView out = accumulate ? on.Put(onto, 3) : on.Empty(rows, shape.n, 3);
          Plan(on, rows);
          on->MatMul({in, (i == 0 ? want_weight : got_weight).get(), out, accumulate, true});
          ASSERT_EQ(on->Finish(), absl::OkStatus());
          results[i] = on.Get(out);
        }
        for (int64_t r = 0; r < rows; ++r) {
          for (int64_t c = 0; c < shape.n; ++c) {
            const double scale = Norm(x.row(r), shape.k) * Norm(weights.row(c), shape.k) + 1.0;
            ASSERT_NEAR(results[1].row(r)[c], results[0].row(r)[c], 4e-6 * scale)
                << "row " << r << " of " << rows << ", column " << c << " of " << shape.n
                << ", inner " << shape.k;
          }
        }
      }
      judge_.Clear();
      device_.Clear();
    }
  }
}

TEST_P(CudaRowProduct, TheOpsAroundItMatchTheReferenceAndThemselvesApart) {
  Random random(32);
  for (const Shape& shape : kProductShapes) {
    // A row of few columns may cancel almost, and then its error has no bound.
    if (shape.n < 16 || shape.n % 2 != 0) continue;
    const HostTensor weights =
        AsComputed(Normal(random, shape.n, shape.k, 1.0f / static_cast<float>(shape.k)));
    const auto want_weight = Pack(judge_, weights);
    const auto got_weight = Pack(device_, weights);
    for (const int64_t rows : {0, 1, 2, 3}) {
      // 0: all that there are, in order.
      Part part = {.residual = Normal(random, rows == 0 ? 2 : 20, shape.k, 3.0f),
                   .norm = Normal(random, 1, shape.k)};
      for (int64_t r = 0; r < rows; ++r) {
        part.rows.push_back(static_cast<int32_t>(Uniform(random, 0, 19)));
      }
      for (const bool activates : {false, true}) {
        part.activates = activates;
        part.bias = activates ? HostTensor() : Normal(random, 1, shape.n);
        part.apart = false;
        const auto plan = [this](Device& on) {
          return [this, &on](int64_t count) { Plan(on, count); };
        };
        const Outputs want = RunPart(judge_, *want_weight, part, plan(judge_));
        const Outputs together = RunPart(device_, *got_weight, part, plan(device_));
        part.apart = true;
        const Outputs apart = RunPart(device_, *got_weight, part, plan(device_));
        const double tolerance = 2 * rounding() + 1e-5;
        ExpectNear(together.normed, want.normed, tolerance, "norm");
        ExpectNear(together.product, want.product, tolerance, "product");
        ExpectNear(together.product, apart.product, tolerance, "product apart");
        if (activates) {
          ExpectNear(together.activated, want.activated, 2 * tolerance, "SwiGLU");
          ExpectNear(together.activated, apart.activated, 2 * tolerance, "SwiGLU apart");
        }
        judge_.Clear();
        device_.Clear();
      }
    }
  }
}

TEST_P(CudaRowProduct, ARowDoesNotFeelTheRowBesideIt) {
  Random random(33);
  for (const Shape& shape : {Shape{130, 576}, Shape{3072, 2048}, Shape{256, 8192}}) {
    const auto weight = Pack(device_, Normal(random, shape.n, shape.k, 0.02f));
    const Part all = {.residual = Normal(random, cuda::kMostProductRows, shape.k),
                      .norm = Normal(random, 1, shape.k),
                      .activates = true};
    const auto plan = [&](int64_t count) { Plan(device_, count); };
    const Outputs want = RunPart(device_, *weight, all, plan);
    for (int32_t row = 0; row < cuda::kMostProductRows; ++row) {
      Part alone = all;
      alone.rows = {row};
      const Outputs got = RunPart(device_, *weight, alone, plan);
      EXPECT_TRUE(std::ranges::equal(got.product.data, RowOf(want.product, row))) << row;
      EXPECT_TRUE(std::ranges::equal(got.activated.data, RowOf(want.activated, row))) << row;
      device_.Clear();
    }
  }
}

// A chain as in a layer, over and over: launched, captured, replayed. Each kernel starts while the
// one before it ends, so a missing wait would show as a changing result.
TEST_P(CudaRowProduct, ReplaysGiveTheSameBits) {
  Random random(34);
  constexpr int64_t kWidth = 512;
  constexpr int64_t kInner = 1536;
  const auto up = Pack(device_, Normal(random, 2 * kInner, kWidth, 0.03f));
  const auto down = Pack(device_, Normal(random, kWidth, kInner, 0.03f));
  for (const int64_t rows : {1, 2, 8}) {
    const HostTensor start = Normal(random, rows, kWidth);
    const TensorView residual = device_.Put(start);
    const TensorView kept = device_.Put(start, 0, GetParam());
    const float* norm = device_.Put(std::vector<float>(kWidth, 1.0f));
    const auto one = Pack(device_, [] {
      HostTensor identity(kWidth, kWidth);
      for (int64_t i = 0; i < kWidth; ++i) identity.row(i)[i] = 1.0f;
      return identity;
    }());
    const TensorView normed = device_.Empty(rows, kWidth, 0, GetParam());
    const TensorView both = device_.Empty(rows, 2 * kInner, 0, GetParam());
    const TensorView activated = device_.Empty(rows, kInner, 0, GetParam());
    HostTensor first;
    for (int run = 0; run < 12; ++run) {
      Plan(device_, rows);
      device_->MatMul({kept, one.get(), residual, false, true});
      for (int layer = 0; layer < 8; ++layer) {
        device_->RmsNorm({residual, norm, kEps, {}, normed});
        device_->MatMul({normed, up.get(), both, false, true});
        device_->SwiGlu({both, activated});
        device_->MatMul({activated, down.get(), residual, true, true});
      }
      ASSERT_EQ(device_->Finish(), absl::OkStatus());
      const HostTensor got = device_.Get(residual);
      if (run == 0) first = got;
      EXPECT_EQ(got.data, first.data) << "run " << run << ", " << rows << " rows";
    }
    device_.Clear();
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaRowProduct,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16),
                         [](const auto& type) { return std::string(Name(type.param)); });

}  // namespace
}  // namespace eta::testing
