#include "engine/submission_queue.h"

#include <algorithm>
#include <new>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/batching/batcher.h"
#include "engine/batching/tenant_shares.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

// How long the step thread rests when every sequence waits for its reader.
constexpr milliseconds kCongestionPoll{5};
constexpr std::chrono::seconds kPassRetry{1};  // where their queue is full

// Another replica may take the request at once; the time spreads those that all come from here.
constexpr milliseconds kElsewhere{100};
constexpr std::chrono::seconds kRestart{1};  // where there is none, the process has to load first

// Of one request that waits.
TenantQueue QueueOf(const Request& request, int64_t tokens) {
  return {.tenant = request.tenant,
          .weight = TenantShares::Weight(request.share),
          .waiting = 1,
          .waiting_tokens = tokens};
}

auto IsOf(const std::string& tenant) {
  return [&tenant](const TenantQueue& queue) { return queue.tenant == tenant; };
}

}  // namespace

absl::Status ShuttingDown() {
  return MakeError(absl::StatusCode::kUnavailable, "the server is shutting down",
                   {.reason = "DRAINING", .retry_after = kElsewhere});
}

absl::Status DeviceLost(const std::string& message) {
  return MakeError(absl::StatusCode::kUnavailable, message,
                   {.reason = "DEVICE_ERROR", .retry_after = kRestart});
}

absl::Status SubmissionQueue::Refusal() const {
  if (state_.snapshot.out_of_memory) {
    return DeviceLost("a step had no memory on the host; the process must restart");
  }
  return state_.snapshot.device_lost ? DeviceLost("the device has failed; the process must restart")
                                     : ShuttingDown();
}

absl::Status SubmissionQueue::Check(int64_t tokens, const Request& request) const {
  const std::lock_guard lock(mutex_);
  return CheckLocked(tokens, request);
}

// Where another has more, the batcher refuses one of that tenant's instead, a step later: until
// then the queue may be longer than its limit, but never twice as long.
absl::Status SubmissionQueue::CheckLocked(int64_t tokens, const Request& request) const {
  if (mail_.draining || state_.snapshot.device_lost) return Refusal();
  const int64_t waiting = Waiting();
  const int64_t most_requests = limits_.max_waiting_requests;
  if (waiting >= most_requests &&
      (waiting >= 2 * most_requests || !AnotherHasMore(request, &TenantQueue::waiting, 1))) {
    return QueueFull(limits_.max_waiting_requests, RetryAfter());
  }
  const int64_t queued = QueuedTokens();
  const int64_t longer = queued + tokens;
  if (queued > 0 && longer > limits_.max_waiting_tokens &&
      (longer - limits_.max_waiting_tokens > limits_.max_waiting_tokens ||
       !AnotherHasMore(request, &TenantQueue::waiting_tokens, tokens))) {
    return QueueTooLong(limits_.max_waiting_tokens, RetryAfter());
  }
  return absl::OkStatus();
}

bool SubmissionQueue::AnotherHasMore(const Request& request, int64_t TenantQueue::*what,
                                     int64_t more) const {
  double own = static_cast<double>(more);
  double most = 0.0;
  for (const TenantQueue& tenant : tenants_) {
    const auto has = static_cast<double>(tenant.*what);
    if (tenant.tenant == request.tenant) {
      own += has;
    } else {
      most = std::max(most, has / tenant.weight);
    }
  }
  return most > own / TenantShares::Weight(request.share);
}

void SubmissionQueue::Count(const TenantQueue& one) {
  const auto found = std::find_if(tenants_.begin(), tenants_.end(), IsOf(one.tenant));
  if (found == tenants_.end()) {
    tenants_.push_back(one);
  } else {
    found->waiting += one.waiting;
    found->waiting_tokens += one.waiting_tokens;
  }
}

void SubmissionQueue::Uncount(const TenantQueue& one) {
  const auto found = std::find_if(tenants_.begin(), tenants_.end(), IsOf(one.tenant));
  if (found == tenants_.end()) return;
  found->waiting -= one.waiting;
  found->waiting_tokens -= one.waiting_tokens;
}

absl::StatusOr<uint64_t> SubmissionQueue::Reserve(int64_t tokens, const Request& request) {
  const std::lock_guard lock(mutex_);
  if (absl::Status room = CheckLocked(tokens, request); !room.ok()) return room;
  reserved_.push_back({.id = last_place_ + 1, .queue = QueueOf(request, tokens)});
  try {
    Count(reserved_.back().queue);
  } catch (...) {
    reserved_.pop_back();
    throw;
  }
  return ++last_place_;
}

SubmissionQueue::Place SubmissionQueue::TakePlace(uint64_t id) {
  const auto found = std::find_if(reserved_.begin(), reserved_.end(),
                                  [id](const Place& place) { return place.id == id; });
  Place place = std::move(*found);
  reserved_.erase(found);
  return place;
}

void SubmissionQueue::Release(uint64_t place) {
  const std::lock_guard lock(mutex_);
  Uncount(TakePlace(place).queue);
}

absl::Status SubmissionQueue::Join(uint64_t place, std::unique_ptr<Sequence> sequence) {
  {
    const std::lock_guard lock(mutex_);
    const Place kept = TakePlace(place);
    if (mail_.draining || state_.snapshot.device_lost) {
      Uncount(kept.queue);
      return Refusal();
    }
    mail_.requests.push_back(std::move(sequence));
    mail_.requests.back()->Owe();
  }
  wake_.notify_all();
  return absl::OkStatus();
}

