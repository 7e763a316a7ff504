// A second signal ends the process whatever its threads wait for.
#include "service/process/stop_signals.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include "service/process/exit.h"

namespace eta {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

// Each test runs in a process of its own, which has these signals blocked from its first thread on.
class StopSignalsTest : public ::testing::Test {
 protected:
  StopSignalsTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(StopSignalsTest, ASecondSignalEndsAProcessThatHangs) {
  const auto hang = [] {
    StopSignals signals(/*last_seconds=*/1);
    signals.Begin();
    kill(getpid(), SIGTERM);
    if (!signals.Await(hours(1))) _exit(EXIT_FAILURE);
    kill(getpid(), SIGINT);
    while (true) pause();
  };
  EXPECT_EXIT(hang(), ::testing::ExitedWithCode(kExitHung), "comes to no end");
}

TEST_F(StopSignalsTest, EachSignalIsAwaitedOnce) {
  const auto stop = [] {
    StopSignals signals(/*last_seconds=*/3600);
    kill(getpid(), SIGTERM);  // before anybody waits, as while a model is loaded
    signals.Begin();
    const bool first = signals.Await(hours(1));
    const bool none = signals.Await(milliseconds(1));
    kill(getpid(), SIGTERM);
    const bool second = signals.Await(hours(1));
    signals.Wake();
    const bool woken = signals.Await(hours(1));
    _exit(first && !none && second && !woken ? EXIT_SUCCESS : EXIT_FAILURE);
  };
  EXPECT_EXIT(stop(), ::testing::ExitedWithCode(EXIT_SUCCESS), "");
}

TEST_F(StopSignalsTest, EndsWithoutASignal) {
  const auto end = [] {
    {
      StopSignals signals(/*last_seconds=*/1);
      signals.Begin();
    }
    { const StopSignals never_begun(/*last_seconds=*/1); }
    _exit(EXIT_SUCCESS);
  };
  EXPECT_EXIT(end(), ::testing::ExitedWithCode(EXIT_SUCCESS), "");
}

}  // namespace
}  // namespace eta
