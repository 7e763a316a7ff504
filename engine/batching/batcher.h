// Continuous batching: holds the sequences of all requests, running or waiting, and moves them one
// step ahead at a time. Single-threaded; the engine's step thread is its only caller.
//
// Where the backend defers, the host's part of a step is done while the device works: a step in
// which every sequence draws one token is followed, most of the time, by another one, which is
// prepared while it runs. If Plan() then asks for just that step, it gets its tokens and is
// launched; only after that is the step before it completed (its reads counted, its tokens sent,
// its report made). Else the prepared step is forgotten and its blocks go back: nothing but time
// tells whether steps are prepared.
#pragma once

#include <limits>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/batching/block_pool.h"
#include "engine/batching/estimates/prefill_throughput.h"
#include "engine/batching/estimates/slot_rate.h"
#include "engine/batching/estimates/wait_estimate.h"
#include "engine/batching/scheduler.h"
#include "engine/batching/sequence.h"
#include "engine/batching/step_batch.h"
#include "engine/batching/tenant_shares.h"
#include "engine/request/observer.h"

namespace eta {

struct BatcherOptions {
  int32_t max_running = 64;
  int32_t max_step_tokens = 256;
  bool prefix_cache = true;
  std::chrono::milliseconds max_congestion{30'000};
  // Of requests that have not run yet; past them the newest of whoever has most is refused.
  int32_t max_waiting_requests = std::numeric_limits<int32_t>::max();
  int64_t max_waiting_tokens = std::numeric_limits<int64_t>::max();
};

// What a request is refused with when the queue is at one of its limits.
absl::Status QueueFull(int32_t max_requests, std::chrono::milliseconds retry);
absl::Status QueueTooLong(int64_t max_tokens, std::chrono::milliseconds retry);

class Batcher {
 public:
  // `observer` may be null. All references must outlive the batcher.
  Batcher(Model& model, const KvCache& cache, BlockPool& pool, const BatcherOptions& options,
          Observer* observer);
  ~Batcher();

  // Queues a new sequence, or ends it at once if its deadline cannot be met. Where that makes the
  // queue too long, one ends, which may be another.
  void Add(std::unique_ptr<Sequence> sequence, Clock::time_point now);
  // False: nothing here has that handle.
  bool Cancel(uint64_t handle);
  // Ends all sequences with `status`.
  void FailAll(const absl::Status& status);
  // Lets go of all sequences after an exception, which leaves nothing here in a known state: each
  // tells OutOfMemory. Nothing but the destructor may follow.
  void Abandon();

  // Ends what is past its deadline or read too slowly.
  void Expire(Clock::time_point now);
  // What the next step would be. A prepared one that is another is forgotten.
  StepPlan Plan();
  // Carries out a plan that was made just now; without rows nothing runs. The seconds that it took;
  // 0: nothing ran, or the device had no memory for the step, of which one sequence was failed, and
  // the others go on. Any error means that the device is lost.
  absl::StatusOr<double> Run(const StepPlan& plan, Clock::time_point now);
  // Completes the last step and forgets a prepared one: before anything but Run uses the device or
  // ends a request.
  void Settle();
  // Tells the observer of a step that was not Run's, with what runs and waits now.
  void Report(StepReport report) const;

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // Of those that wait: they ran already.
  int32_t num_preempted() const;
  int32_t num_paused() const { return num_running() - SlotsTaken(); }
  // Prompt tokens of requests that never ran, and those still to prefill of requests that run.
  int64_t queued_tokens() const;
  int64_t prefill_tokens() const;
  // What each tenant has here now.
  std::vector<TenantQueue> Tenants(Clock::time_point now);
  // How long a request waits that has so many before it, and so many tokens of prompts.
  std::chrono::milliseconds PredictedWait(int64_t requests_ahead, int64_t tokens_ahead,
                                          Clock::time_point now) const;
  WaitEstimate wait_estimate() const {
    return {.prefill_throughput = prefill_throughput_.value(),
            .slot_interval = slot_rate_.interval()};
  }

 private:
  struct Member;  // a sequence's part in a step
  struct Draw;    // a row whose logits are wanted
  struct Ending;  // a sequence that the step ended
  struct Step;

  absl::Status CheckDeadline(const Sequence& sequence, Clock::time_point now) const;
  // Tokens of prompts that are prefilled before a new sequence's own are, and waiting requests that
  // are admitted before it.
  int64_t TokensAhead(const Sequence& sequence) const;
  int64_t RequestsAhead(const Sequence& sequence) const;
  void Shed();
  // By sequences that are not paused; the others hold up nobody.
  int32_t SlotsTaken() const;
  // Slots for those whose readers keep up again.
  void Resume();
  WaitingSequence Describe(const Sequence& sequence) const;
  // Whether `other` is going to compute the first block of the prompt that `sequence` lacks, where
  // `shared` blocks are there already.
  bool Computes(const Sequence& other, const Sequence& sequence, int32_t shared) const;
  // What the scheduler says: now, or for when every sequence that is not paused has drawn `ahead`
  // more tokens.
  StepPlan PlanAhead(int32_t ahead) const;
  bool IsPrepared(const StepPlan& plan) const;
  void Prepare();
  void Forget();
  void Slot(const StepPlan& plan, Clock::time_point now, Step& step);
  void Admit(Sequence& sequence, Clock::time_point now);
  void Grow(Sequence& sequence, int32_t num_blocks);
  static void DrawTokens(Step& step);
  void Take(Step& step, Clock::time_point begin);
  void Publish(const Sequence& sequence, const SequenceRows& rows);
  void Retire(Step& step, const Sequence& sequence, absl::Status status);
  void Complete(Step& step);
  void Count(Step& step) const;
  void FillGauges(StepReport& report) const;
  void GiveWay(std::span<const Member> members);
  void FreeBlocks(Sequence& sequence);
  void Queue(std::unique_ptr<Sequence> sequence);
  void Refuse(Sequence& sequence, const absl::Status& status);
  void End(Sequence& sequence, const absl::Status& status);

  const KvGeometry& geometry_;
  BlockPool& pool_;
  BatcherOptions options_;
  Observer* observer_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<std::unique_ptr<Sequence>> waiting_;  // ascending by rank
  // The last step that ran, and the one after it, or before it until that is admitted.
  std::unique_ptr<Step> step_;
  std::unique_ptr<Step> next_;
  bool prepared_ = false;  // next_ is noted, but for its tokens
  PrefillThroughput prefill_throughput_;
  SlotRate slot_rate_;
  TenantShares tenants_;
  Clock::time_point expired_at_;  // the last Expire
};

}  // namespace eta
