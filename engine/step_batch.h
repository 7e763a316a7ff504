// The ragged rows of one step, carried out: the forward pass, the logits that are wanted, and what
// the decode rows read.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/attention_counter.h"
#include "engine/kv_cache.h"
#include "engine/model.h"

namespace eta {

// A row of the step whose logits are wanted. Run fills in `sample`.
struct RowLogits {
  int32_t row = 0;
  SampleRow sample;  // but for its logits_row, which is Run's
};

class StepBatch {
 public:
  // Both must outlive it.
  StepBatch(Model& model, const KvCache& cache);

  const ModelConfig& config() const { return model_.config(); }
  const KvGeometry& geometry() const { return cache_.geometry(); }

  void Clear();
  // Appends rows of a sequence whose tokens, from position 0 on, are given.
  void Add(const SequenceRows& rows, std::span<const int32_t> sequence_tokens);
  int32_t num_rows() const { return static_cast<int32_t>(tokens_.size()); }

  // `outputs` but for the token counts, which are the batch's own. On error nothing of the step
  // counts; see Backend::Finish.
  absl::Status Run(std::span<RowLogits> logits, ForwardOutputs outputs = {});

  // After Run: books decode row `i` of `rows`, which are part of this batch.
  void Count(const SequenceRows& rows, int32_t i, AttentionCounter& counter) const;

 private:
  Model& model_;
  const KvCache& cache_;
  std::vector<int32_t> tokens_;
  std::vector<SequenceRows> rows_;
  std::vector<int32_t> tokens_attended_;  // [L, R, HQ]
  std::vector<int32_t> tokens_read_;      // [L, R, HKV]
};

}  // namespace eta
