#include "training/reference/reference_backend.h"

#include <cstring>

#include "training/host_buffer.h"
#include "training/reference/ops.h"

namespace eta::training::reference {
namespace {

class ReferenceBackend final : public TrainingBackend {
 public:
  explicit ReferenceBackend(DType activations) : activations_(activations) {}

  std::string_view name() const override { return "reference"; }
  std::string description() const override { return "plain loops in double precision, 1 thread"; }
  DType activation_dtype() const override { return activations_; }
  DType residual_dtype() const override { return activations_; }

  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    return AllocateHostBuffer(bytes);
  }
  void Upload(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Download(void* to, const void* from, size_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, bytes);
  }
  void Zero(void* data, size_t bytes) override {
    if (bytes > 0) std::memset(data, 0, bytes);
  }

  // An op has no memory of the device to run out of, but that of the host.
  void Convert(const Tensor& from, const Tensor& to) override { reference::Convert(from, to); }
  void Embed(const EmbedParams& p) override { reference::Embed(p); }
  void EmbedBackward(const EmbedBackwardParams& p) override { reference::EmbedBackward(p); }
  void RmsNorm(const RmsNormParams& p) override { reference::RmsNorm(p); }
  void RmsNormBackward(const RmsNormBackwardParams& p) override { reference::RmsNormBackward(p); }
  void MatMul(const MatMulParams& p) override { reference::MatMul(p); }
  void MatMulInput(const MatMulInputParams& p) override { reference::MatMulInput(p); }
  void MatMulWeight(const MatMulWeightParams& p) override { reference::MatMulWeight(p); }
  void AddBias(const AddBiasParams& p) override { reference::AddBias(p); }
  void BiasBackward(const BiasBackwardParams& p) override { reference::BiasBackward(p); }
  void NormHeads(const NormHeadsParams& p) override { reference::NormHeads(p); }
  void NormHeadsBackward(const NormHeadsBackwardParams& p) override {
    reference::NormHeadsBackward(p);
  }
  void Rope(const RopeParams& p) override { reference::Rope(p); }
  void PredictThresholds(const ThresholdParams& p) override { reference::PredictThresholds(p); }
  void ThresholdsBackward(const ThresholdBackwardParams& p) override {
    reference::ThresholdsBackward(p);
  }
  void Attention(const AttentionForwardParams& p) override { reference::Attention(p); }
  void AttentionBackward(const AttentionBackwardParams& p) override {
    reference::AttentionBackward(p);
  }
  void GatherWindows(const GatherWindowsParams& p) override { reference::GatherWindows(p); }
  void GatherWindowsBackward(const GatherWindowsBackwardParams& p) override {
    reference::GatherWindowsBackward(p);
  }
  void CompressedAttention(const CompressedAttentionParams& p) override {
    reference::CompressedAttention(p);
  }
  void CompressedAttentionBackward(const CompressedAttentionBackwardParams& p) override {
    reference::CompressedAttentionBackward(p);
  }
  void MixBranches(const MixBranchesParams& p) override { reference::MixBranches(p); }
  void MixBranchesBackward(const MixBranchesBackwardParams& p) override {
    reference::MixBranchesBackward(p);
  }
  void Add(const AddParams& p) override { reference::Add(p); }
  void SwiGlu(const SwiGluParams& p) override { reference::SwiGlu(p); }
  void SwiGluBackward(const SwiGluBackwardParams& p) override { reference::SwiGluBackward(p); }
  void HeadLoss(const HeadLossParams& p) override { reference::HeadLoss(p); }
  void WeighRowSums(const WeighRowSumsParams& p) override { reference::WeighRowSums(p); }
  double SumSquares(const float* values, int64_t count) override {
    return reference::SumSquares(values, count);
  }
  void AdamW(const AdamWParams& p) override { reference::AdamW(p, activations_); }

  absl::Status Finish() override { return absl::OkStatus(); }

 private:
  DType activations_;
};

}  // namespace

std::unique_ptr<TrainingBackend> MakeBackend(DType activations) {
  return std::make_unique<ReferenceBackend>(activations);
}

}  // namespace eta::training::reference
