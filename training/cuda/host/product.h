// Products of bfloat16 matrices by cuBLASLt, with float32 sums. The library's first choice for a
// shape is kept: the same shape gives the same bits.
#pragma once

#include <cublasLt.h>

#include <compare>
#include <cstdint>
#include <map>
#include <memory>
#include <string_view>

#include "absl/status/statusor.h"
#include "kernels/cuda/host/cublas_lt.h"
#include "training/cuda/host/workspace.h"
#include "training/tensor.h"

namespace eta::training::cuda {

// Not thread-safe.
class Products {
 public:
  // UNAVAILABLE if there is no cuBLASLt.
  static absl::StatusOr<std::unique_ptr<Products>> Open(Context& context);
  ~Products();
  Products(const Products&) = delete;
  Products& operator=(const Products&) = delete;

  // A factor: bfloat16, taken as it is or transposed.
  struct Factor {
    const Tensor& tensor;
    bool transposed = false;
  };
  // Products of the same shape. Each matrix lies so many elements after the one before.
  struct Batch {
    int32_t count = 1;
    int64_t a_step = 0;
    int64_t b_step = 0;
    int64_t out_step = 0;
    auto operator<=>(const Batch&) const = default;
  };
  // out = a b (+ out, if accumulate); out is bfloat16 or float32.
  void Multiply(const Factor& a, const Factor& b, const Tensor& out, bool accumulate) {
    Multiply(a, b, out, accumulate, Batch{});
  }
  // Likewise `batch.count` times; tensors are the first ones.
  void Multiply(const Factor& a, const Factor& b, const Tensor& out, bool accumulate,
                const Batch& batch);

 private:
  // cuBLAS stores columns first, so it sees a row-major matrix as its transpose: out^T = b^T a^T.
  struct Shape {
    int64_t rows;  // of out
    int64_t cols;
    int64_t inner;
    int64_t a_stride;
    int64_t b_stride;
    int64_t out_stride;
    bool a_transposed;
    bool b_transposed;
    DType out_dtype;
    bool accumulate;
    uint32_t a_alignment;
    uint32_t b_alignment;
    uint32_t out_alignment;
    Batch batch;
    auto operator<=>(const Shape&) const = default;
  };
  struct Plan;

  Products(Context& context, const eta::cuda::CublasLt& lt);
  void Check(cublasStatus_t status, std::string_view what);
  const Plan* Find(const Shape& shape);
  void Describe(const Shape& shape, Plan& plan);
  void Choose(const Shape& shape, Plan& plan);

  Context& context_;
  const eta::cuda::CublasLt& lt_;
  cublasLtHandle_t handle_ = nullptr;
  std::map<Shape, std::unique_ptr<Plan>> plans_;
};

}  // namespace eta::training::cuda
