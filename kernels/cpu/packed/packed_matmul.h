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

// out = x * weight^T, beside others. REQUIRES: a row and a part.
struct PackedProduct {
  TensorView x;         // [rows of x, K]
  const int32_t* rows;  // of x, one for each row of out; null: as they stand
  std::span<const PackedPart> parts;
  TensorView out;

  const float* row(int64_t i) const { return x.row(rows == nullptr ? i : rows[i]); }
};

// Writes the parts' columns of all products, their tasks shared by the threads; added to what
// stands there where it accumulates. Rows are rounded to 8 bits once for all parts.
void PackedMatMul(const Context& context, std::span<const PackedProduct> products, bool accumulate);

}  // namespace eta::cpu
