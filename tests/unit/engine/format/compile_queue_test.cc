#include "engine/format/compiler/compile_queue.h"

#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

Clock::time_point In(milliseconds time) {
  return Clock::now() + time;
}

TEST(CompileQueue, OneTenantLeavesAPlaceForOthers) {
  CompileQueue queue(2);
  const auto own = queue.Enter("a", "1", In(milliseconds(0)));
  ASSERT_TRUE(own.ok());
  const auto second = queue.Enter("a", "2", In(milliseconds(10)));
  EXPECT_EQ(GetErrorDetail(second.status()).reason, "DEADLINE_QUEUED");
  EXPECT_TRUE(queue.Enter("b", "3", In(milliseconds(0))).ok());
}

TEST(CompileQueue, WhoWaitsGetsWhatIsGivenBack) {
  CompileQueue queue(1);
  std::optional<Lease> first = *queue.Enter("a", "1", In(milliseconds(0)));
  auto waits = std::async(std::launch::async,
                          [&] { return queue.Enter("b", "2", In(milliseconds(10'000))).ok(); });
  std::this_thread::sleep_for(milliseconds(20));
  first.reset();
  EXPECT_TRUE(waits.get());
}

TEST(CompileQueue, EqualFormatsComeOneAfterTheOther) {
  CompileQueue queue(8);
  std::optional<Lease> first = *queue.Enter("a", "1", In(milliseconds(0)));
  EXPECT_FALSE(queue.Enter("a", "1", In(milliseconds(10))).ok());
  EXPECT_TRUE(queue.Enter("a", "2", In(milliseconds(0))).ok());
  first.reset();
  EXPECT_TRUE(queue.Enter("a", "1", In(milliseconds(0))).ok());
}

// bad input: Formats of answers | more formats than may wait to be compiled, of one tenant |
//   RESOURCE_EXHAUSTED, QUEUE_FULL; other tenants are served
TEST(CompileQueue, TooManyOfATenantAreRefused) {
  CompileQueue queue(2);
  std::optional<Lease> running = *queue.Enter("a", "0", In(milliseconds(0)));
  std::vector<std::thread> waiting;
  std::atomic<int> refused = 0;
  for (int i = 0; i < CompileQueue::kMaxWaiting + 3; ++i) {
    waiting.emplace_back([&, i] {
      const auto place = queue.Enter("a", absl::StrCat("w", i), In(milliseconds(300)));
      if (GetErrorDetail(place.status()).reason == "QUEUE_FULL") ++refused;
    });
  }
  std::this_thread::sleep_for(milliseconds(100));
  EXPECT_TRUE(queue.Enter("b", "1", In(milliseconds(0))).ok());
  for (std::thread& thread : waiting) thread.join();
  EXPECT_EQ(refused, 3);
}

}  // namespace
}  // namespace eta
