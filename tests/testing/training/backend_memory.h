// What a test keeps in the memory of a training backend: host floats go in, doubles come out.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "training/backend.h"

namespace eta::testing {

class BackendMemory {
 public:
  explicit BackendMemory(training::TrainingBackend& backend) : backend_(backend) {}

  std::byte* Allocate(size_t bytes);
  training::Tensor Matrix(DType dtype, int64_t rows, int64_t cols);

  // [rows, cols], rounded to the backend's type of activations or of residuals.
  training::Tensor Activations(const std::vector<float>& values, int64_t rows, int64_t cols);
  training::Tensor Residual(const std::vector<float>& values, int64_t rows, int64_t cols);
  float* Floats(const std::vector<float>& values);
  // Filled with `value`.
  float* Floats(int64_t count, float value);

  void Write(const training::Tensor& to, const std::vector<float>& values);
  // Row-major, without what lies between rows.
  std::vector<double> Read(const training::Tensor& from);
  std::vector<double> Read(const float* from, int64_t count);

 private:
  training::TrainingBackend& backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// ||a - b|| / max(||b||, least); infinite if they differ in size or one is not finite.
double Difference(const std::vector<double>& a, const std::vector<double>& b, double least);

}  // namespace eta::testing
