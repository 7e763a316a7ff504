#include "engine/batching/kv_events/kv_event_log.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <utility>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

// Each block after its parent in the same group of layers, if that is here too.
std::vector<KvBlockPtr> ParentsFirst(const std::vector<KvBlockPtr>& blocks) {
  const auto group_of = [](const KvBlock& block) { return block.group ? block.group->index : 0; };
  std::map<uint32_t, std::unordered_map<int64_t, const KvBlockPtr*>> left_of_groups;
  for (const KvBlockPtr& block : blocks) {
    left_of_groups[group_of(*block)].emplace(block->hash, &block);
  }
  std::vector<KvBlockPtr> ordered;
  ordered.reserve(blocks.size());
  std::vector<const KvBlockPtr*> chain;
  for (auto& [group, left] : left_of_groups) {
    for (const KvBlockPtr& block : blocks) {
      auto next = group_of(*block) == group ? left.find(block->hash) : left.end();
      while (next != left.end()) {
        chain.push_back(next->second);
        const std::optional<int64_t> parent = (*next->second)->parent;
        left.erase(next);
        next = parent ? left.find(*parent) : left.end();
      }
      for (; !chain.empty(); chain.pop_back()) ordered.push_back(*chain.back());
    }
  }
  return ordered;
}

}  // namespace

void KvEventLog::Append(std::vector<Change>& changes) {
  const MutexLock lock(mutex_);
  Apply(changes);
}

bool KvEventLog::TryAppend(std::vector<Change>& changes) {
  if (!mutex_.TryLock()) return false;
  const MutexLock lock(mutex_, std::adopt_lock);
  Apply(changes);
  return true;
}

void KvEventLog::Apply(std::vector<Change>& changes) {
  KvEventBatch batch;
  batch.events.reserve(changes.size());
  for (Change& change : changes) Apply(change, batch.events);
  changes.clear();
  if (!batch.events.empty()) Keep(std::move(batch));
}

void KvEventLog::Apply(Change& change, std::vector<KvEvent>& events) {
  if (change.kind == KvEvent::Kind::kCleared) {
    if (live_.empty()) events.push_back({.kind = change.kind, .block = nullptr});
    return;
  }
  if (change.kind == KvEvent::Kind::kStored) {
    Live& live = live_[{change.hash, change.group}];
    if (live.holders++ > 0) return;
    live.block = std::move(change.block);
    events.push_back({.kind = change.kind, .block = live.block});
    return;
  }
  const auto found = live_.find({change.hash, change.group});
  if (found == live_.end() || --found->second.holders > 0) return;
  events.push_back({.kind = change.kind, .block = std::move(found->second.block)});
  live_.erase(found);
}

void KvEventLog::Keep(KvEventBatch batch) {
  batch.sequence = last_sequence_ + 1;
  batch.time = std::chrono::system_clock::now();
  const size_t events = batch.events.size();
  kept_.push_back(std::make_shared<const KvEventBatch>(std::move(batch)));
  kept_events_ += events;
  ++last_sequence_;
  while (kept_.size() > kMaxBatches || (kept_events_ > kMaxEvents && kept_.size() > 1)) {
    kept_events_ -= kept_.front()->events.size();
    kept_.pop_front();
  }
  if (told_) told_();
}

uint64_t KvEventLog::last_sequence() const {
  const MutexLock lock(mutex_);
  return last_sequence_;
}

absl::StatusOr<std::vector<KvEventBatchPtr>> KvEventLog::Read(uint64_t sequence, size_t max) const {
  const MutexLock lock(mutex_);
  const uint64_t first = last_sequence_ + 1 - kept_.size();
  if (sequence < first || sequence > last_sequence_ + 1) {
    return absl::DataLossError(absl::StrCat("of the cache's events, ", first, " to ",
                                            last_sequence_, " are kept, not ", sequence));
  }
  const auto begin = kept_.begin() + static_cast<std::ptrdiff_t>(sequence - first);
  const auto count = std::min(max, static_cast<size_t>(last_sequence_ - sequence + 1));
  return std::vector(begin, begin + static_cast<std::ptrdiff_t>(count));
}

void KvEventLog::OnAppend(std::function<void()> told) {
  const MutexLock lock(mutex_);
  told_ = std::move(told);
}

KvEventLog::Snapshot KvEventLog::TakeSnapshot() const {
  Snapshot snapshot;
  {
    const MutexLock lock(mutex_);
    snapshot.sequence = last_sequence_;
    snapshot.blocks.reserve(live_.size());
    for (const auto& [name, live] : live_) snapshot.blocks.push_back(live.block);
  }
  snapshot.blocks = ParentsFirst(snapshot.blocks);
  return snapshot;
}

}  // namespace eta
