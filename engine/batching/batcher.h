// Continuous batching: holds the sequences of all requests, running or waiting, and moves them one
// step ahead at a time. What waits stands in a RequestQueue, and steps go through a StepPipeline;
// the batcher admits, preempts, pauses and ends sequences, and gives them their blocks.
//
// A plan that counts on blocks which the pool does not have costs the sequence that lacks them: it
// ends with INTERNAL, and what it held helps the others. So does one that has nothing to compute.
//
// Not thread-safe: the step thread's. Invariants. A sequence that runs holds blocks for the tokens
// that it has computed; one that waits holds none. A sequence that is here has been told of no end.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/batching/batcher_options.h"
#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/fairness/tenant_shares.h"
#include "engine/batching/request_queue.h"
#include "engine/batching/scheduler.h"
#include "engine/batching/sequence.h"
#include "engine/batching/steps/step_pipeline.h"
#include "engine/batching/steps/step_planner.h"
#include "engine/request/observer.h"

namespace eta {

class Batcher {
 public:
  // `observer` may be null. All references must outlive the batcher.
  Batcher(Model& model, const KvCache& cache, BlockPool& pool, const BatcherOptions& options,
          Observer* observer);

  // Queues a new sequence, or ends it at once if its deadline cannot be met.
  void Add(std::unique_ptr<Sequence> sequence, Clock::time_point now);
  // Ends a request that waits and has not run with `status`; any other handle is ignored.
  void Refuse(uint64_t handle, const absl::Status& status);
  // False: nothing here has that handle.
  bool Cancel(uint64_t handle);
  // Ends all sequences with `status`.
  void FailAll(const absl::Status& status);
  // The device is lost: ends those that have started with `status`. The others are given back, or
  // end with `refusal`.
  void Lose(const absl::Status& status, const absl::Status& refusal);
  // Lets go of all sequences after an exception, which leaves nothing here in a known state: each
  // tells OutOfMemory. Nothing but the destructor may follow.
  void Abandon();

  // Ends what is past its deadline or read too slowly; pauses whose readers are behind, and resumes
  // those whose readers keep up again.
  void Expire(Clock::time_point now);
  // What the next step would be, with drafts. A prepared one that is another is forgotten.
  StepPlan Plan();
  // Carries out a plan that was made just now; without rows nothing runs. Returns the seconds that
  // it took; 0: nothing ran, or the device had no memory for the step. Then one sequence of the
  // step has been failed, and the others go on; of a step with drafts all go on without. Any error
  // means that the device is lost.
  absl::StatusOr<double> Run(const StepPlan& plan, Clock::time_point now);
  // As of StepPipeline: before anything but Run uses the device or ends a request.
  void Settle() { pipeline_.Settle(); }
  // Tells the observer of a step that was not Run's, with what runs and waits now.
  void Report(StepReport report) const;

  const RequestQueue& queue() const { return queue_; }
  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_paused() const { return num_running() - slots_taken(); }
  // By sequences that are not paused; the others hold up nobody.
  int32_t slots_taken() const;
  int64_t prefill_tokens() const;  // of prompts of requests that run, still to prefill
  // What each tenant has here now; of what waits only the requests that ran already.
  std::vector<TenantQueue> Tenants(Clock::time_point now);
  // The requests that started, or ended without having started, since the last call.
  std::vector<uint64_t> DrainLeft() { return std::exchange(left_, {}); }

 private:
  void Draft();
  StepPlan PlanAhead(int32_t ahead) const;
  void Resume();
  // Carries out the plan: frees, admits, allocates, and lays out the rows of the step.
  void LayOut(const StepPlan& plan, Clock::time_point now);
  // An error: it has not the blocks that it was planned to have, or nothing to compute, and must
  // end.
  absl::Status Admit(Sequence& sequence, Clock::time_point now);
  void PrepareNext();
  void Commit(Clock::time_point begin);
  void GiveWay();
  void FillGauges(StepReport& report) const;
  void End(Sequence& sequence, const absl::Status& status);

  const KvGeometry& geometry_;
  BlockPool& pool_;
  const BatcherOptions options_;
  Observer* const observer_;
  TenantShares tenants_;
  RequestQueue queue_;
  const StepPlanner planner_;
  std::vector<std::unique_ptr<Sequence>> running_;
  StepPipeline pipeline_;
  std::vector<uint64_t> left_;
  int32_t steps_without_drafts_ = 0;  // to come
  Clock::time_point expired_at_;      // the last Expire
};

}  // namespace eta
