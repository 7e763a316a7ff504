// Packed weights as numbers: for products of many rows, and of a table of embeddings.
#pragma once

#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/matmul.h"
#include "kernels/tensor_view.h"

namespace eta::cuda {

// Device memory that MultiplyUnpacked takes for such a weight, in bytes.
size_t UnpackedBytes(const Weight& weight);

// out = x * weight^T (+ out, if accumulate) with a packed weight: as many of its channels at a time
// as the scratch memory takes are unpacked, rounded to the type of products, and multiplied by the
// library. The first product of a shape must not be captured.
void MultiplyUnpacked(Context& context, MatMuls& products, const TensorView& x,
                      const Weight& weight, const TensorView& out, bool accumulate);

// Puts the numbers of a packed weight, rounded to the type of products, row-major at `to`.
void UnpackWeight(Device& device, const Weight& weight, std::byte* to);

// As Embed, of a packed table.
void EmbedPacked(Context& context, const Weight& table, float scale, const TensorView& out);

}  // namespace eta::cuda
