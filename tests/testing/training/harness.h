// Puts tensors into a training backend's memory and reads them back, so that one case runs on any
// backend.
#pragma once

#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "training/backend.h"

namespace eta::training::testing {

// A result of an op: what it is called, and its elements.
struct Result {
  std::string name;
  std::vector<double> values;
};
using Results = std::vector<Result>;

// |a - b| at its largest, over |b| at its largest; infinity if either is not finite or sizes
// differ. `floor` stands in for a smaller |b|.
double RelativeError(std::span<const double> a, std::span<const double> b, double floor = 1e-3);

class Harness {
 public:
  // Inputs of activations are rounded to `rounding` first, so that a backend of that type and the
  // judge see the same numbers; float64: not at all.
  explicit Harness(TrainingBackend& backend, DType rounding = DType::kFloat64)
      : backend_(backend), rounding_(rounding) {}

  TrainingBackend& backend() { return backend_; }

  Tensor Activations(std::span<const double> values, int64_t rows, int64_t cols);
  Tensor Residual(std::span<const double> values, int64_t rows, int64_t cols);
  Tensor Activations(int64_t rows, int64_t cols);  // all NaN, so that what is not written shows
  float* Floats(std::span<const double> values);
  float* Floats(int64_t count);  // all NaN
  uint64_t* Words(std::span<const uint64_t> values);

  std::vector<double> Read(const Tensor& tensor);
  std::vector<double> Read(const float* values, int64_t count);
  std::vector<uint64_t> Read(const uint64_t* values, int64_t count);

 private:
  Tensor Make(std::span<const double> values, int64_t rows, int64_t cols, DType dtype,
              DType rounding);
  std::byte* Allocate(size_t bytes);

  TrainingBackend& backend_;
  DType rounding_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Numbers of a case: a function of its seed alone.
class Numbers {
 public:
  explicit Numbers(uint64_t seed) : engine_(seed) {}

  // In [low, high].
  int32_t Integer(int32_t low, int32_t high) {
    return std::uniform_int_distribution<int32_t>(low, high)(engine_);
  }
  double Uniform(double low, double high) {
    return std::uniform_real_distribution<double>(low, high)(engine_);
  }
  // Normal, each rounded to float32.
  std::vector<double> Normal(int64_t count, double deviation = 1.0, double mean = 0.0);

 private:
  std::mt19937_64 engine_;
};

}  // namespace eta::training::testing
