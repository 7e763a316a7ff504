// When a cancel counts as the deadline's.
#include "service/calls/admission.h"

#include "gtest/gtest.h"

namespace eta {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;
using std::chrono::minutes;

const Clock::time_point kDeadline = Clock::time_point() + hours(1);

TEST(CancelledForDeadline, OnlyIfTheDeadlineHadPassedWhenTheCancelCame) {
  EXPECT_TRUE(HadPassed(kDeadline, kDeadline));
  EXPECT_TRUE(HadPassed(kDeadline, kDeadline + minutes(5)));
  EXPECT_TRUE(HadPassed(kDeadline, kDeadline - milliseconds(20))) << "by the client's clock it had";
  EXPECT_FALSE(HadPassed(kDeadline, kDeadline - milliseconds(21)));
  EXPECT_FALSE(HadPassed(kDeadline, kDeadline - minutes(59))) << "however long the deadline was";
}

TEST(CancelledForDeadline, NotWithoutADeadline) {
  EXPECT_FALSE(HadPassed(Clock::time_point::max(), kDeadline));
}

}  // namespace
}  // namespace eta
