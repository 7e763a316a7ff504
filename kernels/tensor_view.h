// A matrix of activations in a backend's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace eta {

// Activations of a step: rows x cols, with rows `stride` elements apart. Elements are float32, with
// one exception: the inputs of MatMul have Backend::activation_dtype(). These are the outputs of
// RmsNorm, attention and SwiGlu, and the input of SwiGlu. `data` then points to elements of that
// type.
struct TensorView {
  float* data = nullptr;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;
  DType dtype = DType::kFloat32;

  float* row(int64_t i) const { return At(i * stride); }
  // Columns [begin, begin + count) of every row.
  TensorView Columns(int64_t begin, int64_t count) const {
    return {At(begin), rows, count, stride, dtype};
  }
  TensorView Rows(int64_t begin, int64_t count) const {
    return {row(begin), count, cols, stride, dtype};
  }

  bool operator==(const TensorView&) const = default;

 private:
  float* At(int64_t element) const {
    const int64_t bytes = dtype == DType::kFloat32 ? 4 : 2;
    return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(data) + element * bytes);
  }
};

}  // namespace eta
