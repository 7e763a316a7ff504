// A backend that does what another one does and keeps the time of its attention.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <utility>

#include "kernels/backend.h"

namespace eta::bench {

class TimedBackend final : public Backend {
 public:
  explicit TimedBackend(std::unique_ptr<Backend> backend) : backend_(std::move(backend)) {}

  // Seconds since the last call, in SelectBlocks and in DecodeAttention.
  double TakeSelectSeconds() { return std::exchange(select_seconds_, 0.0); }
  double TakeAttendSeconds() { return std::exchange(attend_seconds_, 0.0); }

  std::string_view name() const override { return backend_->name(); }
  std::string description() const override { return backend_->description(); }
  DType activation_dtype() const override { return backend_->activation_dtype(); }
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
  void Plan(const BatchView& batch) override { backend_->Plan(batch); }
  void Embed(const EmbedParams& params) override { backend_->Embed(params); }
  void RmsNorm(const RmsNormParams& params) override { backend_->RmsNorm(params); }
  void MatMul(const MatMulParams& params) override { backend_->MatMul(params); }
  void Rope(const RopeParams& params) override { backend_->Rope(params); }
  void AppendKv(const AppendKvParams& params) override { backend_->AppendKv(params); }
  void PredictThresholds(const ThresholdParams& params) override {
    backend_->PredictThresholds(params);
  }
  void SelectBlocks(const SelectBlocksParams& params) override {
    const auto begin = std::chrono::steady_clock::now();
    backend_->SelectBlocks(params);
    select_seconds_ += Since(begin);
  }
  void DecodeAttention(const AttentionParams& params) override {
    const auto begin = std::chrono::steady_clock::now();
    backend_->DecodeAttention(params);
    attend_seconds_ += Since(begin);
  }
  void PrefillAttention(const AttentionParams& params) override {
    backend_->PrefillAttention(params);
  }
  void CountRecall(const RecallParams& params) override { backend_->CountRecall(params); }
  void SwiGlu(const SwiGluParams& params) override { backend_->SwiGlu(params); }
  void Sample(const SampleParams& params) override { backend_->Sample(params); }
  absl::Status Finish() override { return backend_->Finish(); }

 private:
  static double Since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

  std::unique_ptr<Backend> backend_;
  double select_seconds_ = 0.0;
  double attend_seconds_ = 0.0;
};

}  // namespace eta::bench
