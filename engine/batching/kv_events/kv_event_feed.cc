#include "engine/batching/kv_events/kv_event_feed.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr size_t kReadAtOnce = 64;  // batches
constexpr std::chrono::seconds kReaderRetry{5};

// Parts of at most so many tokens, and a block more.
std::deque<KvEventBatchPtr> SplitSnapshot(KvEventLog::Snapshot snapshot, bool anew) {
  std::vector<KvEventBatch> parts;
  const auto begin_part = [&] {
    parts.push_back({.sequence = snapshot.sequence, .time = std::chrono::system_clock::now()});
  };
  if (anew) {
    begin_part();
    parts.back().events.push_back({.kind = KvEvent::Kind::kCleared, .block = nullptr});
  }
  const auto blocks = static_cast<uint64_t>(snapshot.blocks.size());
  size_t tokens = 0;
  for (KvBlockPtr& block : snapshot.blocks) {
    if (parts.empty() || tokens >= KvEventFeed::kMaxPartTokens) {
      begin_part();
      tokens = 0;
    }
    tokens += block->tokens.size();
    parts.back().events.push_back({.kind = KvEvent::Kind::kStored, .block = std::move(block)});
  }
  std::deque<KvEventBatchPtr> split;
  for (KvEventBatch& part : parts) {
    part.snapshot = {.index = static_cast<uint32_t>(split.size()),
                     .count = static_cast<uint32_t>(parts.size()),
                     .blocks = blocks};
    split.push_back(std::make_shared<const KvEventBatch>(std::move(part)));
  }
  return split;
}

}  // namespace

KvEventSubscription::~KvEventSubscription() {
  feed_.Remove(reader_.get());
}

void KvEventSubscription::Begin(uint64_t start) {
  next_ = start;
  if (start == 0) {
    BeginWithSnapshot(/*anew=*/false);
  } else if (!feed_.log()->Read(start, 1).ok()) {
    BeginWithSnapshot(/*anew=*/true);
  }
}

void KvEventSubscription::BeginWithSnapshot(bool anew) {
  KvEventLog::Snapshot snapshot = feed_.log()->TakeSnapshot();
  next_ = snapshot.sequence + 1;
  read_ = SplitSnapshot(std::move(snapshot), anew);
}

absl::StatusOr<KvEventBatchPtr> KvEventSubscription::Next() {
  RETURN_IF_ERROR(feed_.closed());
  if (read_.empty()) {
    reader_->waits = true;  // before it looks: what comes behind its back wakes it
    ASSIGN_OR_RETURN(const auto batches, feed_.log()->Read(next_, kReadAtOnce));
    read_.assign(batches.begin(), batches.end());
    next_ += batches.size();
  }
  if (read_.empty()) return KvEventBatchPtr();
  reader_->waits = false;
  KvEventBatchPtr batch = std::move(read_.front());
  read_.pop_front();
  return batch;
}

KvEventFeed::KvEventFeed() : thread_("kv_events", [this] { return TellReaders(); }) {
  log_->OnAppend([this] { thread_.Wake(); });
}

KvEventFeed::~KvEventFeed() {
  log_->OnAppend(nullptr);
}

absl::StatusOr<std::unique_ptr<KvEventSubscription>> KvEventFeed::Subscribe(
    uint64_t start, std::function<void()> wake) {
  const auto reader = std::make_shared<Reader>(std::move(wake));
  std::unique_ptr<KvEventSubscription> subscription(new KvEventSubscription(*this, reader));
  {
    const MutexLock lock(mutex_);
    RETURN_IF_ERROR(closed_);
    if (readers_.size() >= kMaxSubscriptions) {
      return MakeError(
          absl::StatusCode::kResourceExhausted,
          absl::StrCat("as many calls read the cache's events as may (", kMaxSubscriptions, ")"),
          {.reason = "WATCHERS_FULL", .retry_after = kReaderRetry});
    }
    readers_.push_back(reader);
  }
  subscription->Begin(start);
  return subscription;
}

void KvEventFeed::Close(absl::Status why) {
  {
    const MutexLock lock(mutex_);
    closed_ = std::move(why);
    for (const auto& reader : readers_) reader->waits = true;
  }
  thread_.Wake();
}

absl::Status KvEventFeed::closed() const {
  const MutexLock lock(mutex_);
  return closed_;
}

void KvEventFeed::Remove(const Reader* reader) {
  std::shared_ptr<Reader> removed;  // what its wake holds goes without the lock
  const MutexLock lock(mutex_);
  const auto found = std::find_if(readers_.begin(), readers_.end(),
                                  [&](const auto& each) { return each.get() == reader; });
  if (found == readers_.end()) return;
  removed = std::move(*found);
  readers_.erase(found);
}

Clock::time_point KvEventFeed::TellReaders() {
  std::vector<std::shared_ptr<Reader>> told;
  {
    const MutexLock lock(mutex_);
    for (const auto& reader : readers_) {
      if (reader->waits.exchange(false)) told.push_back(reader);
    }
  }
  for (const auto& reader : told) reader->wake();
  return LoopThread::kWhenWoken;
}

}  // namespace eta
