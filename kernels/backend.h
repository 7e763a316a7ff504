// A backend runs every op of the model on one device. The same calls in the same order serve the
// reference (double precision, plain loops), the CPU and the GPU. All of them meet
// eta-semantics.md.
//
// Thread rules: one caller at a time. A step is Plan() with its rows, then the ops in the model's
// order, then Finish().
//
// A backend that defers (defers()) only notes the ops. Launch() starts them; without a Launch(),
// Finish() does. While they run, the next step may be noted, with any tokens: SetTokens() replaces
// the tokens before that step is launched, and Discard() forgets the step.
//
//   Plan(k) ops Launch() | Plan(k + 1) ops  Finish() | SetTokens() ops Launch() | Plan(k + 2) ...
//                          while k runs                                           while k + 1 runs
//
// A step may be launched in parts: while its first ops run, ops that follow them are noted, and
// another Launch() starts these behind them. So what the last ops need may be made meanwhile.
//
// Nothing else of the backend is called while a step runs. On a backend that does not defer, ops
// run when they are called, and Launch() does nothing.
//
// A step reads host memory: the batch and all that it points to, rows, penalties, thresholds. This
// memory must live until the step is launched, finished or discarded, whichever comes first. A step
// writes host memory: counts and samples. This memory must live until the step is finished or
// discarded, and is valid once it is finished.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/batch.h"
#include "kernels/block_bound.h"
#include "kernels/kv_geometry.h"

namespace eta {

// Of kernels/params: who calls an op includes its header.
struct EmbedParams;
struct RmsNormParams;
struct MatMulParams;
struct AddBiasParams;
struct NormHeadsParams;
struct RopeParams;
struct AppendKvParams;
struct ThresholdParams;
struct SwiGluParams;
struct RouteRowsParams;
struct MultiplyExpertsParams;
struct AddExpertsParams;
struct SelectBlocksParams;
struct ListBlocksParams;
struct SelectPrefillParams;
struct AttentionParams;
struct RecallParams;
struct ShadowParams;
struct CalibrationParams;
struct SampleParams;

struct GgmlLayout;    // kernels/weights/ggml_type.h
struct Float8Scales;  // kernels/weights/float8_scales.h

// Memory of a backend, freed on destruction. It is aligned for any op; its contents are undefined.
class Buffer {
 public:
  virtual ~Buffer() = default;
  std::byte* data() const { return data_; }
  size_t size() const { return size_; }
  template <typename T>
  T* as() const {
    return reinterpret_cast<T*>(data_);
  }

 protected:
  Buffer(std::byte* data, size_t size) : data_(data), size_(size) {}

 private:
  std::byte* data_;
  size_t size_;
};

// A weight [N, K] in the backend's own arrangement. Immutable.
class Matrix {
 public:
  virtual ~Matrix() = default;
  int64_t rows() const { return rows_; }  // N
  int64_t cols() const { return cols_; }  // K
  virtual size_t bytes() const = 0;

 protected:
  Matrix(int64_t rows, int64_t cols) : rows_(rows), cols_(cols) {}

 private:
  int64_t rows_;
  int64_t cols_;
};

// A matrix of the checkpoint in host memory, row-major.
struct HostMatrix {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16; of blocks: what they unpack to
  int64_t rows = 0;
  int64_t cols = 0;
  const GgmlLayout* blocks = nullptr;  // set: each row is a whole number of such blocks
  bool keeps_eight = false;            // under int4 it is kept as under int8
  bool exact = false;                  // kept as it is where others are rounded: a router
  // Set: `data` is e4m3, a byte each, with these scales. dtype is float32 then, blocks null.
  const Float8Scales* float8 = nullptr;
};

// The record of one full block and KV head, unpacked: for tests, inspection and evaluation.
struct BlockRecord {
  std::vector<float> mu;       // [d], as rounded
  std::vector<float> sigma;    // [d], as rounded
  float max_norm = 0.0f;       // M; kMoment
  std::vector<float> v_total;  // [d]
  float mu_error = 0.0f;       // e of an 8-bit moment record: the bound grows by |q| times this
  std::vector<float> outlier;  // [d], as rounded; kOutlier, else empty
  float step = 0.0f;           // A and B of an 8-bit outlier record: half a step times sum_i |q_i|
  float outlier_step = 0.0f;   // is what the two bounds grow by

  RecordView View() const { return {mu, sigma, outlier, max_norm, mu_error, step, outlier_step}; }
};

// The weights of a layer's experts, one projection: a matrix [N, K] of each. Immutable.
class ExpertStack {
 public:
  ExpertStack() = default;
  explicit ExpertStack(std::vector<std::unique_ptr<Matrix>> matrices)
      : matrices_(std::move(matrices)) {}
  virtual ~ExpertStack() = default;
  virtual size_t bytes() const {
    size_t bytes = 0;
    for (const auto& matrix : matrices_) bytes += matrix ? matrix->bytes() : 0;
    return bytes;
  }
  // [E]; of a backend that keeps them otherwise none.
  std::span<const std::unique_ptr<Matrix>> matrices() const { return matrices_; }

