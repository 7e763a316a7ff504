// Which ops of a program become one product, of few rows or of experts. No device is needed.

#include <gtest/gtest.h>

#include <array>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "kernels/cuda/fused_product.h"

namespace eta::cuda {
namespace {

constexpr int64_t kWidth = 64;
constexpr int64_t kInner = 96;

// Memory that nobody reads, to tell tensors apart.
class FuseProductOf : public ::testing::Test {
 protected:
  TensorView Tensor(int64_t rows, int64_t cols, DType dtype) {
    memory_.emplace_back(static_cast<size_t>(rows * cols));
    return {memory_.back().data(), rows, cols, cols, dtype};
  }
  TensorView Floats(int64_t cols) { return Tensor(rows_, cols, DType::kFloat32); }
  TensorView Narrow(int64_t cols) { return Tensor(rows_, cols, DType::kBFloat16); }
  Weight MakeWeight(int64_t n, int64_t k) {
    return {Tensor(n, k, DType::kFloat32).data, DType::kBFloat16, n, k};
  }

  void Layer() {
    const TensorView residual = Floats(kWidth);
    const TensorView normed = Narrow(kWidth);
    const TensorView gate_up = Narrow(2 * kInner);
    const TensorView activated = Narrow(kInner);
    ops_ = {RmsNormOp{residual, bias_.data(), 1e-5f, false, 0, normed},
            MatMulOp{normed, MakeWeight(2 * kInner, kWidth), gate_up, false},
            SwiGluParams{gate_up, activated},
            MatMulOp{activated, MakeWeight(kWidth, kInner), residual, true},
            AddBiasParams{residual, bias_.data()}};
  }
  size_t NumFused(size_t from = 0) const {
    const auto fused = FuseProduct(std::span(ops_).subspan(from));
    return fused ? fused->num_ops : 0;
  }
  template <typename T>
  T& At(size_t i) {
    return std::get<T>(ops_[i]);
  }

  int64_t rows_ = 2;
  std::array<float, 256> bias_{};
  std::vector<Op> ops_;

 private:
  std::vector<std::vector<float>> memory_;
};

TEST_F(FuseProductOf, ALayer) {
  Layer();
  const auto first = FuseProduct(ops_);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->num_ops, 3u);
  EXPECT_EQ(first->product.norm.weight, bias_.data());
  EXPECT_EQ(first->product.activated, At<SwiGluParams>(2).out);
  EXPECT_FALSE(first->gathers.has_value());
  const auto second = FuseProduct(std::span(ops_).subspan(3));
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->num_ops, 2u);
  EXPECT_TRUE(second->product.accumulate);
  EXPECT_EQ(second->product.bias, bias_.data());
  EXPECT_EQ(second->product.norm.weight, nullptr);
  EXPECT_EQ(NumFused(2), 0u);
}

TEST_F(FuseProductOf, AGateWithGelu) {
  Layer();
  EXPECT_EQ(FuseProduct(ops_)->product.activation, Activation::kSilu);
  At<SwiGluParams>(2).activation = Activation::kGelu;
  EXPECT_EQ(FuseProduct(ops_)->num_ops, 3u);
  EXPECT_EQ(FuseProduct(ops_)->product.activation, Activation::kGelu);
}

// What it adds to may be the residual, which other thread blocks then read while it is written.
TEST_F(FuseProductOf, NoNormThatAdds) {
  Layer();
  At<RmsNormOp>(0).add = true;
  EXPECT_EQ(NumFused(), 0u);
}

TEST_F(FuseProductOf, RowsThatTheNormGathers) {
  Layer();
  At<RmsNormOp>(0).gathers = true;
  At<RmsNormOp>(0).rows = -128;
  EXPECT_EQ(FuseProduct(ops_)->gathers, -128);
}

TEST_F(FuseProductOf, AsksForWeightsBehindOtherWorkAlone) {
  Layer();
  const Weight next = At<MatMulOp>(3).weight;
  EXPECT_EQ(FuseProduct(ops_)->product.ahead[0], Weight());
  ops_.insert(ops_.begin() + 3, RopeParams{});
  EXPECT_EQ(FuseProduct(ops_)->product.ahead[0], next);
  EXPECT_EQ(FuseProduct(ops_)->product.ahead[1], Weight());
}

TEST_F(FuseProductOf, NoMoreThanFewRows) {
  rows_ = kMostProductRows;
  Layer();
  EXPECT_EQ(NumFused(), 3u);
  rows_ = kMostProductRows + 1;
  Layer();
  EXPECT_EQ(NumFused(), 0u);
}

