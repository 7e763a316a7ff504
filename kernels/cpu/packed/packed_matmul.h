// Products of packed weights.
#pragma once

#include <span>

#include "kernels/cpu/context.h"
#include "kernels/cpu/packed/block_rows.h"
#include "kernels/tensor_view.h"

namespace eta::cpu {

// Some output channels of a product: those of `weight` from `first` on.
struct PackedPart {
  const BlockRows* weight;
  int64_t first;
};

// Writes the parts' columns of out = x * weight^T (+ out, if accumulate). x [rows, K] is rounded to
// 8 bits once for all parts.
void PackedMatMul(const Context& context, const TensorView& x, std::span<const PackedPart> parts,
                  const TensorView& out, bool accumulate);

}  // namespace eta::cpu
