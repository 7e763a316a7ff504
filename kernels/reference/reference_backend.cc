#include "kernels/reference/reference_backend.h"

#include <cstring>
#include <new>
#include <string>

#include "kernels/checks.h"
#include "kernels/reference/ops.h"

namespace eta::reference {

void ForEachRow(const BatchView& batch, const std::function<void(const Row&)>& visit) {
  for (const SequenceRows& sequence : batch.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      visit({sequence, sequence.row_begin + i, sequence.position + i});
    }
  }
}

void ForEachRow(const BatchView& batch, RowKind kind,
                const std::function<void(const Row&)>& visit) {
  ForEachRow(batch, [&](const Row& row) {
    if (row.sequence.kind == kind) visit(row);
  });
}

namespace {

constexpr std::align_val_t kAlignment{64};

class HostBuffer final : public Buffer {
 public:
  HostBuffer(std::byte* data, size_t size) : Buffer(data, size) {}
  ~HostBuffer() override { ::operator delete(data(), kAlignment); }
};

class ReferenceBackend final : public Backend, public ExpertOps {
 public:
  std::string_view name() const override { return "reference"; }
  bool exact_rows() const override { return true; }
  std::string description() const override { return "plain loops in double precision, 1 thread"; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    void* memory = ::operator new(bytes, kAlignment, std::nothrow);
    if (memory == nullptr) return absl::ResourceExhaustedError("memory: the host has none left");
    return std::make_unique<HostBuffer>(static_cast<std::byte*>(memory), bytes);
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
    return PackMatrix(parts, format);
  }

  absl::StatusOr<KvLayout> Layout(const KvGeometry& geometry) const override {
    if (geometry.num_kv_heads < 1) {
      return absl::InvalidArgumentError("num_kv_heads: must be at least 1");
    }
    if (geometry.head_dim < 2 || geometry.head_dim % 2 != 0) {
      return absl::InvalidArgumentError("head_dim: must be even and at least 2");
    }
    if (geometry.block_size < 1) {
      return absl::InvalidArgumentError("block_size: must be at least 1");
    }
    if (geometry.sub_block < 0 ||
        (geometry.sub_block > 0 && geometry.block_size % geometry.sub_block != 0)) {
      return absl::InvalidArgumentError("sub_block: must be 0 or divide block_size");
    }
    const bool unrounded =
        geometry.index == IndexKind::kOutlier && geometry.index_dtype == DType::kFloat32;
    KvGeometry stored = geometry;
    if (unrounded) stored.index_dtype = DType::kInt8;
    const absl::Status types = CheckCacheTypes(stored);
    if (!types.ok()) return types;
    return KvPages::Layout(geometry);
  }

  BlockRecord ReadRecord(const KvGeometry& geometry, const KvLayerView& kv, int32_t block,
                         int32_t kv_head) const override {
    const Record record = KvPages(geometry, kv).RecordOf(block, kv_head);
    const RecordView view = record.View(geometry);
    return {.mu = {view.mu.begin(), view.mu.end()},
            .sigma = {view.sigma.begin(), view.sigma.end()},
            .max_norm = view.max_norm,
            .v_total = {record.v_total, record.v_total + geometry.head_dim},
            .mu_error = view.mu_error,
            .outlier = {view.outlier.begin(), view.outlier.end()},
            .step = view.step,
            .outlier_step = view.outlier_step};
  }

  void Plan(const BatchView& batch) override { batch_ = batch; }

  void Embed(const EmbedParams& params) override { reference::Embed(batch_, params); }
  void RmsNorm(const RmsNormParams& params) override { reference::RmsNorm(params); }
  void MatMul(const MatMulParams& params) override { reference::MatMul(params); }
  void AddBias(const AddBiasParams& params) override { reference::AddBias(params); }
  void NormHeads(const NormHeadsParams& params) override { reference::NormHeads(params); }
  void Rope(const RopeParams& params) override { reference::Rope(batch_, params); }
  void AppendKv(const AppendKvParams& params) override { reference::AppendKv(batch_, params); }
  void PredictThresholds(const ThresholdParams& params) override {
    reference::PredictThresholds(batch_, params);
  }
  void SelectBlocks(const SelectBlocksParams& params) override {
    reference::SelectBlocks(batch_, params);
  }
  void ListBlocks(const ListBlocksParams& params) override {
    reference::ListBlocks(batch_, params);
  }
  void SelectPrefillBlocks(const SelectPrefillParams& params) override {
    reference::SelectPrefillBlocks(batch_, params);
  }
  void DecodeAttention(const AttentionParams& params) override {
    reference::DecodeAttention(batch_, params);
  }
  void PrefillAttention(const AttentionParams& params) override {
    reference::PrefillAttention(batch_, params);
  }
  void CountRecall(const RecallParams& params) override { reference::CountRecall(batch_, params); }
  void MeasureShadow(const ShadowParams& params) override {
    reference::MeasureShadow(batch_, params);
  }
  void CollectCalibration(const CalibrationParams& params) override {
    reference::CollectCalibration(batch_, params);
  }
  void SwiGlu(const SwiGluParams& params) override { reference::SwiGlu(params); }
  ExpertOps& experts() override { return *this; }
  void RouteRows(const RouteRowsParams& params) override { reference::RouteRows(batch_, params); }
  void MultiplyExperts(const MultiplyExpertsParams& params) override {
    reference::MultiplyExperts(params);
  }
  void AddExperts(const AddExpertsParams& params) override {
    reference::AddExperts(batch_, params);
  }
  void Sample(const SampleParams& params) override { reference::Sample(params); }

  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  BatchView batch_;
};

}  // namespace

std::unique_ptr<Backend> MakeBackend() {
  return std::make_unique<ReferenceBackend>();
}

}  // namespace eta::reference
