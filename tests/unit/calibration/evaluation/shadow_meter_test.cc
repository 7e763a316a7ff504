// What is measured beside the loss, over a model's decode rows: what full attention would have had,
// and how far the next token's distribution is from it.
#include "calibration/evaluation/perplexity/shadow_meter.h"

#include <cmath>
#include <memory>
#include <vector>

#include "calibration/evaluation/perplexity/perplexity.h"
#include "calibration/evaluation/runtime/runner.h"
#include "engine/base/status_macros.h"
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

  // The divergences of the ways from the first one.
  absl::StatusOr<std::vector<std::optional<double>>> Diverge(
      const std::vector<AttentionOptions>& options, double share) {
    std::vector<EvaluatedAttention> ways;
    for (const AttentionOptions& way : options) ways.push_back({{.options = way}, "way"});
    ASSIGN_OR_RETURN(const auto scores,
                     EvaluatePerplexity(OnlyRunner(*runner_), windows_, ways,
                                        {.prefill = 64, .recall = false, .kl = share}));
    std::vector<std::optional<double>> divergences;
    for (const AttentionScore& score : scores) divergences.push_back(score.divergence);
    return divergences;
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

TEST_F(ShadowMeterTest, WhoReadsLessIsFartherFromTheFirst) {
  const AttentionOptions full = {.uniform_floor = false, .admit_all = true};
  const AttentionOptions all = {.pinned_blocks = 100, .uniform_floor = false};
  const AttentionOptions one = {.offset = -100.0f, .pinned_blocks = 1, .uniform_floor = false};
  const auto of = Diverge({full, all, one}, 1.0);
  ASSERT_TRUE(of.ok()) << of.status();
  EXPECT_FALSE((*of)[0].has_value()) << "the first is what others are compared with";
  EXPECT_NEAR((*of)[1].value(), 0.0, 1e-9);
  EXPECT_GT((*of)[2].value(), 1e-6);
  const auto turned = Diverge({one, full}, 1.0);
  EXPECT_NE((*turned)[1].value(), (*of)[2].value()) << "KL(first || this) is not symmetric";
}

TEST_F(ShadowMeterTest, ADivergenceIsThatOfTheChosenRows) {
  const AttentionOptions full = {.uniform_floor = false, .admit_all = true};
  const AttentionOptions one = {.offset = -100.0f, .pinned_blocks = 1, .uniform_floor = false};
  const auto all = Diverge({full, one}, 1.0);
  const auto half = Diverge({full, one}, 0.5);
  ASSERT_TRUE(all.ok() && half.ok());
  EXPECT_GT((*half)[1].value(), 0.0);
  EXPECT_NE((*half)[1].value(), (*all)[1].value());
  EXPECT_FALSE((*Diverge({full, one}, 0.0))[1].has_value());
}

// Ways take turns at each window, also where the first one has no chosen row.
TEST_F(ShadowMeterTest, WindowsWithoutAChosenRowAreCompared) {
  windows_.push_back(windows_.front());
  const AttentionOptions all = {.pinned_blocks = 100, .uniform_floor = false};
  const AttentionOptions one = {.pinned_blocks = 1, .uniform_floor = false};
  const auto of = Diverge({all, one, all}, 0.01);
  ASSERT_TRUE(of.ok()) << of.status();
  EXPECT_FALSE((*of)[0].has_value());
  EXPECT_GE((*of)[1].value(), 0.0);
  EXPECT_EQ((*of)[2].value(), 0.0);
}

TEST(CheckDivergenceShare, NamesWhatDoesNotFit) {
  EXPECT_TRUE(CheckDivergenceShare(0.25, 65536, 65536).ok()) << "just 4 GiB";
  const absl::Status status = CheckDivergenceShare(0.5, 65536, 65536);
  EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(status.message(), "kl: the logits of so many rows are 8.0 GiB, more than 4");
}

}  // namespace
}  // namespace eta::testing
