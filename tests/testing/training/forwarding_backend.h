// A training backend that hands everything on to another: tests change an op or two.
#pragma once

#include <memory>
#include <string>

#include "training/backend.h"

namespace eta::training::testing {

class ForwardingBackend : public TrainingBackend {
 public:
  explicit ForwardingBackend(std::unique_ptr<TrainingBackend> inner) : inner_(std::move(inner)) {}

  TrainingBackend& inner() { return *inner_; }

  std::string_view name() const override { return inner_->name(); }
  std::string description() const override { return inner_->description(); }
  DType activation_dtype() const override { return inner_->activation_dtype(); }
  DType residual_dtype() const override { return inner_->residual_dtype(); }
  absl::StatusOr<std::unique_ptr<Buffer>> Allocate(size_t bytes) override {
    return inner_->Allocate(bytes);
  }
  void Upload(void* to, const void* from, size_t bytes) override {
    inner_->Upload(to, from, bytes);
  }
  void Download(void* to, const void* from, size_t bytes) override {
    inner_->Download(to, from, bytes);
  }
  void Zero(void* data, size_t bytes) override { inner_->Zero(data, bytes); }
  void Convert(const Tensor& from, const Tensor& to) override { inner_->Convert(from, to); }
  void Embed(const EmbedParams& p) override { inner_->Embed(p); }
  void EmbedBackward(const EmbedBackwardParams& p) override { inner_->EmbedBackward(p); }
  void RmsNorm(const RmsNormParams& p) override { inner_->RmsNorm(p); }
  void RmsNormBackward(const RmsNormBackwardParams& p) override { inner_->RmsNormBackward(p); }
  void MatMul(const MatMulParams& p) override { inner_->MatMul(p); }
  void MatMulInput(const MatMulInputParams& p) override { inner_->MatMulInput(p); }
  void MatMulWeight(const MatMulWeightParams& p) override { inner_->MatMulWeight(p); }
  void AddBias(const AddBiasParams& p) override { inner_->AddBias(p); }
  void BiasBackward(const BiasBackwardParams& p) override { inner_->BiasBackward(p); }
  void NormHeads(const NormHeadsParams& p) override { inner_->NormHeads(p); }
  void NormHeadsBackward(const NormHeadsBackwardParams& p) override {
    inner_->NormHeadsBackward(p);
  }
  void Rope(const RopeParams& p) override { inner_->Rope(p); }
  void PredictThresholds(const ThresholdParams& p) override { inner_->PredictThresholds(p); }
  void ThresholdsBackward(const ThresholdBackwardParams& p) override {
    inner_->ThresholdsBackward(p);
  }
  size_t AttentionSavedBytes(const AttentionShape& s, const AttentionGate& g) const override {
    return inner_->AttentionSavedBytes(s, g);
  }
  void Attention(const AttentionForwardParams& p) override { inner_->Attention(p); }
  void AttentionBackward(const AttentionBackwardParams& p) override {
    inner_->AttentionBackward(p);
  }
  void GatherWindows(const GatherWindowsParams& p) override { inner_->GatherWindows(p); }
  void GatherWindowsBackward(const GatherWindowsBackwardParams& p) override {
    inner_->GatherWindowsBackward(p);
  }
  void CompressedAttention(const CompressedAttentionParams& p) override {
    inner_->CompressedAttention(p);
  }
  void CompressedAttentionBackward(const CompressedAttentionBackwardParams& p) override {
    inner_->CompressedAttentionBackward(p);
  }
  void MixBranches(const MixBranchesParams& p) override { inner_->MixBranches(p); }
  void MixBranchesBackward(const MixBranchesBackwardParams& p) override {
    inner_->MixBranchesBackward(p);
  }
  void Add(const AddParams& p) override { inner_->Add(p); }
  void SwiGlu(const SwiGluParams& p) override { inner_->SwiGlu(p); }
  void SwiGluBackward(const SwiGluBackwardParams& p) override { inner_->SwiGluBackward(p); }
  void HeadLoss(const HeadLossParams& p) override { inner_->HeadLoss(p); }
  void WeighRowSums(const WeighRowSumsParams& p) override { inner_->WeighRowSums(p); }
  double SumSquares(const float* values, int64_t count) override {
    return inner_->SumSquares(values, count);
  }
  void AdamW(const AdamWParams& p) override { inner_->AdamW(p); }
  absl::Status Finish() override { return inner_->Finish(); }

 private:
  std::unique_ptr<TrainingBackend> inner_;
};

}  // namespace eta::training::testing
