#include "kernels/cpu/cpu_backend.h"

#include <cstring>
#include <new>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/checks.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/memory/host_memory.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/targets.h"
#include "kernels/cpu/workers.h"
#include "kernels/reference/ops.h"
#include "kernels/system/failpoint.h"
#include "kernels/system/usable_cpus.h"

namespace eta::cpu {
namespace {

class HostBuffer final : public Buffer {
 public:
  HostBuffer(HostMemory memory, size_t size)
      : Buffer(memory.get(), size), memory_(std::move(memory)) {}

 private:
  HostMemory memory_;
};

// Unpacks what is of kind outlier; `centre` [d], null: zero.
void ReadOutlierRecord(const KvTile& tile, const float* centre, std::byte* bytes,
                       BlockRecord& record) {
  record.step = HalfToFloat(tile.Steps(bytes)[0]);
  record.outlier_step = HalfToFloat(tile.Steps(bytes)[1]);
  record.outlier.resize(record.mu.size());
  for (size_t i = 0; i < record.mu.size(); ++i) {
    const float middle = centre != nullptr ? centre[i] : 0.0f;
    record.mu[i] = middle + record.step * static_cast<float>(tile.Mu8(bytes)[i]);
    record.sigma[i] = record.step * static_cast<float>(tile.Sigma8(bytes)[i]);
    record.outlier[i] = middle + record.outlier_step * static_cast<float>(tile.Outlier8(bytes)[i]);
  }
}

class CpuBackend final : public Backend, public ExpertOps {
 public:
  CpuBackend(int num_threads, bool amx)
      : workers_(num_threads > 0 ? num_threads : ReadUsableCpus().threads()),
        context_{workers_, batch_, amx && WhyNoAmx().empty()} {}

  std::string_view name() const override { return "cpu"; }
  bool exact_rows() const override { return true; }
  std::string description() const override {
    return absl::StrCat("cpu, ", TargetName(AttainableTargets().front()),
                        context_.amx ? " and AMX, " : ", ", workers_.num_threads(), " threads");
  }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    HostMemory memory = AllocateHostMemory(bytes);
    if (memory == nullptr || ETA_FAILPOINT(kDeviceAllocate)) {
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
    const absl::Status fits = CheckParts(parts);
    if (!fits.ok()) return fits;
    try {
      return PackMatrix(workers_, parts, format);
    } catch (const std::bad_alloc&) {
      return absl::ResourceExhaustedError("parts: no memory for the packed matrix");
    }
  }

  absl::StatusOr<KvLayout> Layout(const KvGeometry& geometry) const override {
    const absl::Status fits = CheckGeometry(geometry);
    if (!fits.ok()) return fits;
    if (geometry.dtype == DType::kFloat8E4M3) {
      return absl::InvalidArgumentError(
          "kv_dtype: backend cpu has no float8_e4m3; backends cuda and reference have it");
    }
    if (geometry.index == IndexKind::kMoment && geometry.index_dtype == DType::kInt8) {
      return absl::InvalidArgumentError(
          "index_dtype: backend cpu has no int8 for an index of kind moment; backends cuda and "
          "reference have it");
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
    record.v_total.assign(tile.VTotal(bytes), tile.VTotal(bytes) + d);
    if (geometry.index == IndexKind::kOutlier) {
      const float* centre = kv.index_centre;
      ReadOutlierRecord(tile,
                        centre != nullptr ? centre + static_cast<size_t>(kv_head) * d : nullptr,
                        bytes, record);
      return record;
    }
    for (size_t i = 0; i < d; ++i) {
      record.mu[i] = HalfToFloat(tile.Mu(bytes)[i]);
      record.sigma[i] = HalfToFloat(tile.Sigma(bytes)[i]);
    }
    record.max_norm = *tile.MaxNorm(bytes);
    return record;
  }

  void Plan(const BatchView& batch) override { batch_ = batch; }

  void Embed(const EmbedParams& params) override { cpu::Embed(context_, params); }
  void RmsNorm(const RmsNormParams& params) override { cpu::RmsNorm(context_, params); }
  void MatMul(const MatMulParams& params) override { cpu::MatMul(context_, params); }
  void AddBias(const AddBiasParams& params) override { cpu::AddBias(context_, params); }
  void NormHeads(const NormHeadsParams& params) override { cpu::NormHeads(context_, params); }
  void Rope(const RopeParams& params) override { cpu::Rope(context_, params); }
  void AppendKv(const AppendKvParams& params) override { cpu::AppendKv(context_, params); }
  void PredictThresholds(const ThresholdParams& params) override {
    cpu::PredictThresholds(context_, params);
  }
  void SelectBlocks(const SelectBlocksParams& params) override {
    cpu::SelectBlocks(context_, params);
  }
  void ListBlocks(const ListBlocksParams& params) override {
    reference::ListBlocks(batch_, params);
  }
  void SelectPrefillBlocks(const SelectPrefillParams& params) override {
    cpu::SelectPrefillBlocks(context_, params);
  }
  void DecodeAttention(const AttentionParams& params) override {
    cpu::DecodeAttention(context_, params);
  }
  void PrefillAttention(const AttentionParams& params) override {
    cpu::PrefillAttention(context_, params);
  }
  void CountRecall(const RecallParams& params) override { cpu::CountRecall(context_, params); }
  void MeasureShadow(const ShadowParams& params) override { cpu::MeasureShadow(context_, params); }
  void CollectCalibration(const CalibrationParams& params) override {
    cpu::CollectCalibration(context_, params);
  }
  void SwiGlu(const SwiGluParams& params) override { cpu::SwiGlu(context_, params); }
  ExpertOps& experts() override { return *this; }
  void RouteRows(const RouteRowsParams& params) override { cpu::RouteRows(context_, params); }
  void MultiplyExperts(const MultiplyExpertsParams& params) override {
    cpu::MultiplyExperts(context_, params);
  }
  void AddExperts(const AddExpertsParams& params) override { cpu::AddExperts(context_, params); }
  void Sample(const SampleParams& params) override { cpu::Sample(context_, params); }

  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  Workers workers_;
  BatchView batch_;
  Context context_;
};

}  // namespace

std::unique_ptr<Backend> MakeBackend(int num_threads, bool amx) {
  return std::make_unique<CpuBackend>(num_threads, amx);
}

}  // namespace eta::cpu