absl::Status SubmissionQueue::Join(std::unique_ptr<PassRun> pass) {
  {
    const std::lock_guard lock(mutex_);
    if (mail_.draining || state_.snapshot.device_lost) return Refusal();
    const auto queued = state_.snapshot.passes_running + state_.snapshot.passes_waiting +
                        static_cast<int64_t>(mail_.passes.size());
    if (queued >= Engine::kMaxPasses) {
      return MakeError(absl::StatusCode::kResourceExhausted, "too many passes are queued",
                       {.reason = "QUEUE_FULL",
                        .metadata = {{"max_passes", absl::StrCat(Engine::kMaxPasses)}},
                        .retry_after = kPassRetry});
    }
    mail_.passes.push_back(std::move(pass));
    mail_.passes.back()->Owe();
  }
  wake_.notify_all();
  return absl::OkStatus();
}

void SubmissionQueue::Cancel(uint64_t handle) {
  {
    const std::lock_guard lock(mutex_);
    mail_.cancelled.push_back(handle);
  }
  wake_.notify_all();
}

void SubmissionQueue::Drain(Clock::time_point deadline) {
  std::unique_lock lock(mutex_);
  mail_.draining = true;
  wake_.notify_all();
  if (!idle_.wait_until(lock, deadline, [this] { return Idle(); })) {
    mail_.abandon = true;
    wake_.notify_all();
    idle_.wait(lock, [this] { return Idle(); });
  }
}

void SubmissionQueue::Stop() {
  {
    const std::lock_guard lock(mutex_);
    mail_.draining = true;
    mail_.abandon = true;
    mail_.stop = true;
  }
  wake_.notify_all();
}

EngineSnapshot SubmissionQueue::Snapshot() const {
  const std::lock_guard lock(mutex_);
  EngineSnapshot snapshot = state_.snapshot;
  snapshot.waiting += static_cast<int32_t>(mail_.requests.size());
  for (const auto& sequence : mail_.requests) snapshot.waiting_tokens += sequence->prompt_len();
  snapshot.passes_waiting += static_cast<int32_t>(mail_.passes.size());
  return snapshot;
}

std::vector<TenantQueue> SubmissionQueue::Tenants() const {
  const std::lock_guard lock(mutex_);
  return tenants_;
}

bool SubmissionQueue::HasPasses() const {
  return !mail_.passes.empty() ||
         state_.snapshot.passes_running + state_.snapshot.passes_waiting > 0;
}

bool SubmissionQueue::Idle() const {
  return mail_.requests.empty() && state_.snapshot.running == 0 && state_.snapshot.waiting == 0 &&
         !HasPasses();
}

int64_t SubmissionQueue::Waiting() const {
  return state_.snapshot.unstarted() +
         static_cast<int64_t>(reserved_.size() + mail_.requests.size());
}

int64_t SubmissionQueue::QueuedTokens() const {
  int64_t tokens = state_.snapshot.waiting_tokens;
  for (const Place& place : reserved_) tokens += place.queue.waiting_tokens;
  for (const auto& sequence : mail_.requests) tokens += sequence->prompt_len();
  return tokens;
}

milliseconds SubmissionQueue::RetryAfter() const {
  return state_.snapshot.wait_estimate.RetryAfter(QueuedTokens() + state_.prefill_tokens,
                                                  Waiting() + state_.snapshot.preempted);
}

SubmissionQueue::Mail SubmissionQueue::Take(bool rest) {
  std::unique_lock lock(mutex_);
  if (rest) {
    const auto called = [this] {
      return mail_.stop || mail_.abandon || !mail_.requests.empty() || !mail_.passes.empty() ||
             !mail_.cancelled.empty() || (mail_.draining && HasPasses());
    };
    if (Idle()) {
      idle_.notify_all();
      wake_.wait(lock, called);
    } else {
      wake_.wait_for(lock, kCongestionPoll, called);
    }
  }
  return TakeLocked();
}

// What is taken waits still, until a step has admitted it.
SubmissionQueue::Mail SubmissionQueue::TakeLocked() {
  Mail mail = std::exchange(mail_, {.draining = mail_.draining, .stop = mail_.stop});
  for (const auto& sequence : mail.requests) {
    ++state_.snapshot.waiting;
    state_.snapshot.waiting_tokens += sequence->prompt_len();
  }
  state_.snapshot.passes_waiting += static_cast<int32_t>(mail.passes.size());
  return mail;
}

void SubmissionQueue::Report(State state) {
  const std::lock_guard lock(mutex_);
  state_ = std::move(state);
  tenants_ = std::exchange(state_.tenants, {});
  try {
    for (const Place& place : reserved_) Count(place.queue);
    for (const auto& sequence : mail_.requests) {
      Count(QueueOf(sequence->request(), sequence->prompt_len()));
    }
  } catch (const std::bad_alloc&) {  // the next one counts them
  }
  if (Idle()) idle_.notify_all();
}

SubmissionQueue::Mail SubmissionQueue::Close() {
  const std::lock_guard lock(mutex_);
  state_.snapshot.device_lost = true;
  state_.snapshot.out_of_memory = true;
  return TakeLocked();
}

}  // namespace eta
