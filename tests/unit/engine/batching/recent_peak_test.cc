// What was most lately, by steps and by time.
#include "engine/batching/estimates/recent_peak.h"

#include "gtest/gtest.h"

namespace eta {
namespace {

using std::chrono::seconds;

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

}  // namespace
}  // namespace eta
