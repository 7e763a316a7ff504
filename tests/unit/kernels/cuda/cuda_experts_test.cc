// The ops of a layer's experts on a GPU: routing against the reference's, to the last place, with
// ties, NaN and padded rows; products on tensor cores, few and many rows, whoever they choose; and
// graphs, which are replayed with other choices.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <memory>
#include <numeric>
#include <span>
#include <string>
#include <vector>

#include "kernels/params/experts.h"
#include "kernels/params/layer.h"
#include "tests/testing/kernels/expert_step.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

// Whole and ragged; more K than all warps take at once, and less than one does; K that tensor cores
// do not take.
constexpr ExpertLayer kExpertLayers[] = {
    {128, 8, 256, 96}, {5, 2, 1032, 40}, {60, 4, 64, 776},        {1, 1, 136, 24},
    {9, 9, 72, 200},   {12, 3, 100, 36}, {32, 4, 256, 104, true}, {12, 3, 100, 36, true}};

class CudaRouting : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }
};

TEST_F(CudaRouting, IsTheReferencesWithTiesNaNAndPaddedRows) {
  Random random(51);
  for (const int32_t experts : {1, 7, 33, 128, 129, 256, 300, 1024}) {
    for (const int32_t per_row : {1, 8, 64}) {
      if (per_row > experts) continue;
      const ExpertLayer layer = {experts, per_row, 8, 8};
      Device judge({"reference"});
      Device device({"cuda"});
      ExpertStep want(judge, layer, 1100);
      ExpertStep got(device, layer, 1100);
      for (const int64_t rows : {1, 3, 16, 33, 64, 65, 200, 1100}) {
        SCOPED_TRACE(std::to_string(experts) + " experts, " + std::to_string(per_row) +
                     " of a row, " + std::to_string(rows) + " rows");
        HostTensor logits = Normal(random, rows, experts);
        for (float& x : logits.data) {
          if (Often(random, 3)) x = std::round(x);
          if (Often(random, 2000)) x = std::numeric_limits<float>::quiet_NaN();
          if (Often(random, 2000)) x = -std::numeric_limits<float>::infinity();
          if (Often(random, 4000)) x = std::numeric_limits<float>::infinity();
        }
        const bool normalise = rows % 2 == 0;
        for (ExpertStep* step : {&want, &got}) {
          step->Fill(step->logits(), logits);
          step->Begin(rows);
          step->Route(normalise);
        }
        ASSERT_EQ(judge->Finish(), absl::OkStatus());
        ASSERT_EQ(device->Finish(), absl::OkStatus());
        EXPECT_EQ(got.counts(), want.counts());
        ASSERT_EQ(got.experts(), want.experts());
        EXPECT_EQ(got.place_end(), want.place_end());
        EXPECT_EQ(got.places_of_rows(), want.places_of_rows());
        EXPECT_EQ(got.rows_of_places(), want.rows_of_places());
        const std::vector<float> weights = got.weights();
        const std::vector<float> expected = want.weights();
        for (size_t i = 0; i < weights.size(); ++i) {
          ASSERT_EQ(std::isnan(weights[i]), std::isnan(expected[i])) << i;
          if (std::isnan(expected[i])) continue;
          ASSERT_NEAR(weights[i], expected[i], 1e-6) << i;
        }
      }
    }
  }
}

class CudaExperts : public ::testing::TestWithParam<DType> {
 protected:
  CudaExperts() : device_({.name = "cuda", .compute = GetParam()}) {}
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }

  HostTensor AsComputed(const HostTensor& values) const { return Rounded(values, GetParam()); }

  static std::unique_ptr<ExpertStack> Pack(Device& device, std::span<const HostTensor> weights) {
    std::vector<std::unique_ptr<Matrix>> packed;
    for (const HostTensor& weight : weights) {
      std::vector<std::byte> storage;
      const HostMatrix host = ToHostMatrix(weight, DType::kFloat32, storage);
      packed.push_back(*device->Pack({&host, 1}, WeightFormat::kNative));
    }
    return *device->experts().Stack(std::move(packed));
  }
  void MakeWeights(Random& random, const ExpertLayer& layer) {
    up_.clear();
    down_.clear();
    for (int32_t e = 0; e < layer.experts; ++e) {
      const auto make = [&](int64_t n, int64_t k) {
        return AsComputed(Normal(random, n, k, 1.0f / std::sqrt(static_cast<float>(k))));
      };
      up_.push_back(make(2 * layer.width, layer.dim));
      down_.push_back(make(layer.dim, layer.width));
    }
  }

  Device device_;
  std::vector<HostTensor> up_;    // [E] of [2 F', D]
  std::vector<HostTensor> down_;  // [E] of [D, F']
};

