// Decode attention of steps in which sequences have several rows.
#pragma once

#include "kernels/cuda/host/ops.h"

namespace eta::cuda {

// As DecodeAttention, but rows of a bundle read each block once. Returns false, and does nothing,
// if no rows are bundled, too few columns of a product are free for a second row, or rows select.
// REQUIRES: AttendsOnTensorCores().
bool BundledDecodeAttention(Context& context, const AttentionParams& params,
                            const DeviceCounts& counts,
                            const DecodeLists& lists);  // decode_bundles.cu

}  // namespace eta::cuda
