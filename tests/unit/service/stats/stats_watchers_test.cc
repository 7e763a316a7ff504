// Who may watch, when each of them is due, and that all of them end.
#include "service/stats/stats_watchers.h"

#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using std::chrono::hours;
using std::chrono::milliseconds;

constexpr std::chrono::seconds kPatience{20};

class Watcher final : public StatsWatcher {
 public:
  void OnDue() override { Count(due_); }
  void OnEnd(const absl::Status& status) override {
    {
      const std::lock_guard lock(mutex_);
      end_ = status;
    }
    Count(closed_);
  }

  bool AwaitDue(int count) {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return due_ >= count; });
  }
  int due() const {
    const std::lock_guard lock(mutex_);
    return due_;
  }
  int closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }
  absl::Status end() const {
    const std::lock_guard lock(mutex_);
    return end_;
  }

 private:
  void Count(int& counter) {
    const std::lock_guard lock(mutex_);
    ++counter;
    changed_.notify_all();
  }

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  int due_ = 0;
  int closed_ = 0;
  absl::Status end_;
};

TEST(StatsWatchers, EachIsDueAtOnceAndThenAgain) {
  StatsWatchers watchers;
  const auto quick = std::make_shared<Watcher>();
  const auto slow = std::make_shared<Watcher>();
  ASSERT_TRUE(watchers.Add(slow, hours(1), *Tenant::Parse("a")).ok());
  ASSERT_TRUE(watchers.Add(quick, milliseconds(1), *Tenant::Parse("a")).ok());
  EXPECT_TRUE(slow->AwaitDue(1));
  EXPECT_TRUE(quick->AwaitDue(4));
  EXPECT_EQ(slow->due(), 1);
}

TEST(StatsWatchers, OneThatWasRemovedIsLetGo) {
  StatsWatchers watchers;
  const auto watcher = std::make_shared<Watcher>();
  ASSERT_TRUE(watchers.Add(watcher, hours(1), *Tenant::Parse("a")).ok());
  ASSERT_TRUE(watcher->AwaitDue(1));
  watchers.Remove(watcher.get());
  watchers.Remove(watcher.get());
  watchers.Close();
  EXPECT_EQ(watcher->closed(), 0);
}

TEST(StatsWatchers, AreBoundedTogetherAndPerTenant) {
  StatsWatchers watchers;
  std::vector<std::shared_ptr<Watcher>> all;
  const auto add = [&](const std::string& tenant) {
    all.push_back(std::make_shared<Watcher>());
    return watchers.Add(all.back(), hours(1), *Tenant::Parse(tenant));
  };
  for (int i = 0; i < StatsWatchers::kMaxOfTenant; ++i) EXPECT_TRUE(add("a").ok()) << i;
  const absl::Status refused = add("a");
  EXPECT_THAT(refused, FailsFor(absl::StatusCode::kResourceExhausted, "WATCHERS_FULL"));
  EXPECT_TRUE(GetErrorDetail(refused).retry_after.has_value());
  for (int i = StatsWatchers::kMaxOfTenant; i < StatsWatchers::kMax; ++i) {
    EXPECT_TRUE(add("b" + std::to_string(i / StatsWatchers::kMaxOfTenant)).ok()) << i;
  }
  EXPECT_FALSE(add("c").ok());
  watchers.Remove(all.front().get());
  EXPECT_TRUE(add("c").ok());
  EXPECT_EQ(watchers.watching(), StatsWatchers::kMax);
}

TEST(StatsWatchers, ClosingEndsAllOnceAndRefusesMore) {
  StatsWatchers watchers;
  const auto one = std::make_shared<Watcher>();
  const auto two = std::make_shared<Watcher>();
  ASSERT_TRUE(watchers.Add(one, hours(1), *Tenant::Parse("a")).ok());
  ASSERT_TRUE(watchers.Add(two, hours(1), *Tenant::Parse("a")).ok());
  watchers.Close();
  watchers.Close();
  EXPECT_EQ(one->closed(), 1);
  EXPECT_EQ(two->closed(), 1);
  const absl::Status refused = watchers.Add(one, hours(1), *Tenant::Parse("a"));
  EXPECT_THAT(refused, FailsFor(absl::StatusCode::kUnavailable, "DRAINING"));
}

}  // namespace
}  // namespace eta