TEST_P(CudaExperts, ProductsAreTheReferencesForFewRowsAndMany) {
  Random random(52);
  const double rounding = RoundingError(GetParam());
  for (const ExpertLayer& layer : kExpertLayers) {
    MakeWeights(random, layer);
    Device judge({"reference"});
    device_.Clear();
    const auto judge_up = Pack(judge, up_);
    const auto judge_down = Pack(judge, down_);
    const auto up = Pack(device_, up_);
    const auto down = Pack(device_, down_);
    constexpr int64_t kMostRows = 300;
    ExpertStep want(judge, layer, kMostRows);
    ExpertStep got(device_, layer, kMostRows);
    for (const int64_t rows : {1, 2, 3, 9, 17, 64, 65, 300}) {
      for (const Crowd crowd : {Crowd::kSpread, Crowd::kTogether, Crowd::kFewExperts}) {
        if (rows == 300 && crowd == Crowd::kFewExperts) continue;
        const std::string where = std::to_string(layer.experts) + " experts, " +
                                  std::to_string(layer.dim) + " to " + std::to_string(layer.width) +
                                  ", " + std::to_string(rows) + " rows, crowd " +
                                  std::to_string(static_cast<int>(crowd));
        const HostTensor logits = Logits(random, rows, layer.experts, crowd);
        const HostTensor x = AsComputed(Normal(random, rows, layer.dim));
        const HostTensor onto = Normal(random, rows, layer.dim);
        const auto run = [&](Device& on, ExpertStep& step, const ExpertStack& first,
                             const ExpertStack& second, bool apart) {
          step.Fill(step.logits(), logits);
          step.Fill(step.x(), x);
          step.Fill(step.out(), onto);
          step.Begin(rows);
          step.Route(true);
          step.Multiply(first, second, apart);
          ASSERT_EQ(on->Finish(), absl::OkStatus()) << where;
        };
        run(judge, want, *judge_up, *judge_down, false);
        run(device_, got, *up, *down, true);
        const HostTensor wide = got.Wide();
        const HostTensor narrow = got.Narrow();
        ExpectNear(wide, want.Wide(), 1e-5 + rounding, where + ": gate and up");
        ExpectNear(got.Activated(), want.Activated(), 1e-5 + 4 * rounding, where + ": activated");
        ExpectNear(narrow, want.Narrow(), 1e-5 + 4 * rounding, where + ": down");
        ExpectNear(got.Out(), want.Out(), 1e-5 + 4 * rounding, where + ": sum");
        run(device_, got, *up, *down, false);
        EXPECT_EQ(got.Wide().data, wide.data) << where;
        EXPECT_EQ(got.counts(), want.counts()) << where;
        EXPECT_EQ(got.place_end(), want.place_end()) << where;
        EXPECT_EQ(got.places_of_rows(), want.places_of_rows()) << where;
        EXPECT_EQ(got.rows_of_places(), want.rows_of_places()) << where;
        ExpectNear(got.Activated(), want.Activated(), 1e-5 + 3 * rounding,
                   where + ": activated along");
        ExpectNear(got.Narrow(), want.Narrow(), 1e-5 + 4 * rounding, where + ": down along");
        ExpectNear(got.Out(), want.Out(), 1e-5 + 4 * rounding, where + ": sum along");
      }
    }
  }
}