 private:
  std::vector<std::unique_ptr<Matrix>> matrices_;
};

// The ops of a layer with experts. They are ops of the step as Backend's are.
class ExpertOps {
 public:
  virtual ~ExpertOps() = default;
  // Takes the matrices [E] that Pack made, all [N, K]. A null one is an expert that no row will
  // choose. While it runs, memory may be held for twice their bytes.
  virtual absl::StatusOr<std::unique_ptr<ExpertStack>> Stack(
      std::vector<std::unique_ptr<Matrix>> matrices) {
    return std::make_unique<ExpertStack>(std::move(matrices));
  }
  virtual void RouteRows(const RouteRowsParams& params) = 0;
  virtual void MultiplyExperts(const MultiplyExpertsParams& params) = 0;
  virtual void AddExperts(const AddExpertsParams& params) = 0;
};

// It is wide since each op of the model is one method.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;    // "reference", "cpu", "cuda"
  virtual std::string description() const = 0;  // device, instruction set, threads

  // Element type of the inputs of MatMul (TensorView). What the layers hand on is float32.
  virtual DType activation_dtype() const { return DType::kFloat32; }
  // Rows that tensors, logits too, should have for a batch of `rows` rows. A backend that prefers
  // few sizes asks for more rows than the batch has; the contents of the extra rows are undefined.
  virtual int64_t PaddedRows(int64_t rows) const { return rows; }
  // Bytes that Allocate could still give. Unimplemented if the device does not tell.
  virtual absl::StatusOr<size_t> FreeMemory() const {
    return absl::UnimplementedError("backend: does not tell its free memory");
  }
  // The part of FreeMemory() that ops over such a cache allocate when they first need it, for
  // queries of `num_query_heads` heads, sequences of up to `context` tokens and steps of up to
  // `rows` rows, of them `decode_rows` decode rows. Who allocates all free memory must leave this
  // much.
  virtual size_t LateMemory(const KvGeometry& /*geometry*/, int64_t /*num_query_heads*/,
                            int64_t /*context*/, int64_t /*rows*/, int64_t /*decode_rows*/) const {
    return 0;
  }

  virtual absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) = 0;
  virtual void Upload(std::byte* to, const void* from, size_t bytes) = 0;
  virtual void Download(void* to, const std::byte* from, size_t bytes) = 0;
  // Stacks `parts` (equal cols) into one matrix [sum of rows, cols].
  virtual absl::StatusOr<std::unique_ptr<Matrix>> Pack(std::span<const HostMatrix> parts,
                                                       WeightFormat format) = 0;
  // InvalidArgument, naming the field, for a geometry that the backend does not support.
  virtual absl::StatusOr<KvLayout> Layout(const KvGeometry& geometry) const = 0;
  virtual BlockRecord ReadRecord(const KvGeometry& geometry, const KvLayerView& kv, int32_t block,
                                 int32_t kv_head) const = 0;

  virtual bool defers() const { return false; }

  // Begins a step.
  virtual void Plan(const BatchView& batch) = 0;

  virtual void Embed(const EmbedParams& params) = 0;
  virtual void RmsNorm(const RmsNormParams& params) = 0;
  virtual void MatMul(const MatMulParams& params) = 0;
  virtual void AddBias(const AddBiasParams& params) = 0;
  virtual void NormHeads(const NormHeadsParams& params) = 0;
  virtual void Rope(const RopeParams& params) = 0;
  virtual void AppendKv(const AppendKvParams& params) = 0;
  virtual void PredictThresholds(const ThresholdParams& params) = 0;
  virtual void SelectBlocks(const SelectBlocksParams& params) = 0;
  virtual void ListBlocks(const ListBlocksParams& params) = 0;  // in the place of SelectBlocks
  virtual void SelectPrefillBlocks(const SelectPrefillParams& params) = 0;
  virtual void DecodeAttention(const AttentionParams& params) = 0;
  virtual void PrefillAttention(const AttentionParams& params) = 0;
  virtual void CountRecall(const RecallParams& params) = 0;
  virtual void MeasureShadow(const ShadowParams& params) = 0;
  virtual void CollectCalibration(const CalibrationParams& params) = 0;
  virtual void SwiGlu(const SwiGluParams& params) = 0;
  virtual void Sample(const SampleParams& params) = 0;  // REQUIRES: CheckSample (checks.h)

  // Replaces the tokens [R] of the noted step; for a backend that defers. The tokens must live as
  // long as the step's batch.
  virtual void SetTokens(std::span<const int32_t> /*tokens*/) {}
  // Starts the noted ops and does not wait. Then come Plan() or Finish(), or further ops of the
  // step with a Launch() of their own.
  virtual void Launch() {}
  // Forgets the step that is noted and was not launched.
  virtual void Discard() {}
  // Waits for the step that runs; if none runs, for the ops since Plan(). After an error nothing of
  // the step counts. RESOURCE_EXHAUSTED: the device had no memory for the step; a smaller step may
  // follow. Any other error: the device is lost.
  virtual absl::Status Finish() = 0;
  // Seconds that the device spent on the ops of the last finished step, transfers included, and
  // what it waited for between its parts.
  // Benchmarks divide by this time. Nullopt if the host runs the ops itself, since its clock tells
  // then.
  virtual std::optional<double> last_step_seconds() const { return std::nullopt; }

  virtual ExpertOps& experts() = 0;
  // Whether a decode row is computed to the same bits whatever rows stand beside it in a step,
  // those of its own sequence among them. Not on CUDA: there the order of sums in products and
  // attention goes by how many rows a step has (kernels/cuda/NOTES.md).
  virtual bool exact_rows() const { return false; }
};

}  // namespace eta
