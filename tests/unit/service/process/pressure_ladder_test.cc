#include "service/process/pressure_ladder.h"

#include <gtest/gtest.h>

namespace eta {
namespace {

TEST(PressureLadder, ClimbsAtItsSharesAndComesDownWellBelow) {
  PressureLadder ladder(0.95);
  EXPECT_EQ(ladder.Look(0.0), Pressure::kNone);
  EXPECT_EQ(ladder.Look(0.849), Pressure::kNone);
  EXPECT_EQ(ladder.Look(0.851), Pressure::kShortQueue);
  EXPECT_EQ(ladder.Look(0.919), Pressure::kShortQueue);
  EXPECT_EQ(ladder.Look(0.921), Pressure::kNoCalibrate);
  EXPECT_EQ(ladder.Look(0.949), Pressure::kNoCalibrate);
  EXPECT_EQ(ladder.Look(0.951), Pressure::kNoGenerate);
  EXPECT_EQ(ladder.Look(0.979), Pressure::kNoGenerate);
  EXPECT_EQ(ladder.Look(0.981), Pressure::kEndStreams);
  // Down: each rung only once 2 % below it are free again.
  EXPECT_EQ(ladder.Look(0.961), Pressure::kEndStreams);
  EXPECT_EQ(ladder.Look(0.959), Pressure::kNoGenerate);
  EXPECT_EQ(ladder.Look(0.931), Pressure::kNoGenerate);
  EXPECT_EQ(ladder.Look(0.929), Pressure::kNoCalibrate);
  EXPECT_EQ(ladder.Look(0.901), Pressure::kNoCalibrate);
  EXPECT_EQ(ladder.Look(0.899), Pressure::kShortQueue);
  EXPECT_EQ(ladder.Look(0.831), Pressure::kShortQueue);
  EXPECT_EQ(ladder.Look(0.829), Pressure::kNone);
}

TEST(PressureLadder, GoesOverSeveralRungsAtOnce) {
  PressureLadder ladder(0.95);
  EXPECT_EQ(ladder.Look(1.2), Pressure::kEndStreams);
  EXPECT_EQ(ladder.Look(0.1), Pressure::kNone);
  EXPECT_EQ(ladder.Look(0.93), Pressure::kNoCalibrate);
}

TEST(PressureLadder, ReadingsThatSwingAroundAShareDoNotSwitchItOnAndOff) {
  PressureLadder ladder(0.95);
  int changes = 0;
  Pressure last = Pressure::kNone;
  for (int i = 0; i < 100; ++i) {
    const Pressure now = ladder.Look(i % 2 == 0 ? 0.955 : 0.945);
    changes += now != last;
    last = now;
  }
  EXPECT_EQ(changes, 1);
  EXPECT_EQ(last, Pressure::kNoGenerate);
}

TEST(PressureLadder, TheOtherRungsFollowTheOneThatIsSet) {
  for (const double share : {0.01, 0.3, 0.5, 0.8, 0.95, 0.99}) {
    PressureLadder ladder(share);
    for (int rung = 1; rung < kPressures; ++rung) {
      EXPECT_GT(ladder.share(static_cast<Pressure>(rung)),
                ladder.share(static_cast<Pressure>(rung - 1)))
          << share;
    }
    EXPECT_LE(ladder.share(Pressure::kEndStreams), 1.0);
    EXPECT_EQ(ladder.share(Pressure::kNoGenerate), share);
    EXPECT_GE(ladder.Look(1.001), Pressure::kEndStreams) << share;
    EXPECT_EQ(ladder.Look(0.0), Pressure::kNone) << share;
  }
}

}  // namespace
}  // namespace eta
