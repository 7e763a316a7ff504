// The steps of a batcher on the device: the one that runs, and the one prepared behind it.
//
// A step goes through these stages:
//   laid out    Begin, Add: which rows of which sequences
//   noted       Forward: the backend knows its operations
//   launched    Launch: it becomes the current step and runs on the device
//   finished    Finish: the device is done
//   committed   Commit: what the next step depends on is done: cache lengths, shared blocks, tokens
//   completed   Complete: the rest is done: reads counted, tokens sent, report made, endings told
//
// Where the backend defers, the host's part of a step is done while the device works. Most steps in
// which every sequence draws one token are followed by another such step. That one is prepared
// while the current one runs: laid out with AddAhead and noted, but for its tokens. If the next
// plan asks for just that step, it is given its tokens and launched, and only then is the step
// before it completed. Else Forget undoes the preparation and gives its blocks back. So nothing but
// time tells whether steps are prepared.
//
// Not thread-safe: the step thread's. Invariants. A prepared step has members, each with one row,
// and none of them has ended. A step is completed before the next one is launched after it, or
// before anything but Run uses the device or ends a request (Settle).
//
// Drafts. A sequence may have rows behind its newest token, of drafts of what follows. Each row
// draws what it would draw alone, so while the drawn tokens are the drafts, the rows behind them
// are those of the answer. From the first that differs on, rows count for nothing: the sequence has
// computed less, and the blocks that only they used go back. What they wrote into the others lies
// behind all that later rows read, until it is written anew.
//
// Rows that make drafts. They stand where those of the drafts will, one a step, attend to less, and
// draw as those would. Nothing counts of such a row but what it drew: the step that verifies writes
// its keys and values anew. No step with such a row is followed by a prepared one: what the host
// does between steps is little beside what they read.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/batching/batcher_options.h"
#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/estimates/read_cost.h"
#include "engine/batching/formats/mask_crew.h"
#include "engine/batching/scheduler.h"
#include "engine/batching/sequence.h"
#include "engine/batching/steps/step_batch.h"
#include "engine/request/observer.h"
#include "engine/request/shadow/shadow_sampler.h"

namespace eta {

struct RunningStep;
struct StepMember;

class StepPipeline {
 public:
  // A sequence whose answer a step ended.
  struct Ended {
    Sequence* sequence;
    absl::Status status;
  };

  // `observer` may be null. All must outlive the pipeline.
  StepPipeline(Model& model, const KvCache& cache, BlockPool& pool, const BatcherOptions& options,
               Observer* observer);
  ~StepPipeline();

  // Begins to lay out the next step, with so many preemptions in its report. REQUIRES: none is
  // prepared.
  void Begin(int32_t preemptions = 0);
  // At most `num_rows` rows of a sequence, at least 1. Behind the newest token they are of drafts.
  void Add(Sequence& sequence, int32_t num_rows);
  // The row of a sequence that makes its next draft.
  void AddDraft(Sequence& sequence);
  // The row after the one that the current step computes. `lengths`: of the sequence's tables
  // before they grew for it.
  void AddAhead(Sequence& sequence, const BlockTables::Lengths& lengths);

  // Whether the current step can be followed by a prepared one, if nobody joins, leaves or pauses.
  bool CanPrepare() const;
  // Notes the step that AddAhead laid out.
  void Prepare();
  bool prepared() const { return prepared_; }
  // Whether `plan` asks for just the prepared step.
  bool IsPrepared(const StepPlan& plan, std::span<const std::unique_ptr<Sequence>> running) const;
  // Undoes the preparation, if there is one.
  void Forget();

  // Whether the next step has no rows.
  bool next_empty() const;
  // Notes the next step; a prepared one has only its tokens to be filled in. An error means that
  // the device is lost.
  absl::Status Forward();
  // Launches the next step, and completes the one before it. With bound answers the draws are
  // launched behind that, when their masks are there.
  void Launch();
  // Waits for the device. On error nothing of the step counts; see Backend::Finish.
  absl::Status Finish();
  // Returns whose answers the step ended; each must be handed to Retire. The report lacks its
  // gauges and duration.
  std::vector<Ended> Commit();
  // Keeps an ended sequence until the step is completed, which tells it so.
  void Retire(std::unique_ptr<Sequence> sequence, absl::Status status);
  // Nothing, if it is completed already.
  void Complete();
  // Completes the current step and forgets a prepared one.
  void Settle() {
    Forget();
    Complete();
  }
  // After an exception: lets go of what Retire gave, which tells OutOfMemory.
  void Abandon();

  // Of the current step.
  size_t num_sequences() const;
  StepReport& report();
  Sequence& latest() const;  // the sequence of the latest rank in it
  // Of the steps that were completed.
  const ReadCost& read_cost() const { return read_cost_; }

 private:
  absl::Status Note(RunningStep& step);
  void FindBound(RunningStep& step);
  void FillMasks(RunningStep& step);
  void ChooseShadow(RunningStep& step);
  bool TakeShadow(RunningStep& step, Clock::time_point now);
  void DrawTokens(RunningStep& step);
  // Gives a member what the step brought it; `draw` is the first of its draws, then that of the
  // next member. Nothing: it goes on; else how it ends.
  std::optional<absl::Status> Accept(RunningStep& step, StepMember& member, size_t& draw,
                                     Clock::time_point now);
  // The same of its draws behind the row of its newest token and behind those of its drafts.
  std::optional<absl::Status> AcceptDraws(RunningStep& step, StepMember& member,
                                          std::span<const RowLogits> draws, Clock::time_point now);
  std::optional<absl::Status> AcceptDraw(RunningStep& step, Sequence& sequence,
                                         const SampleRow& sample, Clock::time_point now);
  void Publish(const Sequence& sequence, const SequenceRows& rows);
  void Complete(RunningStep& step);

  const BatcherOptions& options_;
  const int32_t block_size_;
  BlockPool& pool_;
  Observer* const observer_;
  const std::vector<int32_t> full_layers_;
  ShadowSampler sampler_;
  ReadCost read_cost_;
  MaskCrew masks_;
  std::unique_ptr<RunningStep> current_;
  std::unique_ptr<RunningStep> next_;  // laid out or prepared; after Launch the step before
  bool prepared_ = false;              // next_ is noted, but for its tokens
  // Of the step at hand:
  std::vector<ShadowRow> candidates_;  // rows that may be drawn
  std::vector<bool> goes_on_;          // [members]
};

}  // namespace eta
