// The ops of training on CUDA apart from attention, by the names that TrainingBackend has for them.
// Each has its definition in training/params.h. Kernels are launched on the device's stream; errors
// go to the device.
#pragma once

#include <cstdint>

#include "training/cuda/host/product.h"
#include "training/cuda/host/staging.h"
#include "training/cuda/host/workspace.h"
#include "training/params.h"

namespace eta::training::cuda {

void Convert(Context& context, const Tensor& from, const Tensor& to);
void AddBias(Context& context, const AddBiasParams& params);
void Add(Context& context, const AddParams& params);
void BiasBackward(Context& context, const BiasBackwardParams& params);
void SwiGlu(Context& context, const SwiGluParams& params);
void SwiGluBackward(Context& context, const SwiGluBackwardParams& params);
void Rope(Context& context, const RopeParams& params);

void Embed(Context& context, Staging& staging, const EmbedParams& params);
void EmbedBackward(Context& context, Staging& staging, const EmbedBackwardParams& params);

void RmsNorm(Context& context, const RmsNormParams& params);
void RmsNormBackward(Context& context, const RmsNormBackwardParams& params);
void NormHeads(Context& context, const NormHeadsParams& params);
void NormHeadsBackward(Context& context, const NormHeadsBackwardParams& params);

void PredictThresholds(Context& context, Products& products, const ThresholdParams& params);
void ThresholdsBackward(Context& context, Products& products,
                        const ThresholdBackwardParams& params);

void HeadLoss(Context& context, Products& products, Staging& staging, const HeadLossParams& params);

void WeighRowSums(Context& context, const WeighRowSumsParams& params);
// Waits; NaN after an error.
double SumSquares(Context& context, const float* values, int64_t count);
void AdamW(Context& context, const AdamWParams& params);

}  // namespace eta::training::cuda
