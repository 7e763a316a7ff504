#include "engine/batching/kv_events/kv_event_feed.h"

#include <gtest/gtest.h>

#include <atomic>
#include <memory>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "engine/base/mutex.h"

namespace eta {
namespace {

using Kind = KvEvent::Kind;

// One batch of one change: as the step thread appends them.
void Append(KvEventLog& log, Kind kind, int64_t hash, size_t tokens = 1) {
  KvBlockPtr block;
  if (kind == Kind::kStored) {
    block = std::make_shared<KvBlock>(
        KvBlock{.hash = hash, .parent = std::nullopt, .tokens = std::vector<int32_t>(tokens)});
  }
  std::vector<KvEventLog::Change> changes;
  changes.push_back({.kind = kind, .hash = hash, .block = std::move(block)});
  log.Append(changes);
}
void Store(KvEventLog& log, int64_t hash) {
  Append(log, Kind::kStored, hash);
}

std::unique_ptr<KvEventSubscription> Subscribe(KvEventFeed& feed, uint64_t start) {
  auto subscription = feed.Subscribe(start, [] {});
  EXPECT_TRUE(subscription.ok()) << subscription.status();
  return *std::move(subscription);
}

// What a reader knows by what it was given.
struct Known {
  void Apply(const KvEventBatch& batch) {
    if (!batch.snapshot) {
      EXPECT_EQ(batch.sequence, sequence + 1) << "a gap";
    }
    sequence = batch.sequence;
    for (const KvEvent& event : batch.events) {
      if (event.kind == Kind::kCleared) hashes.clear();
      if (event.kind == Kind::kStored) hashes.insert(event.block->hash);
      if (event.kind == Kind::kRemoved) hashes.erase(event.block->hash);
    }
  }
  // All that is there now.
  void ReadAll(KvEventSubscription& subscription) {
    for (auto batch = subscription.Next();; batch = subscription.Next()) {
      ASSERT_TRUE(batch.ok()) << batch.status();
      if (*batch == nullptr) return;
      Apply(**batch);
    }
  }

