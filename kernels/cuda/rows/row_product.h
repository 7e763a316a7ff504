// A product with a weight for a step of few rows, and the ops around it that its kernel does along:
// out [R, N] = x [R, K] * weight [N, K]^T, before it RmsNorm, after it AddBias or SwiGlu.
//
// A row's bits do not depend on the other one: the order of a sum follows from K, and the columns
// of a tensor core's product do not meet.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/matmul.h"
#include "kernels/tensor_view.h"

namespace eta::cuda {

// cuBLASLt multiplies more of them in less time, though nothing rides along.
inline constexpr int64_t kMostProductRows = 2;

// Every tensor that the separate ops would write is written, so an op behind them may read it.
struct RowProduct {
  // RmsNorm in front; `weight` null: none.
  struct Norm {
    TensorView x;                   // [rows, K], float32
    const float* weight = nullptr;  // [K]
    float eps = 0.0f;
    const int32_t* rows = nullptr;  // device, [R]: the rows of x to take; null: all, in order
  };

  TensorView x;  // [R, K]; with a norm its result
  Weight weight;
  TensorView out;  // [R, N]; float32 or the weight's type
  bool accumulate = false;
  Norm norm;
  const float* bias = nullptr;                // [N], added to out; null: none
  TensorView activated;                       // [R, N / 2]: SwiGlu of out; without data: none
  Activation activation = Activation::kSilu;  // of SwiGlu
  // Weights of the products that come next behind other work. The kernel asks for their beginnings,
  // so that they come from memory while the other work runs.
  std::array<Weight, 2> ahead;
};

// Puts the kernel on the device's stream. Returns false, and does nothing, if there is no kernel
// for these shapes and types: more than kMostProductRows rows, weights that are not of 16 bits, x
// of another type than they, out of neither this type nor float32, a K that is no multiple of 8,
// rows that are not aligned to 16 bytes, or rows of a norm that do not fit into shared memory. Of
// packed weights packed_product.h says which it has.
bool RunRowProduct(Context& context, const RowProduct& product);  // row_product.cu

}  // namespace eta::cuda
