// A matrix of a training step in a backend's memory.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace eta::training {

// rows x cols elements of `dtype`, with rows `stride` elements apart. It owns nothing. Which dtypes
// an op takes stands in params.h.
struct Tensor {
  void* data = nullptr;
  DType dtype = DType::kFloat32;
  int64_t rows = 0;
  int64_t cols = 0;
  int64_t stride = 0;

  bool empty() const { return data == nullptr; }
  void* row(int64_t i) const { return At(i * stride); }
  template <typename T>
  T* as() const {
    return static_cast<T*>(data);
  }
  // Columns [begin, begin + count) of every row.
  Tensor Columns(int64_t begin, int64_t count) const {
    return {At(begin), dtype, rows, count, stride};
  }
  Tensor Rows(int64_t begin, int64_t count) const {
    return {row(begin), dtype, count, cols, stride};
  }

 private:
  void* At(int64_t element) const {
    if (empty()) return nullptr;  // a part of none is none
    return static_cast<std::byte*>(data) + element * static_cast<int64_t>(SizeOf(dtype));
  }
};

}  // namespace eta::training
