#include "kernels/cpu/cpu_backend.h"

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/cpu/host_memory.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/targets.h"
#include "kernels/cpu/workers.h"

namespace eta::cpu {
namespace {

constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxBlockSize = 128;

class HostBuffer final : public Buffer {
 public:
  HostBuffer(HostMemory memory, size_t size)
      : Buffer(memory.get(), size), memory_(std::move(memory)) {}

 private:
  HostMemory memory_;
};

bool IsFloat(DType dtype) {
  return dtype == DType::kFloat32 || dtype == DType::kFloat16 || dtype == DType::kBFloat16;
}

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(int num_threads)
      : workers_(num_threads > 0 ? num_threads : UsableCores()), context_{workers_, batch_} {}

  std::string_view name() const override { return "cpu"; }
  std::string description() const override {
    return absl::StrCat("cpu, ", TargetName(AttainableTargets().front()), ", ",
                        workers_.num_threads(), " threads");
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    HostMemory memory = AllocateHostMemory(bytes);
    if (memory == nullptr) {
      return absl::ResourceExhaustedError(absl::StrCat("buffer: no memory for ", bytes, " bytes"));
    }
    return std::unique_ptr<Buffer>(std::make_unique<HostBuffer>(std::move(memory), bytes));
  }

  void Upload(std::byte* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Download(void* to, const std::byte* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }

  absl::StatusOr<std::unique_ptr<Matrix>> Pack(std::span<const HostMatrix> parts,
                                               WeightFormat format) override {
    if (parts.empty()) return absl::InvalidArgumentError("parts: at least one matrix is needed");
    for (const HostMatrix& part : parts) {
      if (part.data == nullptr || part.rows <= 0 || part.cols <= 0) {
        return absl::InvalidArgumentError("parts: a matrix is empty");
      }
      if (part.cols != parts.front().cols) {
        return absl::InvalidArgumentError("parts: matrices differ in columns");
      }
      if (!IsFloat(part.dtype)) {
        return absl::InvalidArgumentError("parts: dtype is not float32, float16 or bfloat16");
      }
    }
    try {
      return PackMatrix(parts, format);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("parts: no memory for the packed matrix");
    }
  }

  absl::StatusOr<KvLayout> Layout(const KvGeometry& geometry) const override {
    if (geometry.num_kv_heads < 1 || geometry.num_kv_heads > 1024) {
      return absl::InvalidArgumentError("num_kv_heads: not in 1..1024");
    }
    if (geometry.head_dim < 16 || geometry.head_dim > kMaxHeadDim || geometry.head_dim % 16 != 0) {
      return absl::InvalidArgumentError("head_dim: not a multiple of 16 in 16..256");
    }
    if (geometry.block_size < 1 || geometry.block_size > kMaxBlockSize) {
      return absl::InvalidArgumentError("block_size: not in 1..128");
    }
    if (geometry.sub_block < 0 ||
        (geometry.sub_block > 0 && geometry.block_size % geometry.sub_block != 0)) {
      return absl::InvalidArgumentError("sub_block: neither 0 nor a divisor of block_size");
    }
    if (!IsFloat(geometry.dtype)) {
      return absl::InvalidArgumentError("dtype: the KV cache holds float32, float16 or bfloat16");
    }
    const KvTile tile(geometry);
    return KvLayout{tile.block_bytes(), tile.block_record_bytes()};
  }

  BlockRecord ReadRecord(const KvGeometry& geometry, const KvLayerView& kv, int32_t block,
                         int32_t kv_head) const override {
    const KvTile tile(geometry);
    std::byte* bytes = tile.Record(kv, block, kv_head);
    const auto d = static_cast<size_t>(geometry.head_dim);
    BlockRecord record;
    record.mu.resize(d);
    record.sigma.resize(d);
    for (size_t i = 0; i < d; ++i) {
      record.mu[i] = HalfToFloat(tile.Mu(bytes)[i]);
      record.sigma[i] = HalfToFloat(tile.Sigma(bytes)[i]);
    }
    record.max_norm = *tile.MaxNorm(bytes);
    record.v_total.assign(tile.VTotal(bytes), tile.VTotal(bytes) + d);
    return record;
  }

  void Plan(const BatchView& batch) override { batch_ = batch; }

  void Embed(const EmbedParams& params) override { cpu::Embed(context_, params); }
  void RmsNorm(const RmsNormParams& params) override { cpu::RmsNorm(context_, params); }
  void MatMul(const MatMulParams& params) override { cpu::MatMul(context_, params); }
  void Rope(const RopeParams& params) override { cpu::Rope(context_, params); }
  void AppendKv(const AppendKvParams& params) override { cpu::AppendKv(context_, params); }
  void PredictThresholds(const ThresholdParams& params) override {
    cpu::PredictThresholds(context_, params);
  }
  void SelectBlocks(const SelectBlocksParams& params) override {
    cpu::SelectBlocks(context_, params);
  }
  void DecodeAttention(const AttentionParams& params) override {
    cpu::DecodeAttention(context_, params);
  }
  void PrefillAttention(const AttentionParams& params) override {
    cpu::PrefillAttention(context_, params);
  }
  void CountRecall(const RecallParams& params) override { cpu::CountRecall(context_, params); }
  void SwiGlu(const SwiGluParams& params) override { cpu::SwiGlu(context_, params); }
  void Sample(const SampleParams& params) override { cpu::Sample(context_, params); }

  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  Workers workers_;
  BatchView batch_;
  Context context_;
};

}  // namespace

std::unique_ptr<Backend> MakeBackend(int num_threads) {
  return std::make_unique<CpuBackend>(num_threads);
}

}  // namespace eta::cpu
