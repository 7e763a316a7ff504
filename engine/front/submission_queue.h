// What stands between an engine's callers and its step thread: requests and passes until the thread
// receives them, whom to end, and how things stood after the last step. Whatever the queue has no
// room for is refused here (queue_ledger.h).
//
// A request's way: Reserve a place, make its sequence, Join. From Join on the request is owed an
// end, which the step thread gives it.
//
// Thread-safe. Receive, Report and Close are for the step thread alone. A reservation must not
// outlive the queue.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/batching/sequence.h"
#include "engine/front/engine.h"
#include "engine/front/queue_ledger.h"
#include "engine/passes/pass_run.h"
#include "engine/request/limits.h"

namespace eta {

class SubmissionQueue {
 public:
  struct Refusal {
    uint64_t handle;
    absl::Status status;
  };
  // What came since the last Receive.
  struct Submissions {
    std::vector<std::unique_ptr<Sequence>> requests;
    std::vector<std::unique_ptr<PassRun>> passes;
    std::vector<Refusal> displaced;   // end with this, unless they have started
    std::vector<uint64_t> cancelled;  // handles
    bool forget = false;              // prefixes, before any of the requests
    bool draining = false;            // passes end now
    bool abandon = false;             // everything does
    bool stop = false;                // and so does the thread
  };
  // How things stand between two steps.
  struct State {
    EngineSnapshot snapshot;           // what waits for its first step is filled in here
    std::vector<TenantQueue> tenants;  // likewise
    std::vector<uint64_t> left;        // requests that started, or ended without having started
    int64_t prefill_tokens = 0;        // that running requests have before them
  };

  // A place in the queue, given up on destruction unless its request has joined.
  class Reservation {
   public:
    Reservation(SubmissionQueue& queue, uint64_t handle) : queue_(&queue), handle_(handle) {}
    Reservation(Reservation&& other) noexcept;
    Reservation& operator=(Reservation&&) = delete;
    ~Reservation();
    uint64_t handle() const { return handle_; }

   private:
    friend class SubmissionQueue;
    SubmissionQueue* queue_;  // null: nothing to give up
    uint64_t handle_;
  };

  explicit SubmissionQueue(const Limits& limits);

  // Whether the queue has room for a request of so many prompt tokens. RESOURCE_EXHAUSTED
  // (QUEUE_FULL, TOKEN_BUDGET), UNAVAILABLE (DRAINING, DEVICE_ERROR).
  absl::Status Check(int64_t tokens, const Request& request) const EXCLUDES(mutex_);
  // A place for it, from now on counted as its tenant's, and its handle. Errors as of Check.
  absl::StatusOr<Reservation> Reserve(int64_t tokens, const Request& request) EXCLUDES(mutex_);
  // Queues the sequence in its place. UNAVAILABLE as of Check; RESOURCE_EXHAUSTED as of Check if
  // the place was lost to another tenant meanwhile.
  absl::Status Join(Reservation& place, std::unique_ptr<Sequence> sequence) EXCLUDES(mutex_);

  // A handle that nothing else has.
  uint64_t NewHandle() EXCLUDES(mutex_);
  // RESOURCE_EXHAUSTED (QUEUE_FULL), UNAVAILABLE as of Check.
  absl::Status Join(std::unique_ptr<PassRun> pass) EXCLUDES(mutex_);

  void Cancel(uint64_t handle) EXCLUDES(mutex_);
  void ForgetPrefixes() EXCLUDES(mutex_);
  // See Engine.
  void Drain(Clock::time_point deadline) EXCLUDES(mutex_);
  EngineSnapshot Snapshot() const EXCLUDES(mutex_);
  std::vector<TenantQueue> Tenants() const EXCLUDES(mutex_);
  // The step thread is to end everything, and itself.
  void Stop() EXCLUDES(mutex_);

  // What came; waits for it if `rest`, but not for long while requests wait for their readers.
  Submissions Receive(bool rest) EXCLUDES(mutex_);
  void Report(State state) EXCLUDES(mutex_);
  // Refuses whatever comes from now on, since the host has no memory; what had come already.
  Submissions Close() EXCLUDES(mutex_);

 private:
  void Release(uint64_t handle) EXCLUDES(mutex_);
  absl::Status Unavailable() const REQUIRES(mutex_);
  // What a request is told that passes `limit`.
  absl::Status Full(QueueLedger::Limit limit) const REQUIRES(mutex_);
  // When what is ahead now will have been worked off.
  std::chrono::milliseconds RetryAfter() const REQUIRES(mutex_);
  bool Closing() const REQUIRES(mutex_);
  bool HasPasses() const REQUIRES(mutex_);
  bool Idle() const REQUIRES(mutex_);
  bool Called() const REQUIRES(mutex_);
  Submissions ReceiveNow() REQUIRES(mutex_);

  const Limits limits_;
  mutable Mutex mutex_;
  CondVar wake_;
  CondVar idle_;
  QueueLedger ledger_ GUARDED_BY(mutex_);
  Submissions submissions_ GUARDED_BY(mutex_);
  State state_ GUARDED_BY(mutex_);  // after the last step, and with the passes received since
  uint64_t last_handle_ GUARDED_BY(mutex_) = 0;
};

// What ends or refuses a request that an engine has no time for any more: UNAVAILABLE (DRAINING).
absl::Status ShuttingDown();
// Likewise where its device has failed, so that the process restarts: UNAVAILABLE (DEVICE_ERROR).
absl::Status DeviceLost(const std::string& message);

}  // namespace eta
