// Tensors in kernels: elements of bfloat16 or float32, read and written four at a time where rows
// allow it.
#pragma once

#include <cuda_bf16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "training/cuda/host/workspace.h"
#include "training/tensor.h"

namespace eta::training::cuda {

inline constexpr int kThreads = 256;

template <typename T>
struct Rows {
  T* data;
  int64_t stride;

  __device__ __forceinline__ T* At(int64_t row, int64_t col) const {
    return data + row * stride + col;
  }
  template <int count>
  __device__ __forceinline__ void Load(int64_t row, int64_t col, float (&to)[count]) const {
    eta::cuda::LoadElements<T, count>(At(row, col), to);
  }
  template <int count>
  __device__ __forceinline__ void Store(const float (&from)[count], int64_t row,
                                        int64_t col) const {
    eta::cuda::StoreElements<T, count>(from, At(row, col));
  }
};

template <typename T>
Rows<T> RowsOf(const Tensor& tensor) {
  return {tensor.as<T>(), tensor.stride};
}

// Whether all rows begin on multiples of four elements.
inline bool InFours(const Tensor& tensor) {
  const auto bytes = static_cast<uintptr_t>(4 * SizeOf(tensor.dtype));
  return tensor.data == nullptr || (tensor.cols % 4 == 0 && tensor.stride % 4 == 0 &&
                                    reinterpret_cast<uintptr_t>(tensor.data) % bytes == 0);
}

// Calls visit(T{}) with the element type of `dtype`: float or bfloat16.
template <typename Visit>
void WithType(DType dtype, Visit&& visit) {
  if (dtype == DType::kFloat32) {
    visit(float{});
  } else {
    visit(__nv_bfloat16{});
  }
}

// Calls visit with the constant 4 or 1: elements that a thread takes at once.
template <typename Visit>
void WithWidth(bool fours, Visit&& visit) {
  if (fours) {
    visit(std::integral_constant<int, 4>{});
  } else {
    visit(std::integral_constant<int, 1>{});
  }
}

inline unsigned BlocksOf(int64_t items, int64_t per_block = kThreads) {
  return static_cast<unsigned>((items + per_block - 1) / per_block);
}

__device__ __forceinline__ int64_t ThreadIndex() {
  return int64_t{blockIdx.x} * blockDim.x + threadIdx.x;
}

__device__ __forceinline__ float SumOfWarp(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  return value;
}

// Every kernel begins with it (kernels/cuda/device/launch.cuh).
__device__ __forceinline__ void Begin() {
  eta::cuda::WaitForPrevious();
  eta::cuda::AllowNext();
}

// Calls visit(row, col) for the first of every kWidth neighbours of a [rows, cols] tensor.
template <int kWidth, typename Visit>
__global__ void __launch_bounds__(kThreads) ForElements(int64_t rows, int64_t cols, Visit visit) {
  Begin();
  const int64_t pieces = cols / kWidth;
  const int64_t index = ThreadIndex();
  if (index >= rows * pieces) return;
  visit(index / pieces, index % pieces * kWidth);
}

template <int kWidth, typename Visit>
void LaunchElements(Context& context, const char* what, int64_t rows, int64_t cols,
                    const Visit& visit) {
  eta::cuda::Launch(context.device, what,
                    {.grid = BlocksOf(rows * (cols / kWidth)), .block = kThreads},
                    ForElements<kWidth, Visit>, rows, cols, visit);
}

__device__ __forceinline__ float Sigmoid(float x) {
  return 1.0f / (1.0f + __expf(-x));
}

}  // namespace eta::training::cuda
