// When a step loop counts as stalled.
#include "service/health/heartbeat.h"

#include <optional>
#include <utility>

#include "gtest/gtest.h"

namespace eta {
namespace {

using std::chrono::seconds;

class HeartbeatTest : public ::testing::Test {
 protected:
  bool AliveAt(int second) { return heartbeat_->Alive(snapshot_, begin_ + seconds(second)); }

  const Clock::time_point begin_ = Clock::now();
  std::optional<Heartbeat> heartbeat_{std::in_place, std::chrono::milliseconds(10'000), begin_};
  EngineSnapshot snapshot_;
};

TEST_F(HeartbeatTest, AnIdleEngineIsAlive) {
  EXPECT_TRUE(AliveAt(1));
  EXPECT_TRUE(AliveAt(100'000));
}

TEST_F(HeartbeatTest, WorkWithoutStepsIsAStallUntilTheNextStep) {
  for (int32_t EngineSnapshot::*work :
       {&EngineSnapshot::running, &EngineSnapshot::waiting, &EngineSnapshot::passes_running,
        &EngineSnapshot::passes_waiting}) {
    heartbeat_.emplace(std::chrono::milliseconds(10'000), begin_);
    snapshot_ = EngineSnapshot{.steps = 7};
    EXPECT_TRUE(AliveAt(50));
    snapshot_.*work = 1;
    EXPECT_TRUE(AliveAt(51));
    EXPECT_TRUE(AliveAt(59));
    EXPECT_FALSE(AliveAt(60));
    EXPECT_FALSE(AliveAt(600));
    ++snapshot_.steps;
    EXPECT_TRUE(AliveAt(601));
    EXPECT_FALSE(AliveAt(611));
    snapshot_.*work = 0;
    EXPECT_TRUE(AliveAt(612));
  }
}

TEST_F(HeartbeatTest, AFullQueueThatMovesIsNoStall) {
  snapshot_.running = 64;
  snapshot_.waiting = 256;
  snapshot_.waiting_tokens = 524'288;
  for (int second = 9; second < 100'000; second += 9) {
    ++snapshot_.steps;
    ASSERT_TRUE(AliveAt(second)) << second;
  }
}

}  // namespace
}  // namespace eta
