// What stands between an engine's callers and its step thread: requests and passes until the thread
// takes them, whom to end, and how things stood after the last step. What the queue has no room for
// is refused here.
//
// Thread-safe. Take, Report and Close are the step thread's alone.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/batching/sequence.h"
#include "engine/engine.h"
#include "engine/passes/pass_run.h"
#include "engine/request/limits.h"

namespace eta {

class SubmissionQueue {
 public:
  // What came since the last Take.
  struct Mail {
    std::vector<std::unique_ptr<Sequence>> requests;
    std::vector<std::unique_ptr<PassRun>> passes;
    std::vector<uint64_t> cancelled;  // handles
    bool draining = false;            // passes end now
    bool abandon = false;             // everything does
    bool stop = false;                // and so does the thread
  };
  // How things stand between two steps.
  struct State {
    EngineSnapshot snapshot;
    std::vector<TenantQueue> tenants;  // of the batcher
    int64_t prefill_tokens = 0;        // that running requests have before them
  };

  explicit SubmissionQueue(const Limits& limits) : limits_(limits) {}

  // Whether the queue has room for a request of so many prompt tokens. RESOURCE_EXHAUSTED
  // (QUEUE_FULL, TOKEN_BUDGET), UNAVAILABLE (DRAINING, DEVICE_ERROR).
  absl::Status Check(int64_t tokens, const Request& request) const;
  // The same, and keeps that room while the request is made: its tenant has it from now on. Join or
  // Release must follow.
  absl::StatusOr<uint64_t> Reserve(int64_t tokens, const Request& request);
  void Release(uint64_t place);
  // Into the place kept for it. From now on it is owed an end. UNAVAILABLE as of Check.
  absl::Status Join(uint64_t place, std::unique_ptr<Sequence> sequence);
  // RESOURCE_EXHAUSTED (QUEUE_FULL), UNAVAILABLE as of Check.
  absl::Status Join(std::unique_ptr<PassRun> pass);

  void Cancel(uint64_t handle);
  // See Engine.
  void Drain(Clock::time_point deadline);
  EngineSnapshot Snapshot() const;
  std::vector<TenantQueue> Tenants() const;
  // The step thread is to end everything, and itself.
  void Stop();

  // What came; waits for it if `rest`, but not for long while requests wait for their readers.
  Mail Take(bool rest);
  void Report(State state);
  // Refuses whatever comes from now on, since the host has no memory; what had come already.
  Mail Close();

 private:
  struct Place {
    uint64_t id;
    TenantQueue queue;  // what it adds to its tenant's
  };

  // All with mutex_ held.
  absl::Status Refusal() const;
  absl::Status CheckLocked(int64_t tokens, const Request& request) const;
  // Whether somebody has more in the queue, for its weight, than the request's tenant with so much
  // more.
  bool AnotherHasMore(const Request& request, int64_t TenantQueue::*what, int64_t more) const;
  // One more in a tenant's queue, or one less.
  void Count(const TenantQueue& one);
  void Uncount(const TenantQueue& one);
  Place TakePlace(uint64_t id);
  bool HasPasses() const;
  bool Idle() const;
  // Requests that wait and have not run yet.
  int64_t Waiting() const;
  int64_t QueuedTokens() const;
  // When what is ahead now will have been worked off.
  std::chrono::milliseconds RetryAfter() const;
  Mail TakeLocked();

  const Limits limits_;
  mutable std::mutex mutex_;
  // Guarded by mutex_:
  std::condition_variable wake_;
  std::condition_variable idle_;
  Mail mail_;
  State state_;                       // after the last step, and with what has been taken since
  std::vector<TenantQueue> tenants_;  // those of state_, and what has come since
  std::vector<Place> reserved_;
  uint64_t last_place_ = 0;
};

// What ends or refuses a request that an engine has no time for any more: UNAVAILABLE (DRAINING).
absl::Status ShuttingDown();
// Likewise where its device has failed, so that the process restarts: UNAVAILABLE (DEVICE_ERROR).
absl::Status DeviceLost(const std::string& message);

}  // namespace eta
