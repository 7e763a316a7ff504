// The backends in the kernel tests: by name; the CPU also by instruction set and with AMX, CUDA by
// the type of its products. Host tensors go in and come out.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <memory>
#include <ostream>
#include <random>
#include <string>
#include <vector>

#include "kernels/backend.h"
#include "kernels/tensor_view.h"

namespace eta::testing {

struct BackendUnderTest {
  std::string name;
  int64_t target = 0;               // of kernels/cpu/targets.h; 0: the automatic choice
  DType compute = DType::kFloat32;  // cuda
  bool amx = false;                 // cpu: prefill rows on AMX tiles
  bool no_vnni = false;             // cpu: products of bytes without VNNI
};

// A valid GoogleTest parameter name: "cpu_AVX2", "cuda_bfloat16", "reference".
std::string TestName(const BackendUnderTest& backend);
std::ostream& operator<<(std::ostream& out, const BackendUnderTest& backend);

// Every backend that the reference judges; and these with the reference itself.
std::vector<BackendUnderTest> JudgedBackends();
std::vector<BackendUnderTest> AllBackends();

// The judged backends that have a float8_e4m3 cache and an int8 index.
std::vector<BackendUnderTest> NarrowBackends();

// The reason why the backend cannot run here (its device is missing), for skipping a test; else
// empty.
std::string WhyMissing(const BackendUnderTest& backend);

// True if a row's result is the same to the last bit whatever the other rows are. On CUDA the size
// of the step decides how work is shared and which products are chosen.
bool RowsAreExact(const BackendUnderTest& backend);

// The relative error that rounding to `dtype` may add.
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

template <typename T>
T Pick(Random& random, std::initializer_list<T> choices) {
  return *(choices.begin() + Uniform(random, 0, static_cast<int64_t>(choices.size()) - 1));
}

// In one case out of `out_of`.
inline bool Often(Random& random, int out_of) {
  return Uniform(random, 1, out_of) == 1;
}
double UniformReal(Random& random, double low, double high);
HostTensor Normal(Random& random, int64_t rows, int64_t cols, float deviation = 1.0f);
HostTensor Rounded(const HostTensor& tensor, DType dtype);

// ||a - b|| / ||b|| over n elements; ||a|| where b is zero.
double RelativeError(const float* a, const float* b, int64_t n);
double Norm(const float* a, int64_t n);

// A backend and the memory that a test keeps in it. A device for "cpu" forces its instruction set
// until the next device is made. REQUIRES: the backend is not missing (WhyMissing).
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

  // Uploads a tensor in float32 or as `dtype`. The stride of its rows exceeds their width by at
  // least `padding` elements.
  TensorView Put(const HostTensor& tensor, int64_t padding = 0, DType dtype = DType::kFloat32);
  TensorView Empty(int64_t rows, int64_t cols, int64_t padding = 0, DType dtype = DType::kFloat32);
  HostTensor Get(const TensorView& view);

  // Frees the memory.
  void Clear() { buffers_.clear(); }

 private:
  std::unique_ptr<Backend> backend_;
  std::vector<std::unique_ptr<Buffer>> buffers_;
};

// Converts `values` to `dtype` in `storage`, as a checkpoint holds them.
HostMatrix ToHostMatrix(const HostTensor& values, DType dtype, std::vector<std::byte>& storage);

}  // namespace eta::testing
