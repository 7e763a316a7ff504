#include "calibration/evaluation/cases/kernel_case.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "absl/strings/str_cat.h"
#include "calibration/evaluation/cases/case_metadata.h"
#include "calibration/evaluation/cases/case_tensors.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "kernels/params/layer.h"
#include "kernels/params/selection.h"
#include "kernels/tensor_view.h"

namespace eta {
namespace {

constexpr int64_t kMaxTokens = int64_t{1} << 22;
constexpr int64_t kMaxHeads = 4096;
constexpr int64_t kMaxHeadDim = 1024;
constexpr int32_t kMaxGroup = 32;  // query heads of a KV head: bits of a block's head mask
constexpr int32_t kAppendRows = 256;

// The type of keys and values in a case file.
DType FileDType(const KvGeometry& geometry) {
  return geometry.dtype == DType::kFloat8E4M3 ? DType::kFloat32 : geometry.dtype;
}

// If the metadata repeats a size, it must agree with the tensors.
absl::Status Agrees(const CaseMetadata& metadata, const std::string& field, int64_t size) {
  const auto found = metadata.find(field);
  if (found == metadata.end() || found->second == absl::StrCat(size)) return absl::OkStatus();
  return InvalidField(field, absl::StrCat("must be ", size, ", as the tensors are"));
}

absl::Status ReadShapes(const SafetensorsFile& file, KernelCase& out) {
  ASSIGN_OR_RETURN(const auto q, FindTensor(file, "q", DType::kFloat32, {kAnySize, kAnySize}));
  ASSIGN_OR_RETURN(const auto k, FindTensor(file, "k", FileDType(out.geometry),
                                            {kAnySize, kAnySize, q.shape[1]}));
  const int64_t query_heads = q.shape[0];
  const int64_t head_dim = q.shape[1];
  const int64_t tokens = k.shape[0];
  const int64_t kv_heads = k.shape[1];
  if (tokens < 1 || tokens > kMaxTokens) {
    return InvalidField("k", absl::StrCat("must hold 1 to ", kMaxTokens, " tokens"));
  }
  if (head_dim < 1 || head_dim > kMaxHeadDim) {
    return InvalidField("q", absl::StrCat("must have 1 to ", kMaxHeadDim, " head dimensions"));
  }
  if (kv_heads < 1 || query_heads < kv_heads || query_heads > kMaxHeads ||
      query_heads % kv_heads != 0 || query_heads / kv_heads > kMaxGroup) {
    return InvalidField(
        "q", absl::StrCat("must have 1 to ", kMaxGroup, " query heads per KV head of k, ",
                          kMaxHeads, " at most, the same number for each"));
  }
  out.num_query_heads = static_cast<int32_t>(query_heads);
  out.num_tokens = static_cast<int32_t>(tokens);
  out.geometry.num_kv_heads = static_cast<int32_t>(kv_heads);
  out.geometry.head_dim = static_cast<int32_t>(head_dim);
  for (const auto& [field, size] :
       std::initializer_list<std::pair<const char*, int64_t>>{{"num_query_heads", query_heads},
                                                              {"num_kv_heads", kv_heads},
                                                              {"head_dim", head_dim},
                                                              {"tokens", tokens}}) {
    RETURN_IF_ERROR(Agrees(file.metadata(), field, size));
  }
  return absl::OkStatus();
}

absl::Status ReadTensors(const SafetensorsFile& file, KernelCase& out) {
  const int64_t query_heads = out.num_query_heads;
  const int64_t head_dim = out.geometry.head_dim;
  const std::vector<int64_t> kv_shape = {out.num_tokens, out.geometry.num_kv_heads, head_dim};
  struct Wanted {
    const char* name;
    DType dtype;
    std::vector<int64_t> shape;
    std::vector<float>& values;
  };
  const Wanted wanted[] = {{"q", DType::kFloat32, {query_heads, head_dim}, out.q},
                           {"k", FileDType(out.geometry), kv_shape, out.k},
                           {"v", FileDType(out.geometry), kv_shape, out.v},
                           {"tau", DType::kFloat32, {query_heads}, out.thresholds}};
  for (const Wanted& tensor : wanted) {
    ASSIGN_OR_RETURN(tensor.values, ReadFloats(file, tensor.name, tensor.dtype, tensor.shape));
  }
  return absl::OkStatus();
}

// The tensors that a case need not have.
absl::Status ReadOptionalTensors(const SafetensorsFile& file, KernelCase& out) {
  const int64_t d = out.geometry.head_dim;
  if (out.geometry.index == IndexKind::kOutlier && file.tensors().contains("metric")) {
    ASSIGN_OR_RETURN(
        out.metric, ReadFloats(file, "metric", DType::kFloat32, {out.geometry.num_kv_heads, d, d}));
  }
  if (file.tensors().contains("special")) {
    ASSIGN_OR_RETURN(const std::vector<uint8_t> special,
                     ReadBytes(file, "special", {out.num_tokens}));
    out.tempered.resize(special.size() / 64 + 1);
    for (size_t t = 0; t < special.size(); ++t) {
      if (special[t] > 1) return InvalidField("special", "must hold 0 and 1");
      out.tempered[t / 64] |= uint64_t{special[t]} << (t % 64);
    }
  }
  return absl::OkStatus();
}

// Kind and type of the records.
absl::Status ReadIndex(const CaseMetadata& metadata, KvGeometry& geometry) {
  ASSIGN_OR_RETURN(const size_t kind, OptionalChoice(metadata, "index", {"moment", "outlier"}, 0));
  if (kind == 1) {
    ASSIGN_OR_RETURN(const size_t record,
                     OptionalChoice(metadata, "record", {"int8", "float32"}, 0));
    geometry.index = IndexKind::kOutlier;
    geometry.index_dtype = record == 0 ? DType::kInt8 : DType::kFloat32;
    return absl::OkStatus();
  }
  ASSIGN_OR_RETURN(const size_t dtype,
                   OptionalChoice(metadata, "index_dtype", {"float16", "int8"}, 0));
  geometry.index_dtype = dtype == 1 ? DType::kInt8 : DType::kFloat16;
  return absl::OkStatus();
}

// One run of a case through a backend.
class KernelRun {
 public:
  KernelRun(const KernelCase& kernel_case, Backend& backend)
      : case_(kernel_case), backend_(backend), geometry_(kernel_case.geometry) {}

