// What the metrics page says of the experts of a model that has some.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "service/telemetry/telemetry.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/process/page_reader.h"
#include "tests/testing/process/page_text.h"

namespace eta::testing {
namespace {

constexpr int kExpertCount = 6;
constexpr int kPerToken = 2;

class ExpertMetricsTest : public ::testing::Test {
 protected:
  // Two layers with experts, then one without.
  ExpertMetricsTest()
      : model_({.num_layers = 3,
                .model_type = "qwen3_moe",
                .num_experts = kExpertCount,
                .experts_per_token = kPerToken,
                .dense_layers = 1}) {}

  PageReader Page() { return PageReader(PageText(telemetry_)); }

  TinyModel model_;
  Telemetry telemetry_;
};

TEST_F(ExpertMetricsTest, RowsOfStepsAddUpInEveryLayerThatHasExperts) {
  const EngineOptions options = OptionsFor(model_);
  const auto engine = Start(options, &telemetry_);
  ASSERT_TRUE(engine);
  telemetry_.SetModel(engine->info(), std::chrono::milliseconds(5));
  EXPECT_EQ(Page().Sum("eta_expert_rows_total"), 0.0);
  EXPECT_EQ(Page().Sum("eta_expert_load_ratio"), 0.0) << "nothing was computed yet";

  std::vector<Request> requests;
  for (uint32_t i = 0; i < 5; ++i) requests.push_back(Greedy(Prompt(20 + 31 * i, i), 8));
  AskTogether(*engine, requests);
  WaitUntilIdle(*engine);
  const PageReader page = Page();
  const double rows = 20 + 51 + 82 + 113 + 144 + 5 * 7;  // no last token is computed
  const auto steps = static_cast<double>(telemetry_.Snapshot().server.step_tokens.count());
  for (const std::string layer : {"0", "1"}) {
    SCOPED_TRACE(layer);
    EXPECT_EQ(page.Sum("eta_expert_rows_total", {{"layer", layer}}), kPerToken * rows);
    const double read = page.Sum("eta_experts_read_total", {{"layer", layer}});
    EXPECT_GE(read, kPerToken * steps);
    EXPECT_LE(read, kExpertCount * steps);
    const auto load = [&](const std::string& expert) {
      return page.Sum("eta_expert_load_ratio", {{"layer", layer}, {"expert", expert}});
    };
    EXPECT_GT(load("busiest"), 1.0);
    EXPECT_LE(load("busiest"), double{kExpertCount} / kPerToken) << "every row chose it";
    EXPECT_GE(load("busiest"), load("median"));
    EXPECT_GE(load("median"), load("idlest"));
    EXPECT_GE(load("idlest"), 0.0);
    EXPECT_LT(load("idlest"), 1.0);
  }
  EXPECT_EQ(page.Sum("eta_expert_rows_total", {{"layer", "2"}}), 0.0);
}

TEST_F(ExpertMetricsTest, AModelWithoutExpertsHasNoneOfThem) {
  const TinyModel dense;
  const auto engine = Start(OptionsFor(dense), &telemetry_);
  ASSERT_TRUE(engine);
  telemetry_.SetModel(engine->info(), std::chrono::milliseconds(5));
  Ask(*engine, Greedy(Prompt(20, 1), 4));
  EXPECT_EQ(PageText(telemetry_).find("eta_expert_rows_total{"), std::string::npos);
}

}  // namespace
}  // namespace eta::testing
