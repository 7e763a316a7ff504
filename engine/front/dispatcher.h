// What the step thread does next: a step of the requests' batch or, where the pacer allows it, a
// step of passes. Requests come first in everything: they take blocks from passes, and no pass gets
// a block that a request wants now. Not thread-safe: the step thread's.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/batching/batcher.h"
#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/steps/step_batch.h"
#include "engine/passes/background_pacer.h"
#include "engine/passes/pass_lane.h"
#include "engine/request/observer.h"

namespace eta {

class Dispatcher {
 public:
  // `observer` may be null, and `recorder` of the prefix cache too. All must outlive the
  // dispatcher.
  Dispatcher(Backend& backend, Model& model, const KvCache& cache, const BatcherOptions& options,
             Observer* observer, KvEventRecorder* recorder = nullptr);

  Batcher& batcher() { return batcher_; }
  const Batcher& batcher() const { return batcher_; }
  PassLane& passes() { return passes_; }
  const PassLane& passes() const { return passes_; }
  const BlockPool& pool() const { return pool_; }
  BlockPool& pool() { return pool_; }

  void Cancel(uint64_t handle);
  // Of prompts that were shared nothing is found any more.
  void ForgetPrefixes() { pool_.Forget(); }
  // Ends all requests and passes with `status`.
  void FailAll(const absl::Status& status);
  // The device is lost: the same, but for requests that have not started. They are given back to
  // whoever has another device for them (EventSink), or end with UNAVAILABLE (DEVICE_ERROR).
  void Lose(const absl::Status& status);
  // After an exception: lets go of everything, as Batcher::Abandon does.
  void Abandon();

  // Ends what is past its deadline, then runs one step of what can run. False if nothing could. An
  // error means that the device is lost, and everything here with it: what has started with
  // INTERNAL.
  absl::StatusOr<bool> Step(Clock::time_point now);

 private:
  absl::StatusOr<bool> RunNext(Clock::time_point now);
  absl::StatusOr<bool> RunPasses(int32_t max_rows, const StepPlan& plan);

  const int32_t max_step_tokens_;
  BlockPool pool_;
  Batcher batcher_;
  StepBatch pass_batch_;
  PassLane passes_;
  BackgroundPacer pacer_;
};

}  // namespace eta
