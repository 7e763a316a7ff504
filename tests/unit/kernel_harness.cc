#include "tests/unit/kernel_harness.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>

#include "kernels/cpu/targets.h"

namespace eta::testing {

std::string TestName(const BackendUnderTest& backend) {
  std::string name = backend.name;
  if (backend.target != 0) name.append("_").append(cpu::TargetName(backend.target));
  std::replace_if(
      name.begin(), name.end(), [](unsigned char c) { return std::isalnum(c) == 0; }, '_');
  return name;
}

std::ostream& operator<<(std::ostream& out, const BackendUnderTest& backend) {
  return out << TestName(backend);
}

std::vector<BackendUnderTest> JudgedBackends() {
  std::vector<BackendUnderTest> backends;
  for (const std::string& name : BackendNames()) {
    if (name == "reference") continue;
    if (name != "cpu") {
      backends.push_back({name});
      continue;
    }
    for (const int64_t target : cpu::AttainableTargets()) backends.push_back({name, target});
  }
  return backends;
}

std::vector<BackendUnderTest> AllBackends() {
  std::vector<BackendUnderTest> backends = JudgedBackends();
  backends.push_back({"reference"});
  return backends;
}

int64_t Uniform(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

double UniformReal(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

HostTensor Normal(Random& random, int64_t rows, int64_t cols, float deviation) {
  HostTensor tensor(rows, cols);
  std::normal_distribution<float> normal(0.0f, deviation);
  for (float& x : tensor.data) x = normal(random);
  return tensor;
}

double Norm(const float* a, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(a[i]) * a[i];
  return std::sqrt(sum);
}

double RelativeError(const float* a, const float* b, int64_t n) {
  double sum = 0.0;
  for (int64_t i = 0; i < n; ++i) {
    const double difference = static_cast<double>(a[i]) - b[i];
    sum += difference * difference;
  }
  const double norm = Norm(b, n);
  return norm > 0.0 ? std::sqrt(sum) / norm : std::sqrt(sum);
}

Device::Device(const BackendUnderTest& backend, int num_threads) {
  if (backend.name == "cpu") cpu::ForceTarget(backend.target);
  absl::StatusOr<std::unique_ptr<Backend>> made =
      MakeBackend({.name = backend.name, .num_threads = num_threads});
  if (!made.ok()) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    std::abort();
  }
  backend_ = *std::move(made);
}

std::byte* Device::Allocate(size_t bytes) {
  absl::StatusOr<std::unique_ptr<Buffer>> buffer = backend_->Allocate(std::max<size_t>(bytes, 1));
  if (!buffer.ok()) {
    std::fprintf(stderr, "%s\n", buffer.status().ToString().c_str());
    std::abort();
  }
  const std::vector<std::byte> ones(bytes, std::byte{0xFF});
  backend_->Upload((*buffer)->data(), ones.data(), bytes);
  buffers_.push_back(*std::move(buffer));
  return buffers_.back()->data();
}

TensorView Device::Empty(int64_t rows, int64_t cols, int64_t padding) {
  const int64_t stride = cols + padding;
  std::byte* data = Allocate(static_cast<size_t>(rows * stride) * sizeof(float));
  return {reinterpret_cast<float*>(data), rows, cols, stride};
}

TensorView Device::Put(const HostTensor& tensor, int64_t padding) {
  const TensorView view = Empty(tensor.rows, tensor.cols, padding);
  for (int64_t r = 0; r < tensor.rows; ++r) {
    backend_->Upload(reinterpret_cast<std::byte*>(view.row(r)), tensor.row(r),
                     static_cast<size_t>(tensor.cols) * sizeof(float));
  }
  return view;
}

HostTensor Device::Get(const TensorView& view) {
  HostTensor tensor(view.rows, view.cols);
  for (int64_t r = 0; r < view.rows; ++r) {
    backend_->Download(tensor.row(r), reinterpret_cast<const std::byte*>(view.row(r)),
                       static_cast<size_t>(view.cols) * sizeof(float));
  }
  return tensor;
}

HostMatrix ToHostMatrix(const HostTensor& values, DType dtype, std::vector<std::byte>& storage) {
  storage.resize(values.data.size() * SizeOf(dtype));
  for (size_t i = 0; i < values.data.size(); ++i) {
    StoreElement(dtype, storage.data(), static_cast<int64_t>(i), values.data[i]);
  }
  return {storage.data(), dtype, values.rows, values.cols};
}

}  // namespace eta::testing
