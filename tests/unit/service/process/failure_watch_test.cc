// What ends a server by itself, and that each trouble is logged once.
#include "service/process/failure_watch.h"

#include <optional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/puppet_engine.h"
#include "tests/testing/process/log_pipe.h"
#include "tests/testing/profiles/faulty_store.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::IsEmpty;

class FailureWatchTest : public ::testing::Test {
 protected:
  FailureWatchTest() {
    log_.emplace(LogOptions{.format = LogFormat::kText, .fd = pipe_.writer()});
    watch_.emplace(engine_, std::vector<int>{7}, &store_, *log_);
  }

  void Trouble(absl::StatusCode code, const char* message, const char* reason) {
    store_.SetHealth(MakeError(code, message, {.reason = reason}));
  }
  std::vector<std::string> Lines() {
    log_.reset();
    pipe_.CloseWriter();
    return pipe_.ReadAll();
  }

  PuppetEngine engine_;
  FaultyStore store_;
  LogPipe pipe_;
  std::optional<Log> log_;
  std::optional<FailureWatch> watch_;
};

TEST_F(FailureWatchTest, AServerThatWorksGoesOn) {
  EXPECT_EQ(watch_->Poll(), std::nullopt);
  EXPECT_THAT(Lines(), IsEmpty());
}

TEST_F(FailureWatchTest, TroubleOfTheStoreIsLoggedOnceAndItsEndToo) {
  Trouble(absl::StatusCode::kUnavailable, "it is away", "STORE_UNAVAILABLE");
  EXPECT_EQ(watch_->Poll(), std::nullopt);
  EXPECT_EQ(watch_->Poll(), std::nullopt);
  store_.SetHealth(absl::OkStatus());
  EXPECT_EQ(watch_->Poll(), std::nullopt);
  EXPECT_THAT(Lines(), ElementsAre("eta-server: error: profile store: it is away",
                                   "eta-server: profile store: in order again"));
}

TEST_F(FailureWatchTest, AStoreThatFailedEndsTheServer) {
  Trouble(absl::StatusCode::kUnavailable, "it failed", "STORE_FAILED");
  EXPECT_EQ(watch_->Poll(), Failure::kStoreFailed);
}

TEST_F(FailureWatchTest, AStepWithoutMemoryEndsTheServer) {
  engine_.SetSnapshot({.device_lost = true, .out_of_memory = true});
  EXPECT_EQ(watch_->Poll(), Failure::kOutOfMemory);
}

TEST_F(FailureWatchTest, TheLastDeviceThatIsLostEndsTheServerAndIsNamed) {
  engine_.SetSnapshot({.device_lost = true});
  EXPECT_EQ(watch_->Poll(), Failure::kDevicesLost);
  EXPECT_EQ(watch_->Poll(), Failure::kDevicesLost);
  EXPECT_THAT(Lines(), ElementsAre("eta-server: error: device 7 has failed"));
}

TEST_F(FailureWatchTest, AStepThatHangsEndsTheServerUnlessItWasOnlySuspended) {
  bool stalled = false;
  FailureWatch watch(engine_, {7}, nullptr, *log_, [&stalled] { return stalled; });
  EXPECT_EQ(watch.Poll(), std::nullopt);
  stalled = true;
  for (int i = 1; i < FailureWatch::kStalledPolls; ++i) EXPECT_EQ(watch.Poll(), std::nullopt) << i;
  stalled = false;
  EXPECT_EQ(watch.Poll(), std::nullopt);
  stalled = true;
  for (int i = 1; i < FailureWatch::kStalledPolls; ++i) EXPECT_EQ(watch.Poll(), std::nullopt) << i;
  EXPECT_EQ(watch.Poll(), Failure::kHung);
}

TEST_F(FailureWatchTest, NeedsNoStore) {
  FailureWatch watch(engine_, {7}, nullptr, *log_);
  EXPECT_EQ(watch.Poll(), std::nullopt);
}

}  // namespace
}  // namespace eta::testing
