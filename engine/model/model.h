// The model: weights on a backend and one forward pass over the ragged rows of a step. A layer is a
// column of backend calls in the paper's order (model.cc). Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/kv_cache.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"
#include "kernels/calibration_cells.h"
#include "kernels/params/sampling.h"

namespace eta {

class TensorReader;
class TensorSource;

struct ModelOptions {
  WeightFormat weights = WeightFormat::kNative;
  bool allow_nonfinite_weights = false;
  int32_t max_rows = 256;          // R of the largest step
  int32_t max_decode_rows = 0;     // of them, those of decode sequences; 0: all (selection_lists.h)
  int32_t max_context = 32768;     // T of the longest sequence; as of ForContext
  int32_t block_size = 0;          // of the cache that Forward will be given; 0: the checkpoint's
  std::optional<IndexKind> index;  // likewise
};

// The decode rows of one layer that are measured against full attention, and where what was
// measured goes (ShadowParams). What it points to must live until Finish().
struct ShadowLayer {
  std::span<const int32_t> rows;  // ascending
  float* mass = nullptr;          // [rows.size(), HQ]
  float* error = nullptr;         // likewise
};

// Optional outputs of a forward pass. A null member costs nothing. Layers with a window have zeros
// in those per layer: only full layers select, and are measured.
struct ForwardOutputs {
  int32_t* tokens_attended = nullptr;  // [L, R, HQ], host; of decode rows and sparse prefill
  int32_t* tokens_read = nullptr;      // [L, R, HKV], host; likewise
  int32_t* values_read = nullptr;      // [L, R, HKV], host; likewise
  // [L, E], host: how many rows each expert had; of layers without experts nothing.
  int32_t* expert_rows = nullptr;
  float* thresholds = nullptr;        // [L, R, HQ], host: tau of every row, before the offset
  int64_t* above = nullptr;           // [L, HQ], host: added to; see RecallParams
  int64_t* above_admitted = nullptr;  // [L, HQ], likewise; null switches recall off
  // [L, HQ, CalibrationCells(bins).size()], the backend's memory: added to by the rows of sequences
  // with `calibrate`.
  uint64_t* cells = nullptr;
  ScoreBins bins = {};
  std::span<const ShadowLayer> shadow;  // [L]; empty: none
};

class Model {
 public:
  // FAILED_PRECONDITION for tensors, those of the index metric too, that do not fit the config or
  // hold NaN or infinity.
  static absl::StatusOr<std::unique_ptr<Model>> Load(const TensorSource& source, Backend& backend,
                                                     const ModelOptions& options);
  ~Model();

  // Its index and its layers: those of the options.
  const ModelConfig& config() const { return config_; }
  size_t weight_bytes() const;
  size_t row_bytes() const;     // of them, what a step of one row reads
  size_t expert_bytes() const;  // of them, all experts'
  int32_t max_decode_rows() const { return max_decode_rows_; }

  // Runs the rows of `batch` through all layers, appending their K and V to `cache`: at most
  // max_rows, and the decode rows among the first max_decode_rows(). Afterwards ComputeLogits() and
  // Sample() may be called for these rows. INVALID_ARGUMENT for rows that have no place; what
  // happens on the device shows in Finish().
  absl::Status Forward(const BatchView& batch, const KvCache& cache, const ForwardOutputs& outputs);

  // Logits of `rows` (indices into the last batch) into rows 0 .. of an internal buffer of
  // max_logit_rows() rows; Sample reads them there, DownloadLogits copies row i to host memory [V].
  void ComputeLogits(std::span<const int32_t> rows);
  void Sample(std::span<SampleRow> rows);
  void DownloadLogits(int32_t i, float* out);
  static constexpr int32_t max_logit_rows() { return 64; }

  // Ends the step: host outputs and samples are valid after it. INVALID_ARGUMENT: a mask is not of
  // this vocabulary, and nothing was drawn (CheckSample).
  absl::Status Finish();

  // The next step may be noted while one runs, and a step launched in parts; see Backend.
  bool defers() const { return backend_.defers(); }
  void SetTokens(std::span<const int32_t> tokens) { backend_.SetTokens(tokens); }
  void Launch() { backend_.Launch(); }
  void Discard() { backend_.Discard(); }

 private:
  struct Layer;
  struct Workspace;

  Model(ModelConfig config, Backend& backend, const ModelOptions& options);
  absl::Status LoadWeights(const TensorSource& source, bool allow_nonfinite, WeightFormat format);
  absl::Status LoadIndexMetric(const TensorReader& file);
  absl::Status AllocateWorkspace(const ModelOptions& options);
  void Attention(int32_t layer_idx, const BatchView& batch, const KvCache& cache,
                 const ForwardOutputs& outputs);
  void AttendInWindow(int32_t layer_idx, const TensorView& q, const KvGeometry& geometry,
                      const BatchView& batch, const KvLayerView& kv, const ForwardOutputs& outputs);
  void FeedForward(const Layer& layer, int64_t rows);
  // Adds x * weight^T, normed if there is a norm, to the residual.
  void AddProduct(const TensorView& x, const Matrix& weight, const Buffer* post_norm);
  void Experts(int32_t layer_idx, int64_t rows, const ForwardOutputs& outputs);
  size_t shared_bytes() const;  // of weights that every row reads

  ModelConfig config_;
  Backend& backend_;
  int32_t max_rows_;
  int32_t max_decode_rows_;
  float softmax_scale_;
  std::unique_ptr<Matrix> embedding_;   // [V, D]
  std::unique_ptr<Matrix> head_;        // [V, D]; null: tied to the embedding
  std::unique_ptr<Buffer> final_norm_;  // [D]
  std::vector<Layer> layers_;
  std::unique_ptr<Workspace> workspace_;
  absl::Status refused_;  // of the step at hand
};

}  // namespace eta
