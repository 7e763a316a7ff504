// The requests that wait for a slot, and how long a newcomer waits behind them.
//
// Some of them ran already and were preempted; the others have not started. How many of the others
// there may be is not decided here but before they come (engine/front/queue_ledger.h). A newcomer
// is refused here only if its deadline leaves no time for the wait and for its prompt.
//
// Not thread-safe: the step thread's. Invariant: sequences() is ascending by rank, and each has the
// account of its tenant.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/batching/estimates/prefill_throughput.h"
#include "engine/batching/estimates/slot_rate.h"
#include "engine/batching/estimates/wait_estimate.h"
#include "engine/batching/fairness/tenant_shares.h"
#include "engine/batching/sequence.h"

namespace eta {

class RequestQueue {
 public:
  using Sequences = std::span<const std::unique_ptr<Sequence>>;

  // `tenants` must outlive the queue.
  explicit RequestQueue(const TenantShares& tenants) : tenants_(tenants) {}

  Sequences sequences() const { return waiting_; }
  void Push(std::unique_ptr<Sequence> sequence);
  // Null if it is not here.
  const Sequence* Find(uint64_t handle) const;
  std::unique_ptr<Sequence> Remove(uint64_t handle);
  // Removes those at these indices of sequences(), and returns them in the order given.
  std::vector<std::unique_ptr<Sequence>> Remove(std::span<const int32_t> indices);
  template <typename Condition>
  void RemoveIf(Condition condition) {
    std::erase_if(waiting_, condition);
  }
  void Clear() { waiting_.clear(); }

  int32_t size() const { return static_cast<int32_t>(waiting_.size()); }
  int32_t num_preempted() const;
  int64_t unstarted_tokens() const;  // of prompts that have not run yet

  // OK if the deadline of a newcomer leaves time for what goes before it and for what of its prompt
  // is not cached. RESOURCE_EXHAUSTED (DEADLINE_TOO_SHORT) with the time in which there is less
  // before it. OK too while nothing is known.
  absl::Status CheckDeadline(const Sequence& newcomer, Sequences running, int32_t slots_taken,
                             Clock::time_point now) const;

  // What the estimates are made of: as of SlotRate and of PrefillThroughput.
  void MeasureSlots(int32_t before, int32_t after, bool full, Clock::time_point now) {
    slot_rate_.Measure(before, after, full, now);
  }
  void MeasurePrefill(int32_t rows, std::chrono::nanoseconds duration, Clock::time_point begin) {
    prefill_throughput_.Measure(rows, duration, begin);
  }
  // How long a request waits that has so many before it, and so many tokens of prompts.
  std::chrono::milliseconds PredictedWait(int64_t requests_ahead, int64_t tokens_ahead,
                                          int32_t slots_taken, Clock::time_point now) const;
  WaitEstimate wait_estimate() const {
    return {.prefill_throughput = prefill_throughput_.value(),
            .slot_interval = slot_rate_.interval()};
  }

 private:
  // Tokens of prompts that are prefilled before a newcomer's own are, and waiting requests that are
  // admitted before it.
  int64_t TokensAhead(const Sequence& newcomer, Sequences running) const;
  int64_t RequestsAhead(const Sequence& newcomer) const;

  const TenantShares& tenants_;
  std::vector<std::unique_ptr<Sequence>> waiting_;
  PrefillThroughput prefill_throughput_;
  SlotRate slot_rate_;
};

}  // namespace eta
