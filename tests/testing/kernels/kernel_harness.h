// Backends as the kernel tests meet them: by name and, for the CPU, by instruction set, for CUDA by
// the type of its products; with host tensors that go in and come out.
#pragma once

#include <cstdint>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"

namespace eta::testing {

struct BackendUnderTest {
  std::string name;
  int64_t target = 0;               // of kernels/cpu/targets.h; 0: the automatic choice
  DType compute = DType::kFloat32;  // cuda
};

// "cpu_AVX2", "cuda_bfloat16", "reference": a valid GoogleTest parameter name.
std::string TestName(const BackendUnderTest& backend);
std::ostream& operator<<(std::ostream& out, const BackendUnderTest& backend);

// Every backend that the reference judges, and the same with the reference itself.
std::vector<BackendUnderTest> JudgedBackends();
std::vector<BackendUnderTest> AllBackends();

// Those of the judged that have a float8_e4m3 cache and an int8 index.
std::vector<BackendUnderTest> NarrowBackends();

// Why the backend cannot run here (its device is missing), or empty: the reason to skip a test.
std::string WhyMissing(const BackendUnderTest& backend);

// Whether a row's result is the same to the last bit whatever rows are beside it. On CUDA, work is
// shared out and products are chosen by the size of the step.
bool RowsAreExact(const BackendUnderTest& backend);

// What rounding to `dtype` may add to a relative error.
double RoundingError(DType dtype);

// Row-major float32.
struct HostTensor {
  HostTensor() = default;
  HostTensor(int64_t num_rows, int64_t num_cols)
      : rows(num_rows), cols(num_cols), data(static_cast<size_t>(num_rows * num_cols)) {}

  float* row(int64_t i) { return data.data() + i * cols; }
  const float* row(int64_t i) const { return data.data() + i * cols; }

  int64_t rows = 0;
  int64_t cols = 0;
  std::vector<float> data;
};

using Random = std::mt19937_64;
// In [low, high].
int64_t Uniform(Random& random, int64_t low, int64_t high);
double UniformReal(Random& random, double low, double high);
HostTensor Normal(Random& random, int64_t rows, int64_t cols, float deviation = 1.0f);
HostTensor Rounded(const HostTensor& tensor, DType dtype);

// ||a - b|| / ||b|| over n elements; ||a|| where b is zero.
double RelativeError(const float* a, const float* b, int64_t n);
double Norm(const float* a, int64_t n);

// A backend and the memory that a test keeps in it. Making a device for "cpu" forces its target,
// until the next one is made. One whose backend is missing (WhyMissing) must not be used.
class Device {
 public:
  explicit Device(const BackendUnderTest& backend, int num_threads = 2);

  Backend* operator->() { return backend_.get(); }
  DType activation_dtype() const { return backend_->activation_dtype(); }

  // Memory filled with all-ones bytes (NaN in every float format), or with the given elements.
  std::byte* Allocate(size_t bytes);
  template <typename T>
  T* Put(const std::vector<T>& elements) {
    const size_t bytes = elements.size() * sizeof(T);
    std::byte* data = Allocate(bytes);
    backend_->Upload(data, elements.data(), bytes);
    return reinterpret_cast<T*>(data);
  }
  template <typename T>
  std::vector<T> Get(const T* data, size_t count) {
    std::vector<T> elements(count);
    backend_->Download(elements.data(), reinterpret_cast<const std::byte*>(data),
                       count * sizeof(T));
    return elements;
  }

  // Rows at least `padding` elements further apart than they are wide, in float32 or as `dtype`.
  TensorView Put(const HostTensor& tensor, int64_t padding = 0, DType dtype = DType::kFloat32);
  TensorView Empty(int64_t rows, int64_t cols, int64_t padding = 0, DType dtype = DType::kFloat32);
  HostTensor Get(const TensorView& view);

  // Frees the memory.
  void Clear() { buffers_.clear(); }

 private:
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// `values` as a checkpoint of `dtype` holds them, in `storage`.
HostMatrix ToHostMatrix(const HostTensor& values, DType dtype, std::vector<std::byte>& storage);

}  // namespace eta::testing