TEST_F(FuseProductOf, NoOpThatTakesAnotherTensor) {
  Layer();
  At<SwiGluParams>(2).gate_up = Narrow(2 * kInner);
  EXPECT_EQ(NumFused(), 2u);
  At<MatMulOp>(1).x = Narrow(kWidth);
  EXPECT_EQ(NumFused(), 0u);
  Layer();
  At<AddBiasParams>(4).x = At<AddBiasParams>(4).x.Columns(0, kWidth / 2);
  EXPECT_EQ(NumFused(3), 1u);
}

TEST_F(FuseProductOf, NoOpThatWritesWhatAnotherReads) {
  Layer();
  At<SwiGluParams>(2).out.data = At<RmsNormOp>(0).x.data;
  EXPECT_EQ(NumFused(), 2u);
  Layer();
  At<RmsNormOp>(0).out.data = At<RmsNormOp>(0).x.data;
  At<MatMulOp>(1).x.data = At<RmsNormOp>(0).x.data;
  EXPECT_EQ(NumFused(), 0u);
  Layer();
  At<MatMulOp>(1).out = At<RmsNormOp>(0).x;
  EXPECT_EQ(NumFused(), 0u);
  Layer();
  At<MatMulOp>(1).accumulate = true;
  EXPECT_EQ(NumFused(), 2u);
}

// Behind attention: its product, gate and up, down, the next layer's Q, K and V, and what appends
// them. Every product takes and adds to what those before it wrote.
class FuseChainOf : public FuseProductOf {
 protected:
  void Layer() {
    FuseProductOf::Layer();
    const TensorView residual = At<RmsNormOp>(0).x;
    const TensorView normed = At<RmsNormOp>(0).out;
    ops_.insert(ops_.begin(),
                MatMulOp{Narrow(2 * kWidth), MakeWeight(kWidth, 2 * kWidth), residual, true});
    ops_.push_back(RmsNormOp{residual, bias_.data(), 1e-5f, false, 0, normed});
    ops_.push_back(MatMulOp{normed, MakeWeight(kInner, kWidth), Floats(kInner), false});
    ops_.push_back(RopeParams{});
    ops_.push_back(MatMulOp{Narrow(kWidth), MakeWeight(kWidth, kWidth), residual, true});
  }
  std::vector<size_t> Counts(size_t from = 0) const {
    std::vector<size_t> counts;
    for (const auto& fused : FuseChain(std::span(ops_).subspan(from))) {
      counts.push_back(fused.num_ops);
    }
    return counts;
  }
};

TEST_F(FuseChainOf, ALayer) {
  Layer();
  EXPECT_EQ(Counts(), (std::vector<size_t>{1, 3, 2, 2}));
  const std::vector<FusedProduct> chain = FuseChain(ops_);
  for (size_t i = 0; i < 3; ++i) EXPECT_EQ(chain[i].product.ahead[0], Weight());
  EXPECT_EQ(chain[3].product.ahead[0], std::get<MatMulOp>(ops_.back()).weight);
  EXPECT_EQ(chain[3].product.norm.x, chain[2].product.out);
}

TEST_F(FuseChainOf, NoMoreThanTheKernelTakes) {
  Layer();
  std::erase_if(ops_, [](const Op& op) { return std::holds_alternative<RopeParams>(op); });
  EXPECT_EQ(Counts(), (std::vector<size_t>{1, 3, 2, 2}));
  EXPECT_EQ(Counts(1), (std::vector<size_t>{3, 2, 2, 1}));
}

TEST_F(FuseChainOf, EndsAtAnotherOp) {
  Layer();
  EXPECT_EQ(Counts(4), (std::vector<size_t>{2, 2}));
  EXPECT_EQ(Counts(8), (std::vector<size_t>{}));
  At<RmsNormOp>(6).add = true;
  EXPECT_EQ(Counts(), (std::vector<size_t>{1, 3, 2}));
  Layer();
  At<MatMulOp>(2).out.rows = kMostProductRows + 1;
  EXPECT_EQ(Counts(), (std::vector<size_t>{1}));
}

TEST_F(FuseChainOf, TheLastNormMayGather) {
  Layer();
  At<RmsNormOp>(6).gathers = true;
  At<RmsNormOp>(6).rows = 256;
  EXPECT_EQ(FuseChain(ops_).at(3).gathers, 256);
}

