// How fast prompts are thought to go; what was most lately, by steps and by time; what steps cost.
#include "engine/batching/estimates/prefill_throughput.h"
#include "engine/batching/estimates/read_cost.h"
#include "engine/batching/estimates/recent_peak.h"
#include "gtest/gtest.h"
#include "tests/testing/base/noon.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

TEST(PrefillThroughputTest, AStepCountsForTheTimeThatItTook) {
  PrefillThroughput rate;
  for (int i = 0; i < 200; ++i) {
    rate.Measure(100, i % 2 == 0 ? milliseconds(10) : milliseconds(190), kNoon);
  }
  EXPECT_NEAR(rate.value(), 1000.0, 60.0) << "200 rows in 200 ms";
}

TEST(PrefillThroughputTest, PredictsNothingBeforeTheFirstStepAndFromOneLongAgo) {
  PrefillThroughput rate;
  EXPECT_EQ(rate.Predict(1000, kNoon), milliseconds(0));
  rate.Measure(100, seconds(1), kNoon);
  EXPECT_EQ(rate.Predict(1000, kNoon + seconds(30)), seconds(10));
  EXPECT_EQ(rate.Predict(1000, kNoon + seconds(31)), milliseconds(0));
}

constexpr int64_t kSteps = RecentPeak::kSteps;
const Clock::time_point kBegin = Clock::now();

TEST(RecentPeak, IsKeptForHalfTheStepsAtLeastAndForAllOfThemAtMost) {
  for (const int64_t at : {int64_t{0}, kSteps / 4, kSteps / 2 - 1, kSteps / 2}) {
    RecentPeak peak;
    for (int64_t step = 0; step <= at + kSteps; ++step) {
      peak.Record(step == at ? 4 : 1, kBegin, step);
      if (step >= at && step < at + kSteps / 2) {
        EXPECT_EQ(peak.value(), 4) << at << " " << step;
      }
    }
    EXPECT_EQ(peak.value(), 1) << at;
  }
}

TEST(RecentPeak, ComesDownToWhatItWasSinceAndNotToThisMoment) {
  RecentPeak peak;
  peak.Record(4, kBegin, 0);
  for (int64_t step = 1; step <= kSteps; ++step) peak.Record(3, kBegin, step);
  peak.Record(0, kBegin, kSteps + 1);
  EXPECT_EQ(peak.value(), 3);
  for (int64_t step = kSteps + 2; step <= 2 * kSteps; ++step) peak.Record(0, kBegin, step);
  EXPECT_EQ(peak.value(), 0);
}

TEST(RecentPeak, IsForgottenInTimeHoweverFewStepsPassed) {
  RecentPeak peak;
  peak.Record(4, kBegin, 1);
  peak.Record(0, kBegin + RecentPeak::kTime / 2 - seconds(1), 1);
  EXPECT_EQ(peak.value(), 4);
  peak.Record(0, kBegin + RecentPeak::kTime / 2, 1);
  EXPECT_EQ(peak.value(), 4);
  peak.Record(0, kBegin + RecentPeak::kTime, 1);
  EXPECT_EQ(peak.value(), 0);

  peak.Record(4, kBegin + RecentPeak::kTime, 1);
  peak.Record(1, kBegin + 3 * RecentPeak::kTime, 2);
  EXPECT_EQ(peak.value(), 1) << "nobody looked for longer than that";
}

constexpr int64_t kWeights = 1000;

// A machine whose steps cost so much without their bytes, for a byte, and for one more row.
void RunSteps(ReadCost& cost, int count, double step, double byte, double more) {
  for (int i = 0; i < count; ++i) {
    const int64_t bytes = 200 + 37 * (i % 11);
    const int32_t rows = i % 3;
    const StepLoad load = {.first_bytes = bytes, .more_bytes = rows * bytes, .more_rows = rows};
    const double took = step * kWeights + byte * static_cast<double>(bytes) +
                        more * rows * static_cast<double>(kWeights + bytes);
    cost.Measure(load, std::chrono::nanoseconds(static_cast<int64_t>(took * 1e6)));
  }
}

TEST(ReadCostTest, BytesCostAlikeUntilStepsTell) {
  ReadCost cost(kWeights);
  EXPECT_DOUBLE_EQ(cost.step() / cost.Bytes(500.0), 2.0);
  EXPECT_LT(cost.MoreRow(500.0), cost.Bytes(500.0));
  cost.Measure({.first_bytes = 500}, milliseconds(3));
  EXPECT_NEAR(cost.step() / cost.Bytes(500.0), 2.0, 1e-6) << "one step cannot tell them apart";
}

TEST(ReadCostTest, IsWhatTheStepsTook) {
  ReadCost cost(kWeights);
  RunSteps(cost, 300, 2.0, 0.5, 0.2);
  EXPECT_NEAR(cost.step() / cost.Bytes(1000.0), 4.0, 0.8);
  EXPECT_NEAR(cost.MoreRow(500.0) / cost.step(), 0.15, 0.03);
  RunSteps(cost, 2000, 1.0, 3.0, 0.01);
  EXPECT_NEAR(cost.Bytes(1000.0) / cost.step(), 3.0, 0.5) << "old steps fade";
  EXPECT_LT(cost.MoreRow(500.0), 0.1 * cost.step());
}

TEST(ReadCostTest, StaysAboveZeroWhateverIsMeasured) {
  ReadCost cost(kWeights);
  cost.Measure({}, milliseconds(0));
  for (int i = 0; i < 400; ++i) {
    cost.Measure({.first_bytes = 100 * (i % 5), .more_bytes = 10 * (i % 2), .more_rows = i % 2},
                 milliseconds(50 - 9 * (i % 5) - 4 * (i % 2)));
    ASSERT_GT(cost.step(), 0.0);
    ASSERT_GT(cost.Bytes(1.0), 0.0);
    ASSERT_GT(cost.MoreRow(1.0), 0.0);
  }
}

}  // namespace
}  // namespace eta
