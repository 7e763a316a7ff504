// A backend runs every op of the model on one device. The same calls in the same order serve the
// reference (double precision, plain loops), the CPU and the GPU; all of them meet
// eta-semantics.md.
//
// Thread rules: one caller at a time. Plan() is given the rows of a step, then the ops are called
// in the model's order, then Finish().
//
// A backend that defers only notes the ops and starts them at Launch(), or at Finish() where there
// was no Launch(). While they run the next step may be noted, with any tokens: SetTokens() replaces
// them before it is launched.
//
//   Plan(k) ops Launch() | Plan(k + 1) ops  Finish() | SetTokens() ops Launch() | Plan(k + 2) ...
//                          while k runs                                           while k + 1 runs
//
// Or Discard() forgets it. Nothing else of the backend is called while a step runs. On other
// backends ops run when they are called, and Launch() does nothing.
//
// Host memory that a step reads (the batch and all that it points to, rows, penalties, thresholds)
// must live until the step is launched, finished or discarded, whichever comes first; what it
// writes (counts, samples) until it is finished or discarded, and is valid once it is finished.
#pragma once

#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "kernels/batch.h"
#include "kernels/params.h"

namespace eta {

// Memory of a backend; freed on destruction. Aligned for any op, contents undefined.
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

// How a weight matrix is kept: as it is in the checkpoint (float32, or 16 bits as bfloat16), or as
// 8-bit integers with one scale per output channel (half the bytes, a small loss of precision).
enum class WeightFormat : uint8_t { kNative, kInt8 };

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

// A matrix as it is in the checkpoint, in host memory, row-major.
struct HostMatrix {
  const void* data = nullptr;
  DType dtype = DType::kFloat32;  // float32, float16 or bfloat16
  int64_t rows = 0;
  int64_t cols = 0;
};

// The record of one full block and KV head, unpacked: for tests and inspection.
struct BlockRecord {
  std::vector<float> mu;       // [d], float16 values; of an 8-bit record p * mu8
  std::vector<float> sigma;    // [d], float16 values; of an 8-bit record 2^x * sigma8
  float max_norm = 0.0f;       // M
  std::vector<float> v_total;  // [d]
  float mu_error = 0.0f;       // e of an 8-bit record: the bound grows by |q| times this
};

class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string_view name() const = 0;    // "reference", "cpu", "cuda"
  virtual std::string description() const = 0;  // device, instruction set, threads

  // Element type of the inputs of MatMul (TensorView); what the layers hand on is float32.
  virtual DType activation_dtype() const { return DType::kFloat32; }
  // Rows that tensors should have for a batch of `rows` rows (also: of logits). A backend that
  // likes few sizes asks for more than there are; what stands in those past the batch is undefined.
  virtual int64_t PaddedRows(int64_t rows) const { return rows; }
  // Bytes that Allocate could still give. Unimplemented where the device does not say.
  virtual absl::StatusOr<size_t> FreeMemory() const {
    return absl::UnimplementedError("backend: does not tell its free memory");
  }
  // Of these, bytes that ops over such a cache take only when they first need them, for sequences
  // of up to `context` tokens: whoever allocates all there is leaves them.
  virtual size_t LateMemory(const KvGeometry& /*geometry*/, int64_t /*context*/) const { return 0; }

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
  virtual void Rope(const RopeParams& params) = 0;
  virtual void AppendKv(const AppendKvParams& params) = 0;
  virtual void PredictThresholds(const ThresholdParams& params) = 0;
  virtual void SelectBlocks(const SelectBlocksParams& params) = 0;
  virtual void DecodeAttention(const AttentionParams& params) = 0;
  virtual void PrefillAttention(const AttentionParams& params) = 0;
  virtual void CountRecall(const RecallParams& params) = 0;
  virtual void CollectCalibration(const CalibrationParams& params) = 0;
  virtual void SwiGlu(const SwiGluParams& params) = 0;
  virtual void Sample(const SampleParams& params) = 0;

  // The tokens [R] of the step that is noted; where the backend defers only. They live as long as
  // its batch.
  virtual void SetTokens(std::span<const int32_t> /*tokens*/) {}
  // Starts the step that is noted, and does not wait. Then comes the next Plan(), or Finish().
  virtual void Launch() {}
  // Forgets what is noted and was not launched.
  virtual void Discard() {}
  // Waits for the step that runs; where none does, for the ops since Plan(). After an error nothing
  // of the step counts. RESOURCE_EXHAUSTED: the device had no memory for it, a smaller step may
  // follow. Any other: the device is lost.
  virtual absl::Status Finish() = 0;
  // Seconds that the device spent on the ops of the last finished step, transfers included: what a
  // benchmark divides by. Nullopt where the host runs the ops itself, so that its clock tells.
  virtual std::optional<double> last_step_seconds() const { return std::nullopt; }
};

struct BackendOptions {
  std::string name = "cpu";
  int num_threads = 0;  // cpu; 0: one per core that this process may use
  int device = 0;       // cuda; index among the devices that the process sees
  // cuda: the type that products are computed in, weights and their inputs rounded to it: bfloat16,
  // float16 or float32 (exact, slow). Sums are float32 in all of them.
  DType compute = DType::kBFloat16;
};

// NotFound, listing the backends of this build, for an unknown name. Unavailable, saying why, where
// the backend's device or its libraries are missing.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);
std::vector<std::string> BackendNames();

}  // namespace eta