TEST_P(CudaExperts, ARowHasTheSameBitsAmongUpTo64) {
  Random random(53);
  for (const ExpertLayer& layer : kExpertLayers) {
    MakeWeights(random, layer);
    device_.Clear();
    const auto up = Pack(device_, up_);
    const auto down = Pack(device_, down_);
    ExpertStep step(device_, layer, 64);
    for (const Crowd crowd : {Crowd::kSpread, Crowd::kTogether}) {
      const HostTensor logits = Logits(random, 64, layer.experts, crowd);
      const HostTensor x = Normal(random, 64, layer.dim);
      const HostTensor onto = Normal(random, 64, layer.dim);
      const auto run = [&](int64_t first, int64_t rows) {
        const auto some = [&](const HostTensor& from) {
          HostTensor part(rows, from.cols);
          std::copy_n(from.row(first), rows * from.cols, part.data.data());
          return part;
        };
        step.Fill(step.logits(), some(logits));
        step.Fill(step.x(), some(x));
        step.Fill(step.out(), some(onto));
        step.Begin(rows);
        step.Route(true, /*counts=*/false);
        step.Multiply(*up, *down, false);
        EXPECT_EQ(device_->Finish(), absl::OkStatus());
        return step.Out();
      };
      const HostTensor together = run(0, 64);
      for (const auto& [first, rows] : {std::pair{0, 1}, {63, 1}, {11, 3}, {7, 5}, {20, 40}}) {
        const HostTensor some = run(first, rows);
        EXPECT_TRUE(std::equal(some.data.begin(), some.data.end(), together.row(first)))
            << "rows from " << first << ", " << rows << " of them";
      }
    }
  }
}

// Steps of 33 to 48 rows are one program, whatever their rows choose.
TEST_P(CudaExperts, AReplayedStepFollowsItsOwnChoice) {
  Random random(54);
  const ExpertLayer layer = {40, 4, 128, 64};
  MakeWeights(random, layer);
  const auto up = Pack(device_, up_);
  const auto down = Pack(device_, down_);
  ExpertStep replayed(device_, layer, 48);
  ExpertStep plain(device_, layer, 48);
  for (int i = 0; i < 12; ++i) {
    const int64_t rows = 48 - i % 8;
    ASSERT_EQ(device_->PaddedRows(rows), 48);
    const Crowd crowd = static_cast<Crowd>(i % 3);
    const HostTensor logits = Logits(random, rows, layer.experts, crowd);
    const HostTensor x = Normal(random, rows, layer.dim);
    const HostTensor onto = Normal(random, rows, layer.dim);
    for (ExpertStep* step : {&replayed, &plain}) {
      step->Fill(step->logits(), logits);
      step->Fill(step->x(), x);
      step->Fill(step->out(), onto);
      step->Begin(rows);
      step->Route(true);
      step->Multiply(*up, *down, /*apart=*/step == &plain);
      ASSERT_EQ(device_->Finish(), absl::OkStatus());
    }
    EXPECT_EQ(replayed.counts(), plain.counts()) << i;
    EXPECT_EQ(std::accumulate(plain.counts().begin(), plain.counts().end(), 0), 4 * rows);
    EXPECT_EQ(replayed.experts(), plain.experts()) << i;
    EXPECT_EQ(replayed.places_of_rows(), plain.places_of_rows()) << i;
    EXPECT_EQ(replayed.Wide().data, plain.Wide().data) << i;
    ExpectNear(replayed.Out(), plain.Out(), 1e-5 + RoundingError(GetParam()), "sum");
  }
}

// A router keeps its numbers whatever products are computed in.
TEST_P(CudaExperts, ARoutersWeightsAreExact) {
  Random random(55);
  for (const auto& [n, k] : {std::pair{128, 256}, {5, 100}, {33, 1040}}) {
    for (const DType stored : {DType::kFloat32, DType::kBFloat16, DType::kFloat16}) {
      const HostTensor weight = Normal(random, n, k);
      std::vector<std::byte> storage;
      HostMatrix host = ToHostMatrix(weight, stored, storage);
      host.exact = true;
      for (const int64_t rows : {1, 3, 17, 90}) {
        const HostTensor x = AsComputed(Normal(random, rows, k));
        const auto multiply = [&](Device& device) {
          const auto matrix = *device->Pack({&host, 1}, WeightFormat::kNative);
          const TensorView out = device.Empty(rows, n);
          device->MatMul({device.Put(x, 0, device.activation_dtype()), matrix.get(), out, false});
          EXPECT_EQ(device->Finish(), absl::OkStatus());
          return device.Get(out);
        };
        Device judge({"reference"});
        ExpectNear(multiply(device_), multiply(judge), 1e-5, "router of " + std::to_string(n));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, CudaExperts,
                         ::testing::Values(DType::kBFloat16, DType::kFloat16, DType::kFloat32),
                         [](const auto& test) { return std::string(Name(test.param)); });

}  // namespace
}  // namespace eta::testing
