// The ragged rows of one step, and their way through the model: the forward pass, the draws from
// the logits that are wanted, and the counts of what the decode rows read. Not thread-safe: the
// step thread's.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/request/attention_sums.h"

namespace eta {

// A row of the step whose logits are wanted.
struct RowLogits {
  int32_t row = 0;
  SampleRow sample;         // logits_row is the batch's own
  float* logits = nullptr;  // where all of them are to go, [V]: there after Finish; null: nowhere
};

class StepBatch {
 public:
  // Both must outlive it.
  StepBatch(Model& model, const KvCache& cache);

  const ModelConfig& config() const { return model_.config(); }
  const KvGeometry& geometry() const { return cache_.geometry(); }
  const LayerGroups& groups() const { return cache_.groups(); }
  bool defers() const { return model_.defers(); }
  int32_t max_decode_rows() const { return model_.max_decode_rows(); }

  void Clear();
  // Appends rows of a sequence whose tokens, from position 0 on, are given, and the drafts of those
  // behind them. Decode rows come first, at most max_decode_rows() of them.
  void Add(const SequenceRows& rows, std::span<const int32_t> sequence_tokens,
           std::span<const int32_t> drafts = {});
  // Appends rows whose tokens are not known yet: SetToken comes before Draw.
  void AddUnknown(const SequenceRows& rows);
  void SetToken(int32_t row, int32_t token) { tokens_[static_cast<size_t>(row)] = token; }
  int32_t num_rows() const { return static_cast<int32_t>(tokens_.size()); }

  // Runs the batch and fills in the samples of `logits` and the `outputs`. The token counts of
  // `outputs` are left out: the batch has its own. On error nothing of the step counts; see
  // Backend::Finish.
  absl::Status Run(std::span<RowLogits> logits, ForwardOutputs outputs = {});

  // Run in four calls, in this order. Where the backend defers, another batch may run during
  // Forward, and Discard undoes Forward. `logits` must live until Finish, which fills in their
  // samples. LaunchForward between Forward and Draw: the forward pass runs while the draws are
  // made.
  absl::Status Forward(ForwardOutputs outputs = {});
  void LaunchForward();
  void Draw(std::span<RowLogits> logits);
  void Launch() { model_.Launch(); }
  absl::Status Finish();
  void Discard() { model_.Discard(); }

  // After Finish, of rows that belong to this batch. Count: what decode row `i` of `rows` read; its
  // densities are added to `layers`, [L] or empty. CountPrefill: the rows of sparse prefill `rows`
  // from the one at `position` on.
  AttentionSums Count(const SequenceRows& rows, int32_t i,
                      std::span<LayerDensity> layers = {}) const;
  AttentionSums CountPrefill(const SequenceRows& rows, int32_t position) const;
  // Whether that row may leave blocks unread.
  bool Prunes(const SequenceRows& rows, int32_t i) const;
  int64_t weight_bytes() const { return static_cast<int64_t>(model_.weight_bytes()); }
  // [L, R, HQ] and [L, R, HKV], until the next Forward.
  const int32_t* tokens_attended() const { return tokens_attended_.data(); }
  const int32_t* tokens_read() const { return tokens_read_.data(); }
  // [L, E], likewise; null: the model has no experts.
  const int32_t* expert_rows() const {
    return expert_rows_.empty() ? nullptr : expert_rows_.data();
  }

 private:
  void GiveTokens();
  RowCounts CountsOf(int32_t row) const;
  void DownloadLogits(std::span<const RowLogits> logits);

  Model& model_;
  const KvCache& cache_;
  std::vector<int32_t> tokens_;
  std::vector<SequenceRows> rows_;
  bool unknown_ = false;                  // some tokens came after Forward, and were not given
  std::vector<int32_t> tokens_attended_;  // [L, R, HQ]
  std::vector<int32_t> tokens_read_;      // [L, R, HKV]
  std::vector<int32_t> values_read_;      // [L, R, HKV]
  std::vector<int32_t> expert_rows_;      // [L, E]
  std::span<RowLogits> logits_;
  std::vector<int32_t> logit_rows_;     // of logits_
  std::vector<int32_t> download_rows_;  // of those of logits_ whose logits are wanted
  std::vector<SampleRow> samples_;      // likewise
};

}  // namespace eta