  absl::StatusOr<KernelResult> Run() {
    RETURN_IF_ERROR(Reserve());
    for (int32_t position = 0; position < case_.num_tokens - 1;) {
      const int32_t rows = std::min(kAppendRows, case_.num_tokens - 1 - position);
      RETURN_IF_ERROR(AppendPrompt(position, rows));
      position += rows;
    }
    RETURN_IF_ERROR(Decode());
    return Collect();
  }

 private:
  std::byte* Allocate(size_t bytes, absl::Status& status) {
    if (!status.ok()) return nullptr;
    absl::StatusOr<std::unique_ptr<Buffer>> buffer = backend_.Allocate(std::max<size_t>(bytes, 64));
    if (!buffer.ok()) {
      status = buffer.status();
      return nullptr;
    }
    buffers_.push_back(*std::move(buffer));
    return buffers_.back()->data();
  }

  TensorView Tensor(int64_t rows, int64_t cols, absl::Status& status) {
    const size_t bytes = static_cast<size_t>(rows * cols) * sizeof(float);
    return {reinterpret_cast<float*>(Allocate(bytes, status)), rows, cols, cols};
  }

  absl::Status Reserve() {
    ASSIGN_OR_RETURN(const KvLayout layout, backend_.Layout(geometry_));
    const int32_t blocks = (case_.num_tokens - 1) / geometry_.block_size + 1;
    // The block table is reversed and block 0 is unused, so a backend that ignores the table fails.
    for (int32_t i = 0; i < blocks; ++i) block_table_.push_back(blocks - i);
    const auto pool = static_cast<size_t>(blocks) + 1;
    const int64_t kv_cols = int64_t{geometry_.num_kv_heads} * geometry_.head_dim;
    absl::Status status;
    kv_.tiles = Allocate(pool * layout.tile_bytes, status);
    kv_.records = Allocate(pool * layout.record_bytes, status);
    if (!case_.metric.empty()) {
      const size_t bytes = case_.metric.size() * sizeof(float);
      std::byte* metric = Allocate(bytes, status);
      if (status.ok()) backend_.Upload(metric, case_.metric.data(), bytes);
      kv_.index_metric = reinterpret_cast<const float*>(metric);
    }
    const int64_t append_rows = std::min<int64_t>(kAppendRows, case_.num_tokens);
    k_ = Tensor(append_rows, kv_cols, status);
    v_ = Tensor(append_rows, kv_cols, status);
    q_ = Tensor(1, int64_t{case_.num_query_heads} * geometry_.head_dim, status);
    thresholds_ = Tensor(1, case_.num_query_heads, status);
    out_ = Tensor(1, q_.cols, status);
    const auto kv_heads = static_cast<size_t>(geometry_.num_kv_heads);
    const size_t list_bytes = kv_heads * static_cast<size_t>(blocks) * sizeof(uint32_t);
    selection_.capacity = blocks;
    selection_.rows = 1;
    selection_.blocks = reinterpret_cast<uint32_t*>(Allocate(list_bytes, status));
    selection_.heads = reinterpret_cast<uint32_t*>(Allocate(list_bytes, status));
    selection_.counts = reinterpret_cast<int32_t*>(Allocate(kv_heads * sizeof(int32_t), status));
    tokens_attended_.resize(static_cast<size_t>(case_.num_query_heads));
    tokens_read_.resize(kv_heads);
    return status;
  }

