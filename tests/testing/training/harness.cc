#include "tests/testing/training/harness.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <stdexcept>
#include <utility>

namespace eta::training::testing {
namespace {

void Store(DType dtype, std::byte* to, int64_t i, double value) {
  if (dtype == DType::kFloat64) {
    reinterpret_cast<double*>(to)[i] = value;
  } else {
    StoreElement(dtype, to, i, static_cast<float>(value));
  }
}

double Load(DType dtype, const std::byte* from, int64_t i) {
  return dtype == DType::kFloat64 ? reinterpret_cast<const double*>(from)[i]
                                  : LoadElement(dtype, from, i);
}

}  // namespace

double RelativeError(std::span<const double> a, std::span<const double> b, double floor) {
  if (a.size() != b.size()) return std::numeric_limits<double>::infinity();
  double difference = 0.0;
  double scale = floor;
  for (size_t i = 0; i < a.size(); ++i) {
    if (!std::isfinite(a[i]) || !std::isfinite(b[i])) {
      return std::numeric_limits<double>::infinity();
    }
    difference = std::max(difference, std::abs(a[i] - b[i]));
    scale = std::max(scale, std::abs(b[i]));
  }
  return difference / scale;
}

std::byte* Harness::Allocate(size_t bytes) {
  auto buffer = backend_.Allocate(std::max<size_t>(bytes, 1));
  if (!buffer.ok()) throw std::runtime_error(std::string(buffer.status().message()));
  buffers_.push_back(*std::move(buffer));
  return buffers_.back()->data();
}

Tensor Harness::Make(std::span<const double> values, int64_t rows, int64_t cols, DType dtype,
                     DType rounding) {
  const auto count = static_cast<int64_t>(values.size());
  if (count != rows * cols) throw std::runtime_error("a tensor of another size");
  std::vector<std::byte> bytes(values.size() * SizeOf(dtype));
  for (int64_t i = 0; i < count; ++i) {
    double value = values[static_cast<size_t>(i)];
    if (rounding != DType::kFloat64) value = RoundTo(rounding, static_cast<float>(value));
    Store(dtype, bytes.data(), i, value);
  }
  std::byte* data = Allocate(bytes.size());
  backend_.Upload(data, bytes.data(), bytes.size());
  return {data, dtype, rows, cols, cols};
}

Tensor Harness::Activations(std::span<const double> values, int64_t rows, int64_t cols) {
  return Make(values, rows, cols, backend_.activation_dtype(), rounding_);
}

Tensor Harness::Residual(std::span<const double> values, int64_t rows, int64_t cols) {
  return Make(values, rows, cols, backend_.residual_dtype(), DType::kFloat32);
}

Tensor Harness::Activations(int64_t rows, int64_t cols) {
  return Make(std::vector<double>(static_cast<size_t>(rows * cols),
                                  std::numeric_limits<double>::quiet_NaN()),
              rows, cols, backend_.activation_dtype(), DType::kFloat64);
}

float* Harness::Floats(std::span<const double> values) {
  return Make(values, 1, static_cast<int64_t>(values.size()), DType::kFloat32, DType::kFloat64)
      .as<float>();
}

float* Harness::Floats(int64_t count) {
  return Floats(
      std::vector<double>(static_cast<size_t>(count), std::numeric_limits<double>::quiet_NaN()));
}

uint64_t* Harness::Words(std::span<const uint64_t> values) {
  std::byte* data = Allocate(values.size_bytes());
  backend_.Upload(data, values.data(), values.size_bytes());
  return reinterpret_cast<uint64_t*>(data);
}

std::vector<double> Harness::Read(const Tensor& tensor) {
  std::vector<double> values;
  std::vector<std::byte> bytes(static_cast<size_t>(tensor.cols) * SizeOf(tensor.dtype));
  for (int64_t r = 0; r < tensor.rows; ++r) {
    backend_.Download(bytes.data(), tensor.row(r), bytes.size());
    for (int64_t i = 0; i < tensor.cols; ++i) {
      values.push_back(Load(tensor.dtype, bytes.data(), i));
    }
  }
  return values;
}

std::vector<double> Harness::Read(const float* values, int64_t count) {
  return Read({const_cast<float*>(values), DType::kFloat32, 1, count, count});
}

std::vector<uint64_t> Harness::Read(const uint64_t* values, int64_t count) {
  std::vector<uint64_t> read(static_cast<size_t>(count));
  backend_.Download(read.data(), values, read.size() * sizeof(uint64_t));
  return read;
}

std::vector<double> Numbers::Normal(int64_t count, double deviation, double mean) {
  std::normal_distribution<double> normal(mean, deviation);
  std::vector<double> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(static_cast<double>(static_cast<float>(normal(engine_))));
  }
  return values;
}

}  // namespace eta::training::testing
