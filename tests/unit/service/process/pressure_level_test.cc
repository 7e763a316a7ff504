#include "service/process/pressure_level.h"

#include <gtest/gtest.h>

namespace eta {
namespace {

TEST(PressureLevel, RisesAtItsSharesAndFallsWellBelow) {
  PressureLevel level(0.95);
  EXPECT_EQ(level.Update(0.0), Pressure::kNone);
  EXPECT_EQ(level.Update(0.949), Pressure::kNone);
  EXPECT_EQ(level.Update(0.951), Pressure::kShort);
  EXPECT_EQ(level.Update(0.979), Pressure::kShort);
  EXPECT_EQ(level.Update(0.981), Pressure::kCritical);
  // Down: each level only once 2 % below it are free again.
  EXPECT_EQ(level.Update(0.961), Pressure::kCritical);
  EXPECT_EQ(level.Update(0.959), Pressure::kShort);
  EXPECT_EQ(level.Update(0.931), Pressure::kShort);
  EXPECT_EQ(level.Update(0.929), Pressure::kNone);
}

TEST(PressureLevel, GoesOverBothAtOnce) {
  PressureLevel level(0.95);
  EXPECT_EQ(level.Update(1.2), Pressure::kCritical);
  EXPECT_EQ(level.Update(0.1), Pressure::kNone);
  EXPECT_EQ(level.Update(0.97), Pressure::kShort);
}

TEST(PressureLevel, ReadingsThatSwingAroundAShareDoNotSwitchItOnAndOff) {
  PressureLevel level(0.95);
  int changes = 0;
  Pressure last = Pressure::kNone;
  for (int i = 0; i < 100; ++i) {
    const Pressure now = level.Update(i % 2 == 0 ? 0.955 : 0.945);
    changes += now != last;
    last = now;
  }
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(last, Pressure::kShort);
}

TEST(PressureLevel, CriticalFollowsTheShareThatIsSet) {
  for (const double share : {0.01, 0.3, 0.5, 0.8, 0.95, 0.99}) {
    PressureLevel level(share);
    EXPECT_EQ(level.share(Pressure::kShort), share);
    EXPECT_GT(level.share(Pressure::kCritical), share);
    EXPECT_LE(level.share(Pressure::kCritical), 1.0);
    EXPECT_EQ(level.Update(1.001), Pressure::kCritical) << share;
    EXPECT_EQ(level.Update(0.0), Pressure::kNone) << share;
  }
}

}  // namespace
}  // namespace eta
