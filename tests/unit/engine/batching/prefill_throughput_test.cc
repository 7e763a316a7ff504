// How fast prompts are thought to go.
#include "engine/batching/estimates/prefill_throughput.h"

#include <gtest/gtest.h>

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

}  // namespace
}  // namespace eta
