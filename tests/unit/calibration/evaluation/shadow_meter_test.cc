// What full attention would have had, over a model's decode rows.
#include "calibration/evaluation/perplexity/shadow_meter.h"

#include <cmath>
#include <memory>
#include <vector>

#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/checkpoint/checkpoint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "kernels/backends/make_backend.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta::testing {
namespace {

class ShadowMeterTest : public ::testing::Test {
 protected:
  ShadowMeterTest()
      : backend_(*MakeBackend({.name = "reference"})),
        checkpoint_(*Checkpoint::Open(model_.path())) {
    const auto config = ParseModelConfig(checkpoint_.config_json());
    runner_ = *SequenceRunner::Create(
        checkpoint_, *backend_,
        {.geometry = MakeKvGeometry(*config, DType::kFloat32), .max_context = 128});
    windows_ = {std::vector<int32_t>(129)};
    for (size_t i = 0; i < 129; ++i) windows_[0][i] = static_cast<int32_t>(i * i * 41 % 8000);
  }

  std::optional<ShadowSummary> Measure(const AttentionOptions& options, double share) {
    const std::vector<EvaluatedAttention> ways = {{{.options = options}, "way"}};
    const auto scores = EvaluatePerplexity(OnlyRunner(*runner_), windows_, ways,
                                           {.prefill = 64, .recall = false, .mass = share});
    EXPECT_TRUE(scores.ok()) << scores.status();
    return (*scores)[0].shadow;
  }

  TinyModel model_;
  std::unique_ptr<Backend> backend_;
  Checkpoint checkpoint_;
  std::unique_ptr<SequenceRunner> runner_;
  std::vector<std::vector<int32_t>> windows_;
};

TEST_F(ShadowMeterTest, WhoReadsAllKeepsAll) {
  const auto all = Measure({.pinned_blocks = 100, .uniform_floor = false}, 1.0);
  ASSERT_TRUE(all.has_value());
  EXPECT_EQ(all->rows, 64);
  EXPECT_NEAR(all->mass, 1.0, 1e-6);
  EXPECT_NEAR(all->least_mass, 1.0, 1e-6);
  EXPECT_NEAR(all->error, 0.0, 1e-6);
}

TEST_F(ShadowMeterTest, WhoReadsLessKeepsLess) {
  const auto few = Measure({.offset = -100.0f, .pinned_blocks = 1, .uniform_floor = false}, 1.0);
  const auto more = Measure({.offset = -100.0f, .pinned_blocks = 3, .uniform_floor = false}, 1.0);
  ASSERT_TRUE(few && more);
  EXPECT_LT(few->mass, more->mass);
  EXPECT_LT(more->mass, 1.0);
  EXPECT_LE(few->least_mass, few->mass);
  EXPECT_GT(few->error, more->error);
  EXPECT_GT(more->error, 0.0);
}

TEST_F(ShadowMeterTest, AShareOfTheRowsIsMeasuredEvenlySpread) {
  const AttentionOptions options = {.pinned_blocks = 1};
  EXPECT_EQ(Measure(options, 0.25)->rows, 16);
  EXPECT_FALSE(Measure(options, 0.0).has_value());
  EXPECT_FALSE(Measure({.admit_all = true}, 1.0).has_value()) << "full attention is its own shadow";
}

}  // namespace
}  // namespace eta::testing
