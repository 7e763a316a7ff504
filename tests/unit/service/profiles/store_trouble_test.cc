// When a store counts as one that does not answer.
#include "service/profiles/store_trouble.h"

#include "engine/base/error.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

const Clock::time_point kStart = Clock::time_point() + std::chrono::hours(1);
const absl::Status kDown = absl::UnavailableError("down");

TEST(StoreTrouble, AFailureIsBelievedForAWhileOrUntilAReadSucceeds) {
  StoreTrouble store(seconds(2));
  EXPECT_TRUE(store.At(kStart).ok());
  store.Begin(0, kStart);
  store.End(0, kDown, kStart);
  EXPECT_EQ(store.At(kStart), kDown);
  EXPECT_EQ(store.At(kStart + StoreTrouble::kBelieved), kDown);
  EXPECT_TRUE(store.At(kStart + StoreTrouble::kBelieved + milliseconds(1)).ok());
  store.End(1, absl::OkStatus(), kStart + seconds(1));
  EXPECT_TRUE(store.At(kStart + seconds(1)).ok());
}

TEST(StoreTrouble, AReadThatTakesLongerThanThePatienceIsTrouble) {
  StoreTrouble store(seconds(2));
  store.Begin(1, kStart);
  EXPECT_TRUE(store.At(kStart + seconds(2)).ok());
  EXPECT_EQ(GetErrorDetail(store.At(kStart + milliseconds(2001))).reason, "STORE_UNAVAILABLE");
  store.End(1, absl::OkStatus(), kStart + seconds(3));
  EXPECT_TRUE(store.At(kStart + seconds(9)).ok());
}

TEST(StoreTrouble, IsTriedOnceInAWhile) {
  StoreTrouble store(seconds(2));
  EXPECT_TRUE(store.ShouldRetry(kStart));
  EXPECT_FALSE(store.ShouldRetry(kStart + milliseconds(999)));
  EXPECT_TRUE(store.ShouldRetry(kStart + StoreTrouble::kRetry));
}

}  // namespace
}  // namespace eta
