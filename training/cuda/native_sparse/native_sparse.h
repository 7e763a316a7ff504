// The ops of Native Sparse Attention on CUDA, by the names that TrainingBackend has for them. Each
// has its definition in training/native_sparse_params.h. Kernels are launched on the device's
// stream; errors go to the device.
#pragma once

#include "training/cuda/host/product.h"
#include "training/cuda/host/workspace.h"
#include "training/native_sparse_params.h"

namespace eta::training::cuda {

void GatherWindows(Context& context, const GatherWindowsParams& params);
void GatherWindowsBackward(Context& context, const GatherWindowsBackwardParams& params);

// Sequences of up to 32768 tokens.
void CompressedAttention(Context& context, Products& products,
                         const CompressedAttentionParams& params);
void CompressedAttentionBackward(Context& context, Products& products,
                                 const CompressedAttentionBackwardParams& params);

void MixBranches(Context& context, const MixBranchesParams& params);
void MixBranchesBackward(Context& context, const MixBranchesBackwardParams& params);

}  // namespace eta::training::cuda
