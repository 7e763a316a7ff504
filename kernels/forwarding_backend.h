// A backend that forwards to another one: the base of backends that watch or disturb it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "kernels/backend.h"

namespace eta {

class ForwardingBackend : public Backend {
 public:
  // Several forwarding backends may share one backend that only one of them uses at a time.
  explicit ForwardingBackend(std::shared_ptr<Backend> backend) : backend_(std::move(backend)) {}

  std::string_view name() const override { return backend_->name(); }
  std::string description() const override { return backend_->description(); }
  DType activation_dtype() const override { return backend_->activation_dtype(); }
  absl::StatusOr<size_t> FreeMemory() const override { return backend_->FreeMemory(); }
  size_t LateMemory(const KvGeometry& geometry, int64_t num_query_heads, int64_t context,
                    int64_t rows, int64_t decode_rows) const override {
    return backend_->LateMemory(geometry, num_query_heads, context, rows, decode_rows);
  }
  int64_t PaddedRows(int64_t rows) const override { return backend_->PaddedRows(rows); }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    return backend_->Allocate(bytes);
  }
  void Upload(std::byte* to, const void* from, size_t bytes) override {
    backend_->Upload(to, from, bytes);
  }
  void Download(void* to, const std::byte* from, size_t bytes) override {
    backend_->Download(to, from, bytes);
  }
  absl::StatusOr<std::unique_ptr<Matrix>> Pack(std::span<const HostMatrix> parts,
                                               WeightFormat format) override {
    return backend_->Pack(parts, format);
  }
  absl::StatusOr<KvLayout> Layout(const KvGeometry& geometry) const override {
    return backend_->Layout(geometry);
  }
  BlockRecord ReadRecord(const KvGeometry& geometry, const KvLayerView& kv, int32_t block,
                         int32_t kv_head) const override {
    return backend_->ReadRecord(geometry, kv, block, kv_head);
  }
  bool defers() const override { return backend_->defers(); }
  bool exact_rows() const override { return backend_->exact_rows(); }
  void Plan(const BatchView& batch) override { backend_->Plan(batch); }
  void Embed(const EmbedParams& params) override { backend_->Embed(params); }
  void RmsNorm(const RmsNormParams& params) override { backend_->RmsNorm(params); }
  void MatMul(const MatMulParams& params) override { backend_->MatMul(params); }
  void AddBias(const AddBiasParams& params) override { backend_->AddBias(params); }
  void NormHeads(const NormHeadsParams& params) override { backend_->NormHeads(params); }
  void Rope(const RopeParams& params) override { backend_->Rope(params); }
  void AppendKv(const AppendKvParams& params) override { backend_->AppendKv(params); }
  void PredictThresholds(const ThresholdParams& params) override {
    backend_->PredictThresholds(params);
  }
  void SelectBlocks(const SelectBlocksParams& params) override { backend_->SelectBlocks(params); }
  void ListBlocks(const ListBlocksParams& params) override { backend_->ListBlocks(params); }
  void SelectPrefillBlocks(const SelectPrefillParams& params) override {
    backend_->SelectPrefillBlocks(params);
  }
  void DecodeAttention(const AttentionParams& params) override {
    backend_->DecodeAttention(params);
  }
  void PrefillAttention(const AttentionParams& params) override {
    backend_->PrefillAttention(params);
  }
  void CountRecall(const RecallParams& params) override { backend_->CountRecall(params); }
  void MeasureShadow(const ShadowParams& params) override { backend_->MeasureShadow(params); }
  void CollectCalibration(const CalibrationParams& params) override {
    backend_->CollectCalibration(params);
  }
  void SwiGlu(const SwiGluParams& params) override { backend_->SwiGlu(params); }
  void Sample(const SampleParams& params) override { backend_->Sample(params); }
  void SetTokens(std::span<const int32_t> tokens) override { backend_->SetTokens(tokens); }
  void Launch() override { backend_->Launch(); }
  void Discard() override { backend_->Discard(); }
  absl::Status Finish() override { return backend_->Finish(); }
  std::optional<double> last_step_seconds() const override { return backend_->last_step_seconds(); }
  ExpertOps& experts() override { return backend_->experts(); }

 private:
  std::shared_ptr<Backend> backend_;
};

}  // namespace eta
