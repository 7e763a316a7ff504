// MatMul computes out [rows, N] = x [rows, K] * weight [N, K]^T (+ out, if accumulate), by
// cuBLASLt. Start, end and latency of the library's kernels bind, not memory. Most products of few
// rows go another way: row_product.h.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string_view>
#include <tuple>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/host/cublas_lt.h"
#include "kernels/cuda/host/device.h"
#include "kernels/cuda/packed/packed_layout.h"
#include "kernels/tensor_view.h"

namespace eta::cuda {

// A weight [N, K] in device memory: row-major and contiguous, or packed. It does not own the
// memory.
struct Weight {
  const void* data = nullptr;
  DType dtype = DType::kBFloat16;  // of products; what packed weights are multiplied as
  int64_t rows = 0;                // N
  int64_t cols = 0;                // K
  WeightParts parts = {};          // of a packed one, else none; one after the other in `data`

  bool packed() const { return parts[0].type != PackedType::kNone; }
  int64_t bytes() const {
    return packed() ? PartsBytes(parts, cols) : rows * cols * static_cast<int64_t>(SizeOf(dtype));
  }

  bool operator==(const Weight&) const = default;
};

class DeviceMatrix final : public Matrix {
 public:
  DeviceMatrix(std::unique_ptr<Buffer> buffer, DType dtype, int64_t rows, int64_t cols,
               const WeightParts& parts = {})
      : Matrix(rows, cols), buffer_(std::move(buffer)), dtype_(dtype), parts_(parts) {}

  size_t bytes() const override { return buffer_->size(); }
  Weight weight() const { return {buffer_->data(), dtype_, rows(), cols(), parts_}; }

 private:
  std::unique_ptr<Buffer> buffer_;
  DType dtype_;
  WeightParts parts_;
};

// Multiplies with weights. Sums are float32. x and weight have one type; out is float32 or of that
// type.
//
// The library's kernel is chosen by measurement, once per shape and type, when the shape first
// occurs. So two runs of a program, or two numbers of rows, may differ in the order in which they
// add, and in the last bits.
class MatMuls {
 public:
  static absl::StatusOr<std::unique_ptr<MatMuls>> Open(Device& device, Scratch& scratch);
  ~MatMuls();
  MatMuls(const MatMuls&) = delete;
  MatMuls& operator=(const MatMuls&) = delete;

  // Puts the product on the device's stream. The first product of a shape must not be captured.
  // REQUIRES: the weight is not packed.
  void Run(const TensorView& x, const Weight& weight, const TensorView& out, bool accumulate);

 private:
  // All that the choice of a kernel depends on.
  struct Shape {
    int64_t rows, n, k, x_stride, out_stride;
    DType dtype, out_dtype;
    bool accumulate;
    uint32_t x_alignment, weight_alignment, out_alignment;  // bytes

    auto operator<=>(const Shape&) const = default;
  };
  // A shape's descriptors, and the kernel that was chosen.
  struct Product;

  MatMuls(Device& device, Scratch& scratch, const CublasLt& lt);

  const Product* Find(const Shape& shape, const void* x, const void* weight);
  void Describe(const Shape& shape, Product& product);
  void Choose(const Shape& shape, const void* x, const void* weight, Product& product);
  float Milliseconds(const Product& product, const cublasLtMatmulAlgo_t& algorithm, const void* x,
                     const void* weight, void* out);
  cublasStatus_t Multiply(const Product& product, const cublasLtMatmulAlgo_t& algorithm,
                          const void* x, const void* weight, void* out);
  void Check(cublasStatus_t status, std::string_view what);

  Device& device_;
  Scratch& scratch_;
  const CublasLt& lt_;
  cublasLtHandle_t handle_ = nullptr;
  cudaEvent_t begin_ = nullptr;
  cudaEvent_t end_ = nullptr;
  std::map<Shape, std::unique_ptr<Product>> products_;
};

}  // namespace eta::cuda