  SequenceRows Rows(int32_t position, int32_t rows, RowKind kind) const {
    const int32_t blocks = (position + rows - 1) / geometry_.block_size + 1;
    return {.row_begin = 0,
            .num_rows = rows,
            .position = position,
            .kind = kind,
            .rope_theta = 10000.0f,
            .attention = case_.attention,
            .frozen_thresholds = case_.thresholds.data(),
            .tempered = case_.tempered,
            .block_table = std::span(block_table_).first(static_cast<size_t>(blocks))};
  }

  void Append(int32_t position, int32_t rows) {
    const size_t begin = static_cast<size_t>(position) * static_cast<size_t>(k_.cols);
    const size_t bytes = static_cast<size_t>(rows * k_.cols) * sizeof(float);
    backend_.Upload(reinterpret_cast<std::byte*>(k_.data), case_.k.data() + begin, bytes);
    backend_.Upload(reinterpret_cast<std::byte*>(v_.data), case_.v.data() + begin, bytes);
    backend_.AppendKv({k_.Rows(0, rows), v_.Rows(0, rows), geometry_, kv_});
  }

  absl::Status AppendPrompt(int32_t position, int32_t rows) {
    const SequenceRows sequence = Rows(position, rows, RowKind::kPrefill);
    const std::vector<int32_t> tokens(static_cast<size_t>(rows));
    backend_.Plan({.tokens = tokens, .sequences = std::span(&sequence, 1)});
    Append(position, rows);
    return backend_.Finish();
  }

  absl::Status Decode() {
    const SequenceRows sequence = Rows(case_.num_tokens - 1, 1, RowKind::kDecode);
    const int32_t token = 0;
    const auto scale = static_cast<float>(1.0 / std::sqrt(double{1.0} * geometry_.head_dim));
    backend_.Plan({.tokens = std::span(&token, 1), .sequences = std::span(&sequence, 1)});
    Append(case_.num_tokens - 1, 1);
    backend_.Upload(reinterpret_cast<std::byte*>(q_.data), case_.q.data(),
                    case_.q.size() * sizeof(float));
    backend_.PredictThresholds({0, q_, nullptr, nullptr, thresholds_});
    backend_.SelectBlocks({0,
                           q_,
                           thresholds_,
                           case_.num_query_heads,
                           geometry_,
                           kv_,
                           scale,
                           selection_,
                           {tokens_attended_.data(), tokens_read_.data()}});
    backend_.DecodeAttention({q_, thresholds_, case_.num_query_heads, geometry_, kv_, scale,
                              case_.gate, case_.beta, selection_, out_});
    return backend_.Finish();
  }

  template <typename T>
  std::vector<T> Fetch(const T* data, size_t count) {
    std::vector<T> values(count);
    backend_.Download(values.data(), reinterpret_cast<const std::byte*>(data), count * sizeof(T));
    return values;
  }

  absl::StatusOr<KernelResult> Collect() {
    const int32_t full_blocks = case_.num_tokens / geometry_.block_size;
    const auto blocks = static_cast<size_t>(full_blocks);
    const auto kv_heads = static_cast<size_t>(geometry_.num_kv_heads);
    const size_t group = static_cast<size_t>(case_.num_query_heads) / kv_heads;
    const auto capacity = static_cast<size_t>(selection_.capacity);
    KernelResult result;
    result.out = Fetch(out_.data, case_.q.size());
    result.tokens_per_head.assign(tokens_attended_.begin(), tokens_attended_.end());
    result.tokens_per_kv_head.assign(tokens_read_.begin(), tokens_read_.end());
    result.used.resize(static_cast<size_t>(case_.num_query_heads) * blocks);
    const std::vector<int32_t> counts = Fetch(selection_.counts, kv_heads);
    const std::vector<uint32_t> lists = Fetch(selection_.blocks, kv_heads * capacity);
    const std::vector<uint32_t> masks = Fetch(selection_.heads, kv_heads * capacity);
    for (size_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
      if (counts[kv_head] < 0 || counts[kv_head] > full_blocks) {
        return absl::InternalError("selection: a list is longer than there are full blocks");
      }
      for (size_t i = 0; i < static_cast<size_t>(counts[kv_head]); ++i) {
        const uint32_t block = lists[kv_head * capacity + i];
        if (block >= blocks || (i > 0 && block <= lists[kv_head * capacity + i - 1])) {
          return absl::InternalError("selection: a list does not ascend within the full blocks");
        }
        for (size_t g = 0; g < group; ++g) {
          const uint32_t attends = (masks[kv_head * capacity + i] >> g) & 1u;
          result.used[(kv_head * group + g) * blocks + block] = static_cast<uint8_t>(attends);
        }
      }
    }
    return result;
  }

