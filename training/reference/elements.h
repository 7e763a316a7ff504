// Elements of a tensor as double, whatever it keeps them as.
#pragma once

#include "training/tensor.h"

namespace eta::training::reference {

inline double Get(const Tensor& tensor, int64_t row, int64_t col) {
  const void* at = tensor.row(row);
  if (tensor.dtype == DType::kFloat64) return static_cast<const double*>(at)[col];
  return LoadElement(tensor.dtype, at, col);
}

inline void Set(const Tensor& tensor, int64_t row, int64_t col, double value) {
  void* at = tensor.row(row);
  if (tensor.dtype == DType::kFloat64) {
    static_cast<double*>(at)[col] = value;
  } else {
    StoreElement(tensor.dtype, at, col, static_cast<float>(value));
  }
}

inline void AddTo(const Tensor& tensor, int64_t row, int64_t col, double value) {
  Set(tensor, row, col, Get(tensor, row, col) + value);
}

// Of gradients of parameters; a null one is frozen.
inline void AddTo(float* gradient, int64_t i, double value) {
  if (gradient != nullptr) gradient[i] = static_cast<float>(gradient[i] + value);
}

}  // namespace eta::training::reference
