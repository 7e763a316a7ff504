// A pass in flight: its blocks, how far its cache has got, and what it has measured so far.
//
// Made on the caller's thread, then used by the step thread alone.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "engine/batching/blocks/block_tables.h"
#include "engine/request/pass.h"
#include "engine/request/tempered_keys.h"
#include "kernels/batch.h"

namespace eta {

// What a new run is made of, all of it checked.
struct PassRunOptions {
  uint64_t handle = 0;
  Pass pass;
  std::shared_ptr<PassSink> sink;
  ResolvedAttention attention;
  float rope_theta = 0.0f;
  TemperedKeys tempered;  // of the pass's tokens
};

class PassRun {
 public:
  PassRun(PassRunOptions options, const ModelConfig& config);
  // As of a Sequence.
  ~PassRun();
  PassRun(const PassRun&) = delete;
  PassRun& operator=(const PassRun&) = delete;
  void Owe() { owed_ = true; }

  uint64_t handle() const { return options_.handle; }
  const Pass& pass() const { return options_.pass; }
  std::span<const int32_t> tokens() const { return options_.pass.tokens; }
  int32_t num_tokens() const { return static_cast<int32_t>(tokens().size()); }

  // `blocks` are all that the run will need, or none; `num_computed` tokens have their K and V
  // there. A run that loses its blocks starts again from its first row. It measures no row twice.
  int32_t num_computed = 0;
  BlockTables blocks;

  // The next rows, at most `max_rows`. They are alike: of one kind, all measured before or none,
  // all for the cells or none.
  SequenceRows NextRows(int32_t row_begin, int32_t max_rows) const;
  // Whether these rows are computed for the first time.
  bool AreNew(const SequenceRows& rows) const { return rows.position >= measured_; }
  bool WantRecall(const SequenceRows& rows) const {
    return pass().recall && rows.kind == RowKind::kDecode && AreNew(rows);
  }
  bool WantShadow(const SequenceRows& rows) const {
    return pass().shadow && rows.kind == RowKind::kDecode && AreNew(rows);
  }
  bool WantLoss(const SequenceRows& rows, int32_t position) const {
    return pass().loss_from && AreNew(rows) && position >= *pass().loss_from &&
           position + 1 < num_tokens();
  }

  // Where the logits of this row go, [V]; null: nowhere.
  float* LogitsOf(int32_t position);

  void Count(const AttentionSums& sums) { outcome_.attention.Add(sums); }
  void AddLoss(float loss) { outcome_.losses.push_back(loss); }
  void AddTop(bool top) { outcome_.top.push_back(top ? 1 : 0); }
  // Of the next decode row, one full layer after the other.
  void AddShadow(float mass, float error);
  // [L, HQ] each.
  void AddRecall(std::span<const int64_t> above, std::span<const int64_t> above_admitted);

  // `rows` are in the cache, and what they measure has been added. Reports progress.
  void Advance(const SequenceRows& rows);
  bool done() const { return num_computed == num_tokens(); }
  void Preempt();

  void Fail(const absl::Status& status);
  void Finish(std::vector<uint64_t> cells);

 private:
  PassRunOptions options_;
  PassOutcome outcome_;
  size_t vocab_size_;
  bool owed_ = false;
  int32_t measured_ = 0;  // rows [0, measured_) have added to the outcome
};

}  // namespace eta
