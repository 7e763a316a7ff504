// The reference's ops, by the names that TrainingBackend has for them. Inputs are as it checked
// them.
#pragma once

#include "training/params.h"

namespace eta::training::reference {

void Convert(const Tensor& from, const Tensor& to);

void Embed(const EmbedParams& params);
void EmbedBackward(const EmbedBackwardParams& params);
void RmsNorm(const RmsNormParams& params);
void RmsNormBackward(const RmsNormBackwardParams& params);
void MatMul(const MatMulParams& params);
void MatMulInput(const MatMulInputParams& params);
void MatMulWeight(const MatMulWeightParams& params);
void AddBias(const AddBiasParams& params);
void BiasBackward(const BiasBackwardParams& params);
void NormHeads(const NormHeadsParams& params);
void NormHeadsBackward(const NormHeadsBackwardParams& params);
void Rope(const RopeParams& params);
void PredictThresholds(const ThresholdParams& params);
void ThresholdsBackward(const ThresholdBackwardParams& params);
void Attention(const AttentionForwardParams& params);
void AttentionBackward(const AttentionBackwardParams& params);
void GatherWindows(const GatherWindowsParams& params);
void GatherWindowsBackward(const GatherWindowsBackwardParams& params);
void CompressedAttention(const CompressedAttentionParams& params);
void CompressedAttentionBackward(const CompressedAttentionBackwardParams& params);
void MixBranches(const MixBranchesParams& params);
void MixBranchesBackward(const MixBranchesBackwardParams& params);
void Add(const AddParams& params);
void SwiGlu(const SwiGluParams& params);
void SwiGluBackward(const SwiGluBackwardParams& params);
void HeadLoss(const HeadLossParams& params);
void WeighRowSums(const WeighRowSumsParams& params);
double SumSquares(const float* values, int64_t count);
// `rounded` has elements of `dtype`.
void AdamW(const AdamWParams& params, DType dtype);

}  // namespace eta::training::reference
