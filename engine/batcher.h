// Continuous batching: holds the sequences of all requests, running or waiting, and moves them one
// step ahead at a time. Single-threaded; the engine's step thread is its only caller.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/block_pool.h"
#include "engine/observer.h"
#include "engine/prefill_rate.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"
#include "engine/step_batch.h"

namespace eta {

struct BatcherOptions {
  int32_t max_running = 64;
  int32_t max_step_tokens = 256;
  bool prefix_cache = true;
  std::chrono::milliseconds max_congestion{30'000};
};

class Batcher {
 public:
  // `observer` may be null. All references must outlive the batcher.
  Batcher(StepBatch& batch, BlockPool& pool, const BatcherOptions& options, Observer* observer);

  // Queues a new sequence, or ends it at once if its deadline cannot be met.
  void Add(std::unique_ptr<Sequence> sequence, Clock::time_point now);
  // False: nothing here has that handle.
  bool Cancel(uint64_t handle);
  // Ends all sequences with `status`.
  void FailAll(const absl::Status& status);

  // Ends what is past its deadline or read too slowly.
  void Expire(Clock::time_point now);
  // What the next step would be.
  StepPlan Plan() const;
  // Carries out a plan that was made just now; without rows nothing runs. The report lacks what the
  // batcher alone cannot know: sequences and blocks. Where the device has no memory for the step,
  // one sequence is failed, and the others go on. Any error means that the device is lost.
  absl::StatusOr<StepReport> Run(const StepPlan& plan, Clock::time_point now);

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // Prompt tokens of requests that never ran, and those still to prefill of requests that run.
  int64_t queued_tokens() const;
  int64_t prefill_tokens() const;
  const PrefillRate& prefill_rate() const { return prefill_rate_; }

 private:
  struct Member;  // a sequence's part in the step at hand
  struct Draw;    // a row whose logits are wanted

  absl::Status CheckDeadline(const Sequence& sequence, Clock::time_point now) const;
  WaitingSequence Describe(const Sequence& sequence) const;
  // Whether `other` is going to compute the first block of the prompt that `sequence` lacks, where
  // `shared` blocks are there already.
  bool Computes(const Sequence& other, const Sequence& sequence, int32_t shared) const;
  std::vector<Member> Seat(const StepPlan& plan, Clock::time_point now);
  void Admit(Sequence& sequence, Clock::time_point now);
  void Grow(Sequence& sequence, int32_t num_blocks);
  absl::Status RunRows(std::span<const Member> members, std::vector<Draw>& draws);
  void Count(std::span<const Member> members);
  void Settle(std::span<const Member> members, std::span<Draw> draws);
  void Publish(const Sequence& sequence, const SequenceRows& rows);
  void GiveWay(std::span<const Member> members);
  void FreeBlocks(Sequence& sequence);
  void Queue(std::unique_ptr<Sequence> sequence);
  void End(Sequence& sequence, const absl::Status& status);
  StepReport Report(Clock::time_point begin, std::span<const Member> members);

  StepBatch& batch_;
  BlockPool& pool_;
  BatcherOptions options_;
  Observer* observer_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<std::unique_ptr<Sequence>> waiting_;  // ascending by rank
  PrefillRate prefill_rate_;
};

}  // namespace eta