  uint64_t sequence = 0;
  std::set<int64_t> hashes;
};

std::set<int64_t> Cached(const KvEventLog& log) {
  const KvEventLog::Snapshot snapshot = log.TakeSnapshot();
  std::set<int64_t> hashes;
  for (const KvBlockPtr& block : snapshot.blocks) hashes.insert(block->hash);
  return hashes;
}

TEST(KvEventFeed, StartZeroIsASnapshotAndWhatFollows) {
  KvEventFeed feed;
  const auto early = Subscribe(feed, 0);
  EXPECT_EQ(*early->Next(), nullptr) << "nothing is cached: there is nothing to say";
  Store(*feed.log(), 1);
  Store(*feed.log(), 2);
  Append(*feed.log(), Kind::kRemoved, 1);

  const auto late = Subscribe(feed, 0);
  const KvEventBatchPtr snapshot = *late->Next();
  ASSERT_NE(snapshot, nullptr);
  EXPECT_EQ(snapshot->sequence, 3u);
  ASSERT_TRUE(snapshot->snapshot);
  EXPECT_EQ(snapshot->snapshot->count, 1u);
  EXPECT_EQ(snapshot->snapshot->blocks, 1u);
  ASSERT_EQ(snapshot->events.size(), 1u);
  EXPECT_EQ(snapshot->events[0].block->hash, 2);
  EXPECT_EQ(*late->Next(), nullptr);
  Store(*feed.log(), 3);
  EXPECT_EQ((*late->Next())->sequence, 4u);

  Known known;
  known.ReadAll(*early);
  EXPECT_EQ(known.sequence, 4u);
  EXPECT_EQ(known.hashes, Cached(*feed.log()));
}

TEST(KvEventFeed, AReaderGoesOnWithTheNumberThatItNames) {
  KvEventFeed feed;
  for (int64_t hash = 1; hash <= 5; ++hash) Store(*feed.log(), hash);
  const auto again = Subscribe(feed, 4);
  EXPECT_EQ((*again->Next())->sequence, 4u);
  EXPECT_EQ((*again->Next())->sequence, 5u);
  EXPECT_EQ(*again->Next(), nullptr);
  const auto next = Subscribe(feed, 6);
  EXPECT_EQ(*next->Next(), nullptr) << "it is the next to come";
}

// It would believe for ever what was removed meanwhile.
TEST(KvEventFeed, WhoAsksForWhatIsNotKeptBeginsAnew) {
  KvEventFeed feed;
  for (int64_t hash = 1; hash <= 3; ++hash) Store(*feed.log(), hash);
  for (size_t i = 0; i < KvEventLog::kMaxBatches; ++i) {
    Append(*feed.log(), i % 2 == 0 ? Kind::kRemoved : Kind::kStored, 1);
  }
  const uint64_t last = feed.log()->last_sequence();
  for (const uint64_t start : {uint64_t{1}, last + 2}) {
    const auto subscription = Subscribe(feed, start);
    const KvEventBatchPtr snapshot = *subscription->Next();
    ASSERT_NE(snapshot, nullptr) << start;
    EXPECT_EQ(snapshot->sequence, last);
    EXPECT_TRUE(snapshot->snapshot.has_value());
    ASSERT_FALSE(snapshot->events.empty());
    EXPECT_EQ(snapshot->events[0].kind, Kind::kCleared);
    Known known{.sequence = 7, .hashes = {99}};
    known.Apply(*snapshot);
    EXPECT_EQ(known.hashes, Cached(*feed.log()));
  }
}

TEST(KvEventFeed, ALargeSnapshotComesInParts) {
  KvEventFeed feed;
  constexpr size_t kTokens = KvEventFeed::kMaxPartTokens / 4;
  for (int64_t hash = 1; hash <= 9; ++hash) Append(*feed.log(), Kind::kStored, hash, kTokens);
  const auto subscription = Subscribe(feed, 0);
  Known known;
  for (uint32_t part = 0; part < 3; ++part) {
    const KvEventBatchPtr batch = *subscription->Next();
    ASSERT_NE(batch, nullptr);
    ASSERT_TRUE(batch->snapshot);
    EXPECT_EQ(batch->snapshot->index, part);
    EXPECT_EQ(batch->snapshot->count, 3u);
    EXPECT_EQ(batch->snapshot->blocks, 9u);
    EXPECT_EQ(batch->sequence, 9u);
    EXPECT_EQ(batch->events.size(), part < 2 ? 4u : 1u);
    known.Apply(*batch);
  }
  EXPECT_EQ(*subscription->Next(), nullptr);
  EXPECT_EQ(known.hashes, Cached(*feed.log()));
}

TEST(KvEventFeed, ASlowReaderIsLetGoAndNobodyElse) {
  KvEventFeed feed;
  const auto slow = Subscribe(feed, 0);
  const auto quick = Subscribe(feed, 0);
  Known known;
  for (size_t i = 0; i <= KvEventLog::kMaxBatches; ++i) {
    Append(*feed.log(), i % 2 == 0 ? Kind::kStored : Kind::kRemoved, 1);
    known.ReadAll(*quick);
  }
  EXPECT_EQ(known.sequence, KvEventLog::kMaxBatches + 1);
  EXPECT_TRUE(absl::IsDataLoss(slow->Next().status()));
}

TEST(KvEventFeed, SubscriptionsAreBoundedAndEndTogether) {
  KvEventFeed feed;
  std::atomic<int> told = 0;
  std::vector<std::unique_ptr<KvEventSubscription>> all;
  for (size_t i = 0; i < KvEventFeed::kMaxSubscriptions; ++i) {
    all.push_back(*feed.Subscribe(0, [&] { ++told; }));
  }
  EXPECT_TRUE(absl::IsResourceExhausted(feed.Subscribe(0, [] {}).status()));
  all.pop_back();
  all.push_back(*feed.Subscribe(0, [&] { ++told; }));
  feed.Close(absl::UnavailableError("the server ends"));
  while (told < static_cast<int>(all.size())) std::this_thread::yield();
  EXPECT_TRUE(absl::IsUnavailable(all.front()->Next().status()));
  EXPECT_TRUE(absl::IsUnavailable(feed.Subscribe(0, [] {}).status()));
}

// A reader with a thread of its own, that rests until it is told.
class RestingReader {
 public:
  RestingReader(KvEventFeed& feed, uint64_t last)
      : subscription_(*feed.Subscribe(0,
                                      [bell = bell_] {
                                        const MutexLock lock(bell->mutex);
                                        bell->rung = true;
                                        bell->wake.NotifyOne();
                                      })),
        thread_([this, last] {
          while (true) {
            known_.ReadAll(*subscription_);
            if (known_.sequence >= last) return;
            MutexLock lock(bell_->mutex);
            bell_->wake.Wait(lock, [this]() REQUIRES(bell_->mutex) { return bell_->rung; });
            bell_->rung = false;
          }
        }) {}
  const Known& Join() {
    thread_.join();
    return known_;
  }

 private:
  struct Bell {
    Mutex mutex;
    CondVar wake;
    bool rung GUARDED_BY(mutex) = false;
  };
  const std::shared_ptr<Bell> bell_ = std::make_shared<Bell>();
  Known known_;
  const std::unique_ptr<KvEventSubscription> subscription_;
  std::thread thread_;
};

// No wake is lost: each reader reaches the last batch, whenever it came, and knows the cache.
TEST(KvEventFeed, ReadersThatRestReachTheEnd) {
  KvEventFeed feed;
  constexpr uint64_t kManySteps = 5'000;  // fewer than the log keeps
  std::vector<std::unique_ptr<RestingReader>> readers;
  readers.push_back(std::make_unique<RestingReader>(feed, kManySteps));
  std::thread step([&] {
    std::mt19937 random(2);
    std::set<int64_t> stored;
    Store(*feed.log(), 1'000);  // stays, so that every snapshot has its number
    for (uint64_t i = 1; i < kManySteps; ++i) {
      const auto hash = static_cast<int64_t>(random() % 50);
      const bool removes = stored.erase(hash) == 1;
      if (!removes) stored.insert(hash);
      Append(*feed.log(), removes ? Kind::kRemoved : Kind::kStored, hash);
    }
  });
  for (int i = 0; i < 3; ++i) readers.push_back(std::make_unique<RestingReader>(feed, kManySteps));
  for (int i = 0; i < 20; ++i) (void)Subscribe(feed, 0);  // they come and go
  step.join();
  for (const auto& reader : readers) {
    const Known& known = reader->Join();
    EXPECT_EQ(known.sequence, kManySteps);
    EXPECT_EQ(known.hashes, Cached(*feed.log()));
  }
}

}  // namespace
}  // namespace eta
