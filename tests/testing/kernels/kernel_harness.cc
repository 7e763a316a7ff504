#include "tests/testing/kernels/kernel_harness.h"

#include <algorithm>
#include <cctype>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "kernels/backends/make_backend.h"
#include "kernels/cpu/targets.h"

namespace eta::testing {

std::string TestName(const BackendUnderTest& backend) {
  std::string name = backend.name;
  if (backend.target != 0) name.append("_").append(cpu::TargetName(backend.target));
  if (backend.amx) name.append("_AMX");
  if (backend.no_vnni) name.append("_without_VNNI");
  if (backend.name == "cuda") name.append("_").append(Name(backend.compute));
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
    if (name == "cpu") {
      for (const int64_t target : cpu::AttainableTargets()) backends.push_back({name, target});
      backends.push_back({.name = name, .amx = true});
    }
    if (name == "cuda") {
      for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
        backends.push_back({.name = name, .compute = compute});
      }
    }
  }
  return backends;
}

std::vector<BackendUnderTest> AllBackends() {
  std::vector<BackendUnderTest> backends = JudgedBackends();
  backends.push_back({"reference"});
  return backends;
}

std::vector<BackendUnderTest> NarrowBackends() {
  std::vector<BackendUnderTest> backends = JudgedBackends();
  std::erase_if(backends, [](const BackendUnderTest& backend) { return backend.name == "cpu"; });
  return backends;
}

namespace {

absl::StatusOr<std::unique_ptr<Backend>> Make(const BackendUnderTest& backend, int num_threads) {
  return MakeBackend({.name = backend.name,
                      .num_threads = num_threads,
                      .amx = backend.amx,
                      .compute = backend.compute});
}

}  // namespace

std::string WhyMissing(const BackendUnderTest& backend) {
  if (backend.amx) {
    cpu::ForceTarget(backend.target);
    const std::string why = cpu::WhyNoAmx();
    return why.empty() ? "" : "no AMX: " + why;
  }
  if (backend.name != "cuda") return "";
  static const absl::Status& status = *new absl::Status(Make(backend, 0).status());
  return absl::IsUnavailable(status) ? std::string(status.message()) : "";
}

bool RowsAreExact(const BackendUnderTest& backend) {
  return backend.name != "cuda";
}

double RoundingError(DType dtype) {
  if (dtype == DType::kFloat32) return 0.0;
  return dtype == DType::kBFloat16 ? 0x1p-8 : 0x1p-11;
}

int64_t Uniform(Random& random, int64_t low, int64_t high) {
  return std::uniform_int_distribution<int64_t>(low, high)(random);
}

double UniformReal(Random& random, double low, double high) {
  return std::uniform_real_distribution<double>(low, high)(random);
}

HostTensor Normal(Random& random, int64_t rows, int64_t cols, float deviation) {
  HostTensor tensor(rows, cols);
  std::normal_distribution<float> normal;
  for (float& x : tensor.data) x = normal(random) * deviation;  // 0 is none of the distribution's
  return tensor;
}

HostTensor Rounded(const HostTensor& tensor, DType dtype) {
  HostTensor rounded = tensor;
  for (float& x : rounded.data) x = RoundTo(dtype, x);
  return rounded;
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
  if (backend.name == "cpu") {
    cpu::ForceTarget(backend.target);
    cpu::ForbidVnni(backend.no_vnni);
  }
  absl::StatusOr<std::unique_ptr<Backend>> made = Make(backend, num_threads);
  if (made.ok()) {
    backend_ = *std::move(made);
  } else if (!absl::IsUnavailable(made.status())) {
    std::fprintf(stderr, "%s\n", made.status().ToString().c_str());
    std::abort();
  }
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

// Rows of a tensor on a GPU begin at multiples of 16 bytes.
TensorView Device::Empty(int64_t rows, int64_t cols, int64_t padding, DType dtype) {
  const auto size = static_cast<int64_t>(SizeOf(dtype));
  const int64_t unit = backend_->name() == "cuda" ? 16 / size : 1;
  const int64_t stride = (cols + padding + unit - 1) / unit * unit;
  std::byte* data = Allocate(static_cast<size_t>(rows * stride * size));
  return {reinterpret_cast<float*>(data), rows, cols, stride, dtype};
}

TensorView Device::Put(const HostTensor& tensor, int64_t padding, DType dtype) {
  const TensorView view = Empty(tensor.rows, tensor.cols, padding, dtype);
  const size_t size = SizeOf(dtype);
  const auto stride = static_cast<size_t>(view.stride) * size;
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.rows) * stride, std::byte{0xFF});
  for (int64_t r = 0; r < tensor.rows; ++r) {
    std::byte* row = bytes.data() + static_cast<size_t>(r) * stride;
    if (dtype == DType::kFloat32) {
      std::memcpy(row, tensor.row(r), static_cast<size_t>(tensor.cols) * size);
      continue;
    }
    for (int64_t i = 0; i < tensor.cols; ++i) StoreElement(dtype, row, i, tensor.row(r)[i]);
  }
  backend_->Upload(reinterpret_cast<std::byte*>(view.data), bytes.data(), bytes.size());
  return view;
}

HostTensor Device::Get(const TensorView& view) {
  HostTensor tensor(view.rows, view.cols);
  if (view.rows == 0) return tensor;
  const size_t size = SizeOf(view.dtype);
  const auto stride = static_cast<size_t>(view.stride) * size;
  // The last row has no padding behind it.
  const size_t last = static_cast<size_t>(view.cols) * size;
  std::vector<std::byte> bytes(static_cast<size_t>(view.rows - 1) * stride + last);
  backend_->Download(bytes.data(), reinterpret_cast<const std::byte*>(view.data), bytes.size());
  for (int64_t r = 0; r < view.rows; ++r) {
    const std::byte* row = bytes.data() + static_cast<size_t>(r) * stride;
    for (int64_t i = 0; i < view.cols; ++i) tensor.row(r)[i] = LoadElement(view.dtype, row, i);
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
