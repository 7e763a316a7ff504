#include "engine/batching/kv_events/kv_event_log.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <map>
#include <random>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/kv_events/kv_event_recorder.h"

namespace eta {
namespace {

constexpr int kTokensOfBlock = 4;
constexpr int kNames = 60;  // blocks 1 to 60; block n comes after block n / 3

PrefixKey KeyOf(int name) {
  PrefixKey key;
  key.digest.fill(static_cast<uint8_t>(name));
  return key;
}

std::vector<int32_t> TokensOf(int name) {
  return std::vector<int32_t>(kTokensOfBlock, name);
}

// A device: its pool, and the step thread's side of it.
struct CachingDevice {
  explicit CachingDevice(const std::shared_ptr<KvEventLog>& log,
                         const std::string& served = "model")
      : recorder(log, served), pool(17, &recorder) {}

  void Publish(int32_t block, int name) {
    const PrefixKey parent = KeyOf(name / 3);
    pool.Publish(block, KeyOf(name), name < 3 ? nullptr : &parent, TokensOf(name));
  }
  void Store(int name) {
    const int32_t block = *pool.Allocate();
    Publish(block, name);
    pool.Release(block);
  }
  bool Caches(int name) const { return pool.FindPrefix(std::vector{KeyOf(name)}).num_blocks == 1; }

  KvEventRecorder recorder;
  BlockPool pool;
};

// What a reader of events believes to be cached, by name.
struct EventReader {
  void Apply(const KvEventBatch& batch) {
    EXPECT_EQ(batch.sequence, sequence + 1);
    sequence = batch.sequence;
    EXPECT_FALSE(batch.events.empty());
    for (const KvEvent& event : batch.events) Apply(event);
  }
  void Apply(const KvEvent& event) {
    if (event.kind == KvEvent::Kind::kCleared) return names.clear();
    const int name = event.block->tokens.at(0);
    EXPECT_EQ(event.block->tokens, TokensOf(name));
    EXPECT_EQ(event.block->parent.has_value(), name >= 3);
    EXPECT_EQ(hashes.emplace(name, event.block->hash).first->second, event.block->hash);
    if (event.block->parent && hashes.contains(name / 3)) {
      EXPECT_EQ(*event.block->parent, hashes[name / 3]);
    }
    if (event.kind == KvEvent::Kind::kStored) {
      EXPECT_TRUE(names.insert(name).second) << name << " is stored twice";
    } else {
      EXPECT_EQ(names.erase(name), 1u) << name << " is removed, and was not stored";
    }
  }

