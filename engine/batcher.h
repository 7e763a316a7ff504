// Continuous batching: holds every sequence, running or waiting, and moves all of them one step
// ahead at a time. Single-threaded; the engine's step thread is its only caller.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/block_pool.h"
#include "engine/kv_cache.h"
#include "engine/limits.h"
#include "engine/model.h"
#include "engine/observer.h"
#include "engine/scheduler.h"
#include "engine/sequence.h"

namespace eta {

struct BatcherOptions {
  int32_t max_running = 64;
  int32_t max_step_tokens = 256;
  bool prefix_cache = true;
  std::chrono::milliseconds max_congestion{30'000};
};

// When `tokens` of prompts will have been prefilled at `rate` tokens per second (0: not known yet),
// as a hint for clients: 0.1 s to 30 s.
std::chrono::milliseconds PredictRetry(int64_t tokens, double rate);

class Batcher {
 public:
  // `observer` may be null. All references must outlive the batcher.
  Batcher(Model& model, KvCache& cache, const BatcherOptions& options, Observer* observer);

  // Queues a new sequence, or ends it at once if its deadline cannot be met.
  void Add(std::unique_ptr<Sequence> sequence, Clock::time_point now);
  void Cancel(uint64_t handle);
  // Ends all sequences with `status`.
  void FailAll(const absl::Status& status);

  // Ends what is past its deadline, then runs one step of what can run. False if nothing could: all
  // are paused, or there are none. Where the device has no memory for the step, one sequence is
  // failed and the others go on. An error means that the device is lost; every sequence has then
  // been failed.
  absl::StatusOr<bool> Step(Clock::time_point now);

  int32_t num_running() const { return static_cast<int32_t>(running_.size()); }
  int32_t num_waiting() const { return static_cast<int32_t>(waiting_.size()); }
  // Prompt tokens of requests that never ran, and those still to prefill of requests that run.
  int64_t queued_tokens() const;
  int64_t prefill_tokens() const;
  const BlockPool& pool() const { return pool_; }
  // Rows per second of steps that mostly prefill, averaged over the recent ones; 0 before the
  // first.
  double prefill_rate() const { return prefill_rate_; }

 private:
  struct Member;  // a sequence's part in the step at hand
  struct Draw;    // a row whose logits are wanted

  absl::Status CheckDeadline(const Sequence& sequence, Clock::time_point now) const;
  void Expire(Clock::time_point now);
  StepPlan Plan() const;
  WaitingSequence Describe(const Sequence& sequence) const;
  // Whether `other` is going to compute the first block of the prompt that `sequence` lacks, where
  // `shared` blocks are there already.
  bool Computes(const Sequence& other, const Sequence& sequence, int32_t shared) const;
  std::vector<Member> Seat(const StepPlan& plan, Clock::time_point now);
  void Admit(Sequence& sequence, Clock::time_point now);
  void Grow(Sequence& sequence, int32_t num_blocks);
  absl::Status Run(std::span<const Member> members, std::vector<Draw>& draws);
  void Count(std::span<const Member> members, int32_t num_rows);
  void Settle(std::span<const Member> members, std::span<Draw> draws);
  void Publish(const Sequence& sequence, const SequenceRows& rows);
  void GiveWay(std::span<const Member> members);
  void FreeBlocks(Sequence& sequence);
  void Queue(std::unique_ptr<Sequence> sequence);
  void End(Sequence& sequence, const absl::Status& status);
  void Report(Clock::time_point begin, std::span<const Member> members, int32_t preemptions);

  Model& model_;
  KvCache& cache_;
  BatcherOptions options_;
  Observer* observer_;
  BlockPool pool_;
  std::vector<std::unique_ptr<Sequence>> running_;
  std::vector<std::unique_ptr<Sequence>> waiting_;  // ascending by rank
  double prefill_rate_ = 0.0;
  Clock::time_point prefill_measured_at_{};

  // Of the step at hand, kept for their memory.
  std::vector<int32_t> tokens_;
  std::vector<SequenceRows> rows_;
  std::vector<int32_t> tokens_attended_;  // [L, R, HQ]
  std::vector<int32_t> tokens_read_;      // [L, R, HKV]
};

}  // namespace eta
