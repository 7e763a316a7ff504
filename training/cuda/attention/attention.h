// Gated attention on CUDA: training/attention_params.h is its definition. bfloat16 tensors, float32
// sums, head dimensions 64 and 128, on devices of compute capability 9.0.
#pragma once

#include <cstddef>

#include "training/attention_params.h"
#include "training/cuda/host/workspace.h"

namespace eta::training::cuda {

// Of every query, head and block of keys which key has the largest gate: one byte.
size_t AttentionSavedBytes(const AttentionShape& shape, const AttentionGate& gate);
void Attention(Context& context, const AttentionForwardParams& params);
void AttentionBackward(Context& context, const AttentionBackwardParams& params);

}  // namespace eta::training::cuda