  const KernelCase& case_;
  Backend& backend_;
  const KvGeometry geometry_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
  std::vector<int32_t> block_table_;
  KvLayerView kv_;
  TensorView k_, v_;       // [kAppendRows, HKV * d]
  TensorView q_, out_;     // [1, HQ * d]
  TensorView thresholds_;  // [1, HQ]
  BlockSelection selection_;
  std::vector<int32_t> tokens_attended_;  // [HQ]
  std::vector<int32_t> tokens_read_;      // [HKV]
};

}  // namespace

absl::StatusOr<KernelCase> ReadKernelCase(const std::string& path) {
  ASSIGN_OR_RETURN(const SafetensorsFile file, OpenCase(path));
  const CaseMetadata& metadata = file.metadata();
  KernelCase out;
  RETURN_IF_ERROR(BlockFields(metadata, out.geometry));
  ASSIGN_OR_RETURN(const ResolvedAttention attention, AttentionFields(metadata));
  ASSIGN_OR_RETURN(const size_t gate, ChoiceField(metadata, "gate", {"none", "silu"}));
  ASSIGN_OR_RETURN(const float beta, RealField(metadata, "beta", 0.0f, 1000.0f));
  ASSIGN_OR_RETURN(
      const size_t dtype,
      ChoiceField(metadata, "kv_dtype", {"float32", "float16", "bfloat16", "float8_e4m3"}));
  RETURN_IF_ERROR(ReadIndex(metadata, out.geometry));
  out.attention = attention.options;
  out.gate = gate == 1 ? Gate::kSilu : Gate::kNone;
  out.beta = beta;
  out.geometry.dtype =
      std::array{DType::kFloat32, DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3}[dtype];
  if (out.attention.uniform_floor && out.gate == Gate::kNone) {
    return InvalidField("floor", "must be none when gate is none");
  }
  if (out.attention.relative &&
      (out.gate != Gate::kNone || out.geometry.index != IndexKind::kOutlier)) {
    return InvalidField("thresholds", "must be given, but for gate none and index outlier");
  }
  RETURN_IF_ERROR(ReadShapes(file, out));
  RETURN_IF_ERROR(ReadTensors(file, out));
  RETURN_IF_ERROR(ReadOptionalTensors(file, out));
  return out;
}

absl::StatusOr<KernelResult> RunKernelCase(const KernelCase& kernel_case, Backend& backend) {
  return KernelRun(kernel_case, backend).Run();
}

absl::Status WriteKernelResult(const KernelCase& kernel_case, const KernelResult& result,
                               const std::string& path) {
  const int64_t query_heads = kernel_case.num_query_heads;
  const int64_t full_blocks = kernel_case.num_tokens / kernel_case.geometry.block_size;
  const std::vector<double> out(result.out.begin(), result.out.end());
  const std::vector<int64_t> per_block = {query_heads, full_blocks};
  std::map<std::string, TensorToWrite> tensors = {
      {"out", AsTensor(DType::kFloat64, {query_heads, kernel_case.geometry.head_dim}, out)},
      {"used", AsTensor(DType::kUInt8, per_block, result.used)},
      {"tokens_per_head", AsTensor(DType::kInt64, {query_heads}, result.tokens_per_head)},
      {"tokens_per_kv_head",
       AsTensor(DType::kInt64, {kernel_case.geometry.num_kv_heads}, result.tokens_per_kv_head)}};
  if (!kernel_case.attention.shared_reads) {
    tensors["admitted"] = AsTensor(DType::kUInt8, per_block, result.used);
  }
  return WriteSafetensors(path, {}, tensors);
}

}  // namespace eta
