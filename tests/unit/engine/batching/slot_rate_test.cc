// What waits for a slot are predicted from.
#include "engine/batching/estimates/slot_rate.h"

#include <gtest/gtest.h>

#include "tests/testing/base/noon.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class SlotRateTest : public ::testing::Test {
 protected:
  // A step, so many seconds after noon: what it finds taken and what it leaves so, of two slots.
  void Step(int at, int32_t before, int32_t after) {
    rate_.Measure(before, after, after >= 2, kNoon + seconds(at));
  }
  milliseconds Wait(int64_t ahead, int at, int32_t taken = 2) const {
    return rate_.Predict(ahead, taken, kNoon + seconds(at));
  }

  SlotRate rate_;
};

TEST_F(SlotRateTest, PredictsNothingBeforeASlotOfAFullBatchCameFree) {
  EXPECT_EQ(Wait(100, 0, 0), milliseconds(0));
  Step(0, 0, 1);
  Step(5, 0, 1);
  Step(10, 1, 2);
  EXPECT_EQ(Wait(100, 100), milliseconds(0)) << "one came free while another was";
  Step(13, 1, 2);
  EXPECT_EQ(Wait(0, 13), seconds(3));
}

TEST_F(SlotRateTest, EverybodyAheadTakesTheNextSlot) {
  Step(0, 0, 2);
  Step(4, 1, 2);
  EXPECT_EQ(Wait(0, 4), seconds(4));
  EXPECT_EQ(Wait(9, 4), seconds(40));
}

TEST_F(SlotRateTest, TheNextSlotIsNearerTheLongerTheLastOneIsAgo) {
  Step(0, 0, 2);
  Step(4, 1, 2);
  EXPECT_EQ(Wait(0, 7), seconds(1));
  EXPECT_EQ(Wait(1, 7), seconds(5));
  EXPECT_EQ(Wait(0, 60), seconds(0)) << "due";
  EXPECT_EQ(Wait(1, 60), seconds(4)) << "the one after it is not";
}

TEST_F(SlotRateTest, ASlotThatCameFreeSinceTheLastStepIsNotWaitedFor) {
  Step(0, 0, 2);
  Step(4, 1, 2);
  EXPECT_EQ(Wait(0, 4, 1), seconds(0));
  EXPECT_EQ(Wait(1, 4, 1), seconds(4));
  EXPECT_EQ(Wait(1, 4, 0), seconds(0));
}

TEST_F(SlotRateTest, NobodyWaitsWhileASlotIsFree) {
  Step(0, 0, 2);
  Step(4, 1, 1);
  EXPECT_EQ(Wait(5, 4, 1), milliseconds(0));
  EXPECT_EQ(rate_.interval().count(), 0.0);
  Step(20, 1, 2);
  EXPECT_EQ(Wait(0, 20), seconds(4)) << "and the time until somebody came is not held against it";
}

TEST_F(SlotRateTest, SlotsThatComeFreeTogetherShareTheTime) {
  Step(0, 0, 2);
  Step(10, 0, 2);
  EXPECT_EQ(Wait(0, 10), seconds(5));
}

TEST_F(SlotRateTest, FollowsWhatChanges) {
  Step(0, 0, 2);
  Step(10, 1, 2);
  for (int at = 11; at <= 40; ++at) Step(at, 1, 2);
  EXPECT_NEAR(rate_.interval().count(), 1.0, 0.02);
  EXPECT_GT(rate_.interval().count(), 1.0);
}

TEST_F(SlotRateTest, ForgetsWhatItMeasuredBeforeAnIdleTimeAndMeasuresAgain) {
  Step(0, 0, 2);
  Step(10, 0, 0);
  Step(40, 0, 2);
  EXPECT_EQ(Wait(0, 40), seconds(5)) << "30 s later it still holds";
  Step(50, 0, 0);
  Step(81, 0, 2);
  EXPECT_EQ(Wait(100, 81), milliseconds(0));
  Step(83, 1, 2);
  EXPECT_EQ(Wait(0, 83), seconds(2));
}

TEST_F(SlotRateTest, AFullBatchIsNotForgottenHoweverLongItsAnswersTake) {
  Step(0, 0, 2);
  Step(100, 1, 2);
  Step(150, 2, 2);
  EXPECT_EQ(Wait(0, 150), seconds(50));
  Step(300, 1, 2);
  EXPECT_GT(Wait(0, 300), seconds(100));
}

TEST_F(SlotRateTest, AReaderThatCatchesUpTakesItsSlotBack) {
  Step(0, 0, 2);
  Step(4, 1, 2);
  Step(5, 3, 3);
  EXPECT_EQ(Wait(0, 5, 3), seconds(3)) << "no slot came free";
}

}  // namespace
}  // namespace eta