// Choice, gate and up, SwiGlu, down and sum of a layer with 6 experts, 2 for a row.
class FuseExpertsOf : public FuseProductOf {
 protected:
  void Layer() {
    const ExpertChoice choice = {.num_experts = 6, .per_row = 2, .experts = &number_};
    const TensorView normed = Narrow(kWidth);
    const TensorView wide = Places(2 * kInner, DType::kBFloat16);
    const TensorView activated = Places(kInner, DType::kBFloat16);
    const TensorView narrow = Places(kWidth, DType::kFloat32);
    ops_ = {RouteRowsOp{{Floats(6), true, choice, nullptr}, -1},
            ExpertProduct{normed, true, choice, Stack(2 * kInner, kWidth), wide},
            SwiGluParams{wide, activated},
            ExpertProduct{activated, false, choice, Stack(kWidth, kInner), narrow},
            AddExpertsParams{narrow, choice, Floats(kWidth)}};
  }
  std::optional<FusedExperts> FusedFrom(size_t from) const {
    return FuseExperts(std::span(ops_).subspan(from));
  }
  size_t NumFused(size_t from) const {
    const auto fused = FusedFrom(from);
    return fused ? fused->num_ops : 0;
  }

 private:
  TensorView Places(int64_t cols, DType dtype) { return Tensor(2 * rows_, cols, dtype); }
  ExpertWeights Stack(int64_t n, int64_t k) {
    const auto* data = reinterpret_cast<const std::byte*>(Tensor(6 * n, k, DType::kFloat32).data);
    return {data, DType::kBFloat16, 6, n, k};
  }

  int32_t number_ = 0;
};

TEST_F(FuseExpertsOf, ALayer) {
  Layer();
  const auto first = FusedFrom(0);
  ASSERT_TRUE(first.has_value());
  EXPECT_EQ(first->num_ops, 3u);
  EXPECT_EQ(first->route, &At<RouteRowsOp>(0));
  EXPECT_EQ(first->product.activated, At<SwiGluParams>(2).out);
  EXPECT_EQ(first->sum, nullptr);
  const auto second = FusedFrom(3);
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->num_ops, 2u);
  EXPECT_EQ(second->route, nullptr);
  EXPECT_EQ(second->sum, &At<AddExpertsParams>(4));
  EXPECT_EQ(NumFused(1), 2u);
  EXPECT_EQ(NumFused(2), 0u);
  EXPECT_EQ(NumFused(4), 0u);
}

TEST_F(FuseExpertsOf, NoOpThatTakesAnotherTensor) {
  Layer();
  At<SwiGluParams>(2).gate_up = Narrow(2 * kInner);
  EXPECT_EQ(NumFused(0), 2u);
  At<AddExpertsParams>(4).choice.per_row = 1;
  EXPECT_EQ(NumFused(3), 1u);
  ops_.erase(ops_.begin() + 1);
  EXPECT_EQ(NumFused(0), 0u);
}

TEST_F(FuseExpertsOf, NoOpThatWritesWhatAnotherReads) {
  Layer();
  At<RouteRowsOp>(0).params.logits.data = At<SwiGluParams>(2).out.data;
  EXPECT_EQ(NumFused(0), 2u);
  EXPECT_EQ(NumFused(1), 2u);
  Layer();
  At<SwiGluParams>(2).out.data = At<ExpertProduct>(1).x.data;
  EXPECT_EQ(NumFused(1), 1u);
  Layer();
  At<RouteRowsOp>(0).params.logits.data = At<ExpertProduct>(1).out.data;
  EXPECT_EQ(NumFused(0), 0u);
  Layer();
  At<AddExpertsParams>(4).out.data = At<ExpertProduct>(3).x.data;
  EXPECT_EQ(NumFused(3), 1u);
}

// Plain kernels do one op at a time.
TEST_F(FuseExpertsOf, NoSwiGluWithoutTensorCores) {
  Layer();
  At<ExpertProduct>(1).weights.dtype = DType::kFloat32;
  EXPECT_EQ(NumFused(1), 1u);
}

TEST_F(FuseExpertsOf, AProductInFrontAsksForNoWeightsBehindThem) {
  Layer();
  const std::vector<Op> experts = ops_;
  FuseProductOf::Layer();
  ops_.erase(ops_.begin() + 2, ops_.end());
  ops_.insert(ops_.end(), experts.begin(), experts.end());
  ops_.push_back(MatMulOp{Narrow(kWidth), MakeWeight(kWidth, kWidth), Floats(kWidth), false});
  EXPECT_EQ(FuseProduct(ops_)->product.ahead[0], Weight());
  std::erase_if(ops_, [](const Op& op) { return std::holds_alternative<ExpertProduct>(op); });
  EXPECT_EQ(FuseProduct(ops_)->product.ahead[0], std::get<MatMulOp>(ops_.back()).weight);
}

}  // namespace
}  // namespace eta::cuda
