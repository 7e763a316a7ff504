#include "engine/front/submission_queue.h"

#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"

namespace eta {
namespace {

using std::chrono::milliseconds;

// How long the step thread rests when every sequence waits for its reader.
constexpr milliseconds kCongestionPoll{5};
constexpr std::chrono::seconds kPassRetry{1};  // where their queue is full

// Another replica may serve the request at once; the time spreads those that all come from here.
constexpr milliseconds kElsewhere{100};
constexpr std::chrono::seconds kRestart{1};  // where there is none, the process has to load first

}  // namespace

absl::Status ShuttingDown() {
  return MakeError(absl::StatusCode::kUnavailable, "the server is shutting down",
                   {.reason = "DRAINING", .retry_after = kElsewhere});
}

absl::Status DeviceLost(const std::string& message) {
  return MakeError(absl::StatusCode::kUnavailable, message,
                   {.reason = "DEVICE_ERROR", .retry_after = kRestart});
}

SubmissionQueue::Reservation::Reservation(Reservation&& other) noexcept
    : queue_(std::exchange(other.queue_, nullptr)), handle_(other.handle_) {}

SubmissionQueue::Reservation::~Reservation() {
  if (queue_ != nullptr) queue_->Release(handle_);
}

SubmissionQueue::SubmissionQueue(const Limits& limits)
    : limits_(limits), ledger_(limits.max_waiting_requests, limits.max_waiting_tokens) {}

absl::Status SubmissionQueue::Unavailable() const {
  if (state_.snapshot.out_of_memory) {
    return DeviceLost("a step had no memory on the host; the process must restart");
  }
  return state_.snapshot.device_lost ? DeviceLost("the device has failed; the process must restart")
                                     : ShuttingDown();
}

absl::Status SubmissionQueue::Full(QueueLedger::Limit limit) const {
  if (limit == QueueLedger::Limit::kRequests) {
    return MakeError(
        absl::StatusCode::kResourceExhausted, "the queue is full",
        {.reason = "QUEUE_FULL",
         .metadata = {{"max_waiting_requests", absl::StrCat(limits_.max_waiting_requests)}},
         .retry_after = RetryAfter()});
  }
  return MakeError(absl::StatusCode::kResourceExhausted, "the queue holds too many prompt tokens",
                   {.reason = "TOKEN_BUDGET",
                    .metadata = {{"max_waiting_tokens", absl::StrCat(limits_.max_waiting_tokens)}},
                    .retry_after = RetryAfter()});
}

milliseconds SubmissionQueue::RetryAfter() const {
  return state_.snapshot.wait_estimate.RetryAfter(ledger_.tokens() + state_.prefill_tokens,
                                                  ledger_.requests() + state_.snapshot.preempted);
}

bool SubmissionQueue::Closing() const {
  return submissions_.draining || state_.snapshot.device_lost;
}

absl::Status SubmissionQueue::Check(int64_t tokens, const Request& request) const {
  const MutexLock lock(mutex_);
  if (Closing()) return Unavailable();
  const QueueLedger::Room room = ledger_.FindRoom(request, tokens);
  return room.refused_by ? Full(*room.refused_by) : absl::OkStatus();
}

absl::StatusOr<SubmissionQueue::Reservation> SubmissionQueue::Reserve(int64_t tokens,
                                                                      const Request& request) {
  std::optional<Reservation> place;  // outlives the lock, which its destructor needs
  bool displaced;
  {
    const MutexLock lock(mutex_);
    if (Closing()) return Unavailable();
    const uint64_t handle = ++last_handle_;
    const QueueLedger::Room room = ledger_.Enter(handle, request, tokens);
    if (room.refused_by) return Full(*room.refused_by);
    place.emplace(*this, handle);
    displaced = !room.displaced.empty();
    // The step thread ignores a victim that has not joined yet: Join refuses that one.
    for (const QueueLedger::Victim& victim : room.displaced) {
      submissions_.displaced.push_back({victim.handle, Full(victim.limit)});
    }
  }
  if (displaced) wake_.NotifyAll();
  return *std::move(place);
}

void SubmissionQueue::Release(uint64_t handle) {
  const MutexLock lock(mutex_);
  ledger_.Leave(handle);
  if (Idle()) idle_.NotifyAll();
}

absl::Status SubmissionQueue::Join(Reservation& place, std::unique_ptr<Sequence> sequence) {
  {
    const MutexLock lock(mutex_);
    if (Closing()) return Unavailable();
    if (const auto limit = ledger_.DisplacedBy(place.handle())) return Full(*limit);
    submissions_.requests.push_back(std::move(sequence));
    submissions_.requests.back()->Owe();
    place.queue_ = nullptr;
  }
  wake_.NotifyAll();
  return absl::OkStatus();
}

uint64_t SubmissionQueue::NewHandle() {
  const MutexLock lock(mutex_);
  return ++last_handle_;
}

absl::Status SubmissionQueue::Join(std::unique_ptr<PassRun> pass) {
  {
    const MutexLock lock(mutex_);
    if (Closing()) return Unavailable();
    const auto queued = state_.snapshot.passes_running + state_.snapshot.passes_waiting +
                        static_cast<int64_t>(submissions_.passes.size());
    if (queued >= Engine::kMaxPasses) {
      return MakeError(absl::StatusCode::kResourceExhausted, "too many passes are queued",
                       {.reason = "QUEUE_FULL",
                        .metadata = {{"max_passes", absl::StrCat(Engine::kMaxPasses)}},
                        .retry_after = kPassRetry});
    }
    submissions_.passes.push_back(std::move(pass));
    submissions_.passes.back()->Owe();
  }
  wake_.NotifyAll();
  return absl::OkStatus();
}

void SubmissionQueue::Cancel(uint64_t handle) {
  {
    const MutexLock lock(mutex_);
    submissions_.cancelled.push_back(handle);
  }
  wake_.NotifyAll();
}

void SubmissionQueue::ForgetPrefixes() {
  {
    const MutexLock lock(mutex_);
    submissions_.forget = true;
  }
  wake_.NotifyAll();
}

void SubmissionQueue::Drain(Clock::time_point deadline) {
  const auto idle = [this]() REQUIRES(mutex_) { return Idle(); };
  MutexLock lock(mutex_);
  submissions_.draining = true;
  wake_.NotifyAll();
  if (!idle_.WaitUntil(lock, deadline, idle)) {
    submissions_.abandon = true;
    wake_.NotifyAll();
    idle_.Wait(lock, idle);
  }
}

void SubmissionQueue::Stop() {
  {
    const MutexLock lock(mutex_);
    submissions_.draining = true;
    submissions_.abandon = true;
    submissions_.stop = true;
  }
  wake_.NotifyAll();
}

EngineSnapshot SubmissionQueue::Snapshot() const {
  const MutexLock lock(mutex_);
  EngineSnapshot snapshot = state_.snapshot;
  snapshot.waiting = static_cast<int32_t>(ledger_.requests()) + snapshot.preempted;
  snapshot.waiting_tokens = ledger_.tokens();
  snapshot.passes_waiting += static_cast<int32_t>(submissions_.passes.size());
  return snapshot;
}

std::vector<TenantQueue> SubmissionQueue::Tenants() const {
  const MutexLock lock(mutex_);
  std::vector<TenantQueue> tenants = state_.tenants;
  ledger_.AddTo(tenants);
  return tenants;
}

bool SubmissionQueue::HasPasses() const {
  return !submissions_.passes.empty() ||
         state_.snapshot.passes_running + state_.snapshot.passes_waiting > 0;
}

bool SubmissionQueue::Idle() const {
  return ledger_.empty() && state_.snapshot.running == 0 && state_.snapshot.preempted == 0 &&
         !HasPasses();
}

bool SubmissionQueue::Called() const {
  return submissions_.stop || submissions_.abandon || !submissions_.requests.empty() ||
         !submissions_.passes.empty() || !submissions_.displaced.empty() ||
         !submissions_.cancelled.empty() || submissions_.forget ||
         (submissions_.draining && HasPasses());
}

SubmissionQueue::Submissions SubmissionQueue::Receive(bool rest) {
  MutexLock lock(mutex_);
  if (rest) {
    const auto called = [this]() REQUIRES(mutex_) { return Called(); };
    if (Idle()) {
      idle_.NotifyAll();
      wake_.Wait(lock, called);
    } else {
      wake_.WaitFor(lock, kCongestionPoll, called);
    }
  }
  return ReceiveNow();
}

SubmissionQueue::Submissions SubmissionQueue::ReceiveNow() {
  Submissions received =
      std::exchange(submissions_, {.draining = submissions_.draining, .stop = submissions_.stop});
  state_.snapshot.passes_waiting += static_cast<int32_t>(received.passes.size());
  return received;
}

void SubmissionQueue::Report(State state) {
  const MutexLock lock(mutex_);
  state_ = std::move(state);
  for (const uint64_t handle : state_.left) ledger_.Leave(handle);
  if (state_.snapshot.out_of_memory) ledger_.Clear();
  if (Idle()) idle_.NotifyAll();
}

SubmissionQueue::Submissions SubmissionQueue::Close() {
  const MutexLock lock(mutex_);
  state_.snapshot.device_lost = true;
  state_.snapshot.out_of_memory = true;
  return ReceiveNow();
}

}  // namespace eta
