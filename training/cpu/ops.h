// The CPU's ops, by the names that TrainingBackend has for them. All elements are float32. Work is
// cut into tasks that do not depend on the number of threads, so neither does a result.
#pragma once

#include <algorithm>
#include <cstdint>

#include "training/cpu/context.h"
#include "training/params.h"

namespace eta::training::cpu {

void Convert(const Context& context, const Tensor& from, const Tensor& to);
void Embed(const Context& context, const EmbedParams& params);
void EmbedBackward(const Context& context, const EmbedBackwardParams& params);
void RmsNorm(const Context& context, const RmsNormParams& params);
void RmsNormBackward(const Context& context, const RmsNormBackwardParams& params);
void MatMul(const Context& context, const MatMulParams& params);
void MatMulInput(const Context& context, const MatMulInputParams& params);
void MatMulWeight(const Context& context, const MatMulWeightParams& params);
void AddBias(const Context& context, const AddBiasParams& params);
void BiasBackward(const Context& context, const BiasBackwardParams& params);
void NormHeads(const Context& context, const NormHeadsParams& params);
void NormHeadsBackward(const Context& context, const NormHeadsBackwardParams& params);
void Rope(const Context& context, const RopeParams& params);
void PredictThresholds(const Context& context, const ThresholdParams& params);
void ThresholdsBackward(const Context& context, const ThresholdBackwardParams& params);
void Attention(const Context& context, const AttentionForwardParams& params);
void AttentionBackward(const Context& context, const AttentionBackwardParams& params);
void GatherWindows(const Context& context, const GatherWindowsParams& params);
void GatherWindowsBackward(const Context& context, const GatherWindowsBackwardParams& params);
void CompressedAttention(const Context& context, const CompressedAttentionParams& params);
void CompressedAttentionBackward(const Context& context,
                                 const CompressedAttentionBackwardParams& params);
void MixBranches(const Context& context, const MixBranchesParams& params);
void MixBranchesBackward(const Context& context, const MixBranchesBackwardParams& params);
void Add(const Context& context, const AddParams& params);
void SwiGlu(const Context& context, const SwiGluParams& params);
void SwiGluBackward(const Context& context, const SwiGluBackwardParams& params);
void HeadLoss(const Context& context, const HeadLossParams& params);
void WeighRowSums(const Context& context, const WeighRowSumsParams& params);
double SumSquares(const Context& context, const float* values, int64_t count);
void AdamW(const Context& context, const AdamWParams& params);

inline float* Row(const Tensor& tensor, int64_t row) {
  return static_cast<float*>(tensor.row(row));
}

// Calls work(begin, end, thread) for ranges of `step` indices of [0, count).
template <class Work>
void ForRanges(const Context& context, int64_t count, int64_t step, const Work& work) {
  context.workers.Run((count + step - 1) / step, [&](int64_t task, int thread) {
    work(task * step, std::min(count, (task + 1) * step), thread);
  });
}

}  // namespace eta::training::cpu
