// One sequence over a model with a cache of its own: it takes rows and returns log-probabilities
// and counts. Evaluation runs on it; the engine serves many sequences instead.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model.h"
#include "engine/model/model_config.h"
#include "engine/request/tempered_keys.h"
#include "kernels/backend.h"
#include "kernels/params/sampling.h"

namespace eta {

class TensorSource;

struct RunnerOptions {
  KvGeometry geometry;
  WeightFormat weights = WeightFormat::kNative;
  int32_t max_context = 0;  // positions of the longest sequence; sets the size of the cache
  int32_t max_rows = 256;   // rows of one step
};

// How a sequence attends, from its first row to its last.
struct SequenceSettings {
  AttentionOptions attention = {};
  // Both tables must outlive their use.
  std::span<const float> frozen_thresholds = {};  // [L, HQ]; empty: the predictor's
  std::span<const float> head_z = {};             // [L, HQ]; empty: attention.z for every head
  // Control tokens, ascending, whose keys weigh exp(0); empty: none. Must outlive its use.
  std::span<const int32_t> tempered_ids = {};
  float rope_theta = 0.0f;
};

// The rows of one step. Several decode rows in one step give the same result as one by one.
struct RunnerStep {
  std::span<const int32_t> tokens = {};  // [R], at most max_rows
  RowKind kind = RowKind::kDecode;
  std::span<const int32_t> targets =
      {};                          // [R]: tokens whose log-probabilities are wanted; or empty
  std::span<float> logprobs = {};  // [R], with targets
  std::span<int32_t> best = {};    // [R]: the most likely tokens, with targets; or empty
  std::span<const int32_t> logit_rows = {};  // rows whose logits are wanted
  std::span<float> logits = {};              // [logit_rows, V]
  bool calibrate = false;                    // prefill rows over which outputs.cells are counted
  ForwardOutputs outputs = {};
};

class SequenceRunner {
 public:
  static absl::StatusOr<std::unique_ptr<SequenceRunner>> Create(const TensorSource& checkpoint,
                                                                Backend& backend,
                                                                const RunnerOptions& options);

  const ModelConfig& config() const { return model_->config(); }
  const KvGeometry& geometry() const { return cache_->geometry(); }
  int32_t max_rows() const { return max_rows_; }
  size_t weight_bytes() const { return model_->weight_bytes(); }
  int32_t position() const { return position_; }  // position of the next row

  // Starts a new sequence. InvalidArgument for thresholds or z per head that are not [L, HQ].
  absl::Status Begin(const SequenceSettings& settings);
  // Marks where the sequence is now, for Return.
  void Mark();
  // Goes back to the mark of this sequence, to go on from there as `settings` say; the rows in
  // front of the mark stay as they were computed. Errors of Begin. REQUIRES: a mark since Begin.
  absl::Status Return(const SequenceSettings& settings);

  // OutOfRange past max_rows or max_context. InvalidArgument for a token outside the vocabulary.
  // Internal for logits that are not finite.
  absl::Status Run(const RunnerStep& step);
  // Runs any number of rows as a prompt, in as many steps as it takes.
  absl::Status RunPrompt(std::span<const int32_t> tokens);

 private:
  SequenceRunner(std::unique_ptr<Model> model, std::unique_ptr<KvCache> cache,
                 const RunnerOptions& options);
  absl::Status CheckHeads(const SequenceSettings& settings) const;
  absl::Status Check(const RunnerStep& step) const;
  void SampleLogprobs(const RunnerStep& step);
  void DownloadLogits(const RunnerStep& step);

  std::unique_ptr<Model> model_;
  std::unique_ptr<KvCache> cache_;
  int32_t max_context_;
  int32_t max_rows_;
  std::vector<int32_t> block_table_;                   // [groups, blocks of the longest sequence]
  std::vector<std::span<const int32_t>> more_tables_;  // into it, of groups 1, 2, ...
  std::vector<int32_t> row_indices_;                   // 0 .. max_rows - 1
  std::vector<SampleRow> samples_;
  std::vector<TokenLogprob> best_;  // [max_rows]
  TemperedKeys tempered_;
  SequenceSettings settings_;
  int32_t position_ = 0;
  TemperedKeys marked_tempered_;
  int32_t marked_position_ = 0;
};

// Gives the runner whose cache has this geometry. Valid until it is asked for another one.
using RunnerSource = std::function<absl::StatusOr<SequenceRunner*>(const KvGeometry&)>;
// Always this one, which must outlive the source.
inline RunnerSource OnlyRunner(SequenceRunner& runner) {
  return [&runner](const KvGeometry&) { return &runner; };
}

}  // namespace eta