  uint64_t sequence = 0;
  std::set<int> names;
  std::map<int, int64_t> hashes;  // of each name
};

std::set<int> CachedBy(const std::array<CachingDevice, 2>& devices) {
  std::set<int> names;
  for (int name = 1; name <= kNames; ++name) {
    if (devices[0].Caches(name) || devices[1].Caches(name)) names.insert(name);
  }
  return names;
}

std::set<int> NamesIn(const KvEventLog::Snapshot& snapshot) {
  std::set<int> names;
  for (const KvBlockPtr& block : snapshot.blocks) names.insert(block->tokens.at(0));
  EXPECT_EQ(names.size(), snapshot.blocks.size());
  return names;
}

// Two devices that share one log, as they are used: what is replayed is what they cache.
TEST(KvEventLog, ReplayedEventsAreTheCacheThroughTenThousandOperations) {
  const auto log = std::make_shared<KvEventLog>();
  std::array<CachingDevice, 2> devices{CachingDevice(log), CachingDevice(log)};
  std::array<std::vector<int32_t>, 2> held;
  std::mt19937 random(5);
  EventReader reader;
  for (int step = 0; step < 10'000; ++step) {
    const size_t d = random() % 2;
    CachingDevice& device = devices[d];
    const auto choice = random() % 200;
    if (choice == 0) {
      device.pool.Forget();
    } else if (choice < 70) {
      if (const auto block = device.pool.Allocate()) held[d].push_back(*block);
    } else if (choice < 130 && !held[d].empty()) {
      const size_t i = random() % held[d].size();
      device.pool.Release(held[d][i]);
      held[d].erase(held[d].begin() + static_cast<std::ptrdiff_t>(i));
    } else if (choice < 190 && !held[d].empty()) {
      device.Publish(held[d][random() % held[d].size()], 1 + static_cast<int>(random() % kNames));
    } else if (const auto block = device.pool.Acquire(KeyOf(1 + random() % kNames))) {
      held[d].push_back(*block);
    }
    if (random() % 3 != 0) continue;
    for (CachingDevice& each : devices) each.recorder.Flush(/*wait=*/random() % 2 == 0);
    const std::vector<KvEventBatchPtr> batches = *log->Read(reader.sequence + 1, 100);
    for (const KvEventBatchPtr& batch : batches) reader.Apply(*batch);
    ASSERT_EQ(reader.sequence, log->last_sequence());
    ASSERT_EQ(reader.names, CachedBy(devices)) << "after step " << step;
    const KvEventLog::Snapshot snapshot = log->TakeSnapshot();
    ASSERT_EQ(snapshot.sequence, reader.sequence);
    ASSERT_EQ(NamesIn(snapshot), reader.names);
  }
  EXPECT_GT(reader.sequence, 1'000u);
}

TEST(KvEventLog, ASnapshotHasParentsBeforeTheirChildren) {
  const auto log = std::make_shared<KvEventLog>();
  CachingDevice device(log);
  for (const int name : {13, 40, 4, 1, 39}) device.Store(name);
  device.recorder.Flush(/*wait=*/true);
  std::vector<int> order;
  for (const KvBlockPtr& block : log->TakeSnapshot().blocks) order.push_back(block->tokens.at(0));
  ASSERT_EQ(order.size(), 5u);
  const auto place = [&](int name) { return std::find(order.begin(), order.end(), name); };
  EXPECT_LT(place(1), place(4));
  EXPECT_LT(place(4), place(13));
  EXPECT_LT(place(13), place(40));
  EXPECT_LT(place(13), place(39));
}

TEST(KvEventLog, WhatTwoDevicesHoldIsRemovedByTheLast) {
  const auto log = std::make_shared<KvEventLog>();
  std::array<CachingDevice, 2> devices{CachingDevice(log), CachingDevice(log)};
  for (CachingDevice& device : devices) {
    device.Store(1);
    device.recorder.Flush(/*wait=*/true);
  }
  EXPECT_EQ(log->last_sequence(), 1u) << "the second device has nothing new to tell";
  devices[0].pool.Forget();
  devices[0].recorder.Flush(/*wait=*/true);
  EXPECT_EQ(log->last_sequence(), 1u);
  devices[1].pool.Forget();
  devices[1].recorder.Flush(/*wait=*/true);
  const auto batches = *log->Read(2, 10);
  ASSERT_EQ(batches.size(), 1u);
  ASSERT_EQ(batches[0]->events.size(), 2u);
  EXPECT_EQ(batches[0]->events[0].kind, KvEvent::Kind::kRemoved);
  EXPECT_EQ(batches[0]->events[1].kind, KvEvent::Kind::kCleared);
}

TEST(KvEventLog, AHashTellsModelsApart) {
  const auto log = std::make_shared<KvEventLog>();
  CachingDevice device(log, "fingerprint;kv=float16"), same(log, "fingerprint;kv=float16"),
      other(log, "fingerprint;kv=float32");
  for (CachingDevice* each : {&device, &same, &other}) {
    each->Store(1);
    each->recorder.Flush(/*wait=*/true);
  }
  EXPECT_EQ(log->TakeSnapshot().blocks.size(), 2u);
}

TEST(KvEventLog, OldBatchesGoAndTheNumbersStay) {
  KvEventLog log;
  std::vector<KvEventLog::Change> changes;
  const uint64_t batches = KvEventLog::kMaxBatches + 10;
  for (uint64_t i = 1; i <= batches; ++i) {
    const auto hash = static_cast<int64_t>(i);
    changes.push_back({.kind = KvEvent::Kind::kStored,
                       .hash = hash,
                       .block = std::make_shared<KvBlock>(KvBlock{.hash = hash})});
    log.Append(changes);
  }
  EXPECT_TRUE(absl::IsDataLoss(log.Read(10, 5).status())) << "it is not kept any more";
  const auto kept = *log.Read(11, 5);
  ASSERT_EQ(kept.size(), 5u);
  EXPECT_EQ(kept[0]->sequence, 11u);
  EXPECT_EQ(log.Read(batches, 5)->size(), 1u);
  EXPECT_TRUE(log.Read(batches + 1, 5)->empty()) << "it is the next to come";
  EXPECT_TRUE(absl::IsDataLoss(log.Read(batches + 2, 5).status()));
  EXPECT_TRUE(absl::IsDataLoss(log.Read(0, 5).status()));

  for (size_t i = 0; i <= KvEventLog::kMaxEvents; ++i) {
    const auto hash = -static_cast<int64_t>(i) - 1;
    changes.push_back({.kind = KvEvent::Kind::kStored,
                       .hash = hash,
                       .block = std::make_shared<KvBlock>(KvBlock{.hash = hash})});
  }
  log.Append(changes);
  EXPECT_TRUE(absl::IsDataLoss(log.Read(batches, 5).status()))
      << "one large batch takes the room of all others";
  EXPECT_EQ(log.Read(batches + 1, 5)->size(), 1u);
}

// A step thread at work while others read: nothing is lost, and numbers have no gaps.
TEST(KvEventLog, ReadersOnOtherThreadsSeeEveryBatchOnce) {
  const auto log = std::make_shared<KvEventLog>();
  constexpr uint64_t kManySteps = 2'000;
  std::thread step([&] {
    CachingDevice device(log);
    for (uint64_t i = 0; i < kManySteps; ++i) {
      device.Store(1 + static_cast<int>(i) % kNames);
      device.recorder.Flush(/*wait=*/i + 1 == kManySteps);
    }
  });
  std::thread snapshots([&] {
    while (log->TakeSnapshot().sequence == 0) std::this_thread::yield();
    for (int i = 0; i < 100; ++i) (void)log->TakeSnapshot();
  });
  step.join();
  snapshots.join();
  EventReader reader;
  const std::vector<KvEventBatchPtr> batches = *log->Read(1, kManySteps);
  for (const KvEventBatchPtr& batch : batches) reader.Apply(*batch);
  EXPECT_EQ(reader.sequence, log->last_sequence());
  EXPECT_EQ(reader.names, NamesIn(log->TakeSnapshot()));
}

}  // namespace
}  // namespace eta
