// The passes of one device: a queue, served from its front, in steps that hold nothing else.
//
// Not thread-safe: the step thread's. Invariant: a pass holds all its blocks or none, and shares
// none of them. Passes put nothing into the prefix cache; only its unreferenced blocks are given
// away to make room for them.
#pragma once

#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/steps/step_batch.h"
#include "engine/passes/pass_cells.h"
#include "engine/passes/pass_run.h"
#include "engine/request/shadow/shadow_rows.h"

namespace eta {

class PassLane {
 public:
  // All references must outlive it. `max_step_rows`: Run is asked for no more rows.
  PassLane(Backend& backend, StepBatch& batch, BlockPool& pool, int32_t max_step_rows);

  void Add(std::unique_ptr<PassRun> run);
  // False: nothing here has that handle.
  bool Cancel(uint64_t handle);
  // Ends all passes with `status`.
  void FailAll(const absl::Status& status);
  // Lets go of all passes after an exception, which leaves them in no known state: each tells
  // OutOfMemory.
  void Abandon() { runs_.clear(); }

  // Frees the blocks of the latest pass that has any; false if none has.
  bool GiveBlocks();

  // Runs one step of at most `max_rows` rows, allocating at most `spare_blocks` of the pool's
  // blocks, and returns its number of rows; 0 if nothing could run. Where the device has no memory
  // for it, passes of the step are failed. Any error means that the device is lost.
  absl::StatusOr<int32_t> Run(int32_t max_rows, int32_t spare_blocks);

  bool empty() const { return runs_.empty(); }
  int32_t num_running() const;  // of these, how many hold blocks
  int32_t num_waiting() const { return static_cast<int32_t>(runs_.size()) - num_running(); }

 private:
  struct Member;  // a pass's rows in the step at hand

  std::vector<Member> LayOut(int32_t max_rows, int32_t spare_blocks);
  absl::Status RunRows(std::span<const Member> members, std::vector<RowLogits>& logits);
  absl::Status Settle(std::span<const Member> members, std::span<const RowLogits> logits);
  void ChooseShadow(std::span<const Member> members);
  void AddShadow(const Member& member);
  void GiveWay(std::span<const Member> members);
  void Fail(PassRun& run, const absl::Status& status);
  // Lets go of a run that has ended.
  void Forget(const PassRun& run);

  StepBatch& batch_;
  BlockPool& pool_;
  const int32_t max_step_rows_;
  PassCells cells_;
  std::vector<std::unique_ptr<PassRun>> runs_;  // in order of arrival
  std::vector<int64_t> above_;                  // [L, HQ], of the step at hand
  std::vector<int64_t> above_admitted_;
  std::vector<TokenLogprob> top_;  // the most probable next token of rows that ask for it
  ShadowRows shadow_;
};

}  // namespace eta
