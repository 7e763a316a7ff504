// What the step thread does next: a step of the requests' batch or, where the pacer allows it, a
// step of probes. Requests come first in everything: they take blocks from probes, and no probe
// takes one that they want now. Single-threaded.
#pragma once

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/batching/batcher.h"
#include "engine/batching/block_pool.h"
#include "engine/batching/step_batch.h"
#include "engine/passes/background_pacer.h"
#include "engine/passes/probe_lane.h"
#include "engine/request/observer.h"

namespace eta {

class Dispatcher {
 public:
  // `observer` may be null. All references must outlive the dispatcher.
  Dispatcher(Backend& backend, Model& model, const KvCache& cache, const BatcherOptions& options,
             Observer* observer);

  Batcher& batcher() { return batcher_; }
  const Batcher& batcher() const { return batcher_; }
  ProbeLane& probes() { return probes_; }
  const ProbeLane& probes() const { return probes_; }
  const BlockPool& pool() const { return pool_; }

  void Cancel(uint64_t handle);
  // Ends all requests and probes with `status`.
  void FailAll(const absl::Status& status);
  // After an exception; see Batcher.
  void Abandon();

  // Ends what is past its deadline, then runs one step of what can run. False if nothing could. An
  // error means that the device is lost; every request and probe has then been failed.
  absl::StatusOr<bool> Step(Clock::time_point now);

 private:
  absl::StatusOr<bool> RunNext(Clock::time_point now);
  absl::StatusOr<bool> RunProbes(int32_t max_rows, const StepPlan& plan);

  const int32_t max_step_tokens_;
  BlockPool pool_;
  Batcher batcher_;
  StepBatch probe_batch_;
  ProbeLane probes_;
  BackgroundPacer pacer_;
};

}  // namespace eta
