#include "tests/testing/training/backend_memory.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace eta::testing {

using training::Tensor;

namespace {

// Bytes from the first element of a tensor to its last one.
size_t BytesOf(const Tensor& tensor) {
  if (tensor.rows == 0) return 0;
  return static_cast<size_t>((tensor.rows - 1) * tensor.stride + tensor.cols) *
         SizeOf(tensor.dtype);
}

}  // namespace

std::byte* BackendMemory::Allocate(size_t bytes) {
  buffers_.push_back(*backend_.Allocate(std::max<size_t>(bytes, 1)));
  return buffers_.back()->data();
}

Tensor BackendMemory::Matrix(DType dtype, int64_t rows, int64_t cols) {
  const auto bytes = static_cast<size_t>(rows * cols) * SizeOf(dtype);
  return {.data = Allocate(bytes), .dtype = dtype, .rows = rows, .cols = cols, .stride = cols};
}

Tensor BackendMemory::Activations(const std::vector<float>& values, int64_t rows, int64_t cols) {
  const Tensor tensor = Matrix(backend_.activation_dtype(), rows, cols);
  Write(tensor, values);
  return tensor;
}

Tensor BackendMemory::Residual(const std::vector<float>& values, int64_t rows, int64_t cols) {
  const Tensor tensor = Matrix(backend_.residual_dtype(), rows, cols);
  Write(tensor, values);
  return tensor;
}

float* BackendMemory::Floats(const std::vector<float>& values) {
  std::byte* to = Allocate(values.size() * sizeof(float));
  backend_.Upload(to, values.data(), values.size() * sizeof(float));
  return reinterpret_cast<float*>(to);
}

float* BackendMemory::Floats(int64_t count, float value) {
  return Floats(std::vector<float>(static_cast<size_t>(count), value));
}

void BackendMemory::Write(const Tensor& to, const std::vector<float>& values) {
  std::vector<std::byte> host(BytesOf(to));
  backend_.Download(host.data(), to.data, host.size());
  for (int64_t i = 0; i < to.rows * to.cols; ++i) {
    const int64_t at = i / to.cols * to.stride + i % to.cols;
    const float value = values[static_cast<size_t>(i)];
    if (to.dtype == DType::kFloat64) {
      reinterpret_cast<double*>(host.data())[at] = value;
    } else {
      StoreElement(to.dtype, host.data(), at, value);
    }
  }
  backend_.Upload(to.data, host.data(), host.size());
}

std::vector<double> BackendMemory::Read(const Tensor& from) {
  std::vector<std::byte> host(BytesOf(from));
  backend_.Download(host.data(), from.data, host.size());
  std::vector<double> values;
  for (int64_t i = 0; i < from.rows * from.cols; ++i) {
    const int64_t at = i / from.cols * from.stride + i % from.cols;
    values.push_back(from.dtype == DType::kFloat64
                         ? reinterpret_cast<const double*>(host.data())[at]
                         : LoadElement(from.dtype, host.data(), at));
  }
  return values;
}

std::vector<double> BackendMemory::Read(const float* from, int64_t count) {
  std::vector<float> values(static_cast<size_t>(count));
  backend_.Download(values.data(), from, values.size() * sizeof(float));
  return {values.begin(), values.end()};
}

double Difference(const std::vector<double>& a, const std::vector<double>& b, double least) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double squares = 0.0;
  double norm = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    squares += (a[i] - b[i]) * (a[i] - b[i]);
    norm += b[i] * b[i];
  }
  const double difference = std::sqrt(squares) / std::max({std::sqrt(norm), least, 1e-30});
  return std::isfinite(difference) ? difference : std::numeric_limits<double>::infinity();
}

}  // namespace eta::testing
