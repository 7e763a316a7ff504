// lint: untrusted-input
#include "engine/checkpoint/quantized/quantized_tensors.h"

#include <algorithm>
#include <span>
#include <string_view>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/checked.h"
#include "engine/base/files/input_file.h"
#include "engine/base/status_macros.h"
#include "engine/checkpoint/quantized/integer_blocks.h"
#include "kernels/backend.h"
#include "kernels/weights/float8_scales.h"
#include "kernels/weights/host_rows.h"
#include "kernels/weights/integer_groups.h"

namespace eta {
namespace {

using Form = Quantization::Form;
using Scope = Quantization::Scope;

constexpr std::string_view kWeight = ".weight";
constexpr std::string_view kPackedWeight = ".weight_packed";
// Of activations and of the KV cache.
constexpr std::string_view kUnused[] = {".input_scale", ".output_scale", ".q_scale", ".k_scale",
                                        ".v_scale"};
constexpr int64_t kWordBits = 32;

absl::Status Unfit(const std::string& name, const std::string& sentence) {
  return absl::InvalidArgumentError(absl::StrCat("tensor ", Quoted(name), " ", sentence));
}

int64_t CeilDiv(int64_t a, int64_t b) {
  return a / b + (a % b != 0 ? 1 : 0);
}

DType StoredType(Form form) {
  switch (form) {
    case Form::kFloat8:
      return DType::kFloat8E4M3;
    case Form::kInt8:
      return DType::kInt8;
    default:
      return DType::kInt32;
  }
}

}  // namespace

absl::StatusOr<QuantizedTensors> QuantizedTensors::Present(
    const Quantization& quantization, std::map<std::string, TensorInfo>& tensors) {
  QuantizedTensors out(quantization);
  const bool packed = quantization.form == Form::kPacked;
  const std::string_view suffix = packed ? kPackedWeight : kWeight;
  for (const auto& [name, info] : tensors) {
    if (!name.ends_with(suffix) || info.dtype != StoredType(quantization.form)) continue;
    const std::string base = name.substr(0, name.size() - suffix.size());
    if (packed && tensors.contains(base + std::string(kWeight))) {
      return Unfit(base + std::string(kWeight), "is there twice, as numbers and packed");
    }
    RETURN_IF_ERROR(out.Add(base, name, tensors));
  }
  for (const auto& [name, tensor] : out.tensors_) {
    for (const std::string* used : {&tensor.numbers, &tensor.scales, &tensor.zero_points}) {
      tensors.erase(*used);
    }
    if (packed) tensors.erase(name + "_shape");
    TensorInfo info;
    info.shape = {tensor.rows, tensor.cols};
    info.end = *CheckedBytes(info.shape, SizeOf(info.dtype));  // fits: Add()
    tensors[name] = info;
  }
  std::erase_if(tensors, [](const auto& entry) {
    return std::ranges::any_of(
        kUnused, [&](std::string_view unused) { return entry.first.ends_with(unused); });
  });
  return out;
}

absl::Status QuantizedTensors::Add(const std::string& base, const std::string& numbers,
                                   const std::map<std::string, TensorInfo>& tensors) {
  const TensorInfo& info = tensors.at(numbers);
  if (info.shape.size() != 2 || info.shape[0] < 1 || info.shape[1] < 1) {
    return Unfit(numbers, "must have two dimensions");
  }
  Tensor tensor = {.rows = info.shape[0], .cols = info.shape[1], .numbers = numbers};
  if (quantization_.form == Form::kPacked) {
    const auto cols = CheckedMul(static_cast<uint64_t>(info.shape[1]),
                                 static_cast<uint64_t>(kWordBits / quantization_.bits));
    if (!cols || *cols > INT32_MAX) return Unfit(numbers, "has too many columns");
    tensor.cols = static_cast<int64_t>(*cols);
  }
  const int64_t whole = quantization_.scope == Scope::kGroup  ? quantization_.block_cols
                        : quantization_.form == Form::kFloat8 ? 1
                                                              : kGroupNumbers;
  if (tensor.cols % whole != 0) {
    return Unfit(numbers, absl::StrCat("has rows of ", tensor.cols,
                                       " numbers, which are not whole groups of ", whole));
  }
  const int64_t shape[] = {tensor.rows, tensor.cols};
  if (!CheckedBytes(shape, sizeof(float))) {
    return Unfit(numbers, "has a shape whose size overflows 64 bits");
  }
  tensor.scales = absl::StrCat(base, ".", quantization_.scale);
  const auto scales = tensors.find(tensor.scales);
  if (scales == tensors.end()) {
    return Unfit(numbers, absl::StrCat("has no scales ", Quoted(tensor.scales)));
  }
  tensor.scale_dtype = scales->second.dtype;
  RETURN_IF_ERROR(CheckScales(tensor, scales->second));
  if (!quantization_.symmetric) {
    tensor.zero_points = base + ".weight_zero_point";
    const auto zero_points = tensors.find(tensor.zero_points);
    if (zero_points == tensors.end()) {
      return Unfit(numbers, absl::StrCat("has no ", Quoted(tensor.zero_points)));
    }
    RETURN_IF_ERROR(CheckZeroPoints(tensor, zero_points->second));
  }
  tensors_.emplace(base + std::string(kWeight), std::move(tensor));
  return absl::OkStatus();
}

std::pair<int64_t, int64_t> QuantizedTensors::ScalesOf(const Tensor& tensor) const {
  switch (quantization_.scope) {
    case Scope::kTensor:
      return {1, 1};
    case Scope::kChannel:
      return {tensor.rows, 1};
    default:
      return {CeilDiv(tensor.rows, quantization_.block_rows),
              CeilDiv(tensor.cols, quantization_.block_cols)};
  }
}

absl::Status QuantizedTensors::CheckScales(const Tensor& tensor, const TensorInfo& scales) const {
  if (scales.dtype != DType::kFloat32 && scales.dtype != DType::kFloat16 &&
      scales.dtype != DType::kBFloat16) {
    return Unfit(tensor.scales, "must be float32, float16 or bfloat16");
  }
  const auto [rows, cols] = ScalesOf(tensor);
  const std::vector<int64_t>& shape = scales.shape;
  const bool fits = shape == std::vector<int64_t>{rows, cols} ||
                    (cols == 1 && shape == std::vector<int64_t>{rows}) ||
                    (rows == 1 && cols == 1 && shape.empty());
  if (fits) return absl::OkStatus();
  return Unfit(tensor.scales, absl::StrCat("must have the shape [", rows, ", ", cols,
                                           "], of weights [", tensor.rows, ", ", tensor.cols, "]"));
}

absl::Status QuantizedTensors::CheckZeroPoints(const Tensor& tensor,
                                               const TensorInfo& zero_points) const {
  const auto [rows, cols] = ScalesOf(tensor);
  const std::vector<int64_t> shape = {CeilDiv(rows, kWordBits / quantization_.bits), cols};
  if (zero_points.dtype == DType::kInt32 && zero_points.shape == shape) return absl::OkStatus();
  return Unfit(tensor.zero_points,
               absl::StrCat("must be int32 of the shape [", shape[0], ", ", shape[1], "]"));
}

absl::StatusOr<StoredTensor> QuantizedTensors::ReadStored(const std::string& name,
                                                          const Read& read) const {
  const Tensor& tensor = tensors_.at(name);
  ASSIGN_OR_RETURN(auto numbers, read(tensor.numbers));
  ASSIGN_OR_RETURN(const auto scale_bytes, read(tensor.scales));
  std::vector<float> scales(scale_bytes.size() / SizeOf(tensor.scale_dtype));
  for (size_t i = 0; i < scales.size(); ++i) {
    scales[i] = LoadElement(tensor.scale_dtype, scale_bytes.data(), static_cast<int64_t>(i));
  }
  StoredTensor out;
  if (quantization_.form == Form::kFloat8) {
    const bool of_tensor = quantization_.scope == Scope::kTensor;
    const bool whole_rows = of_tensor || quantization_.scope == Scope::kChannel;
    out.bytes = std::move(numbers);
    out.float8 = StoredScales{.scales = std::move(scales),
                              .block_rows = of_tensor ? tensor.rows : quantization_.block_rows,
                              .block_cols = whole_rows ? tensor.cols : quantization_.block_cols};
    return out;
  }
  std::vector<std::byte> zero_points;
  if (!tensor.zero_points.empty()) {
    ASSIGN_OR_RETURN(zero_points, read(tensor.zero_points));
  }
  const auto [scale_rows, scale_cols] = ScalesOf(tensor);
  const IntegerTensor integers = {.rows = static_cast<size_t>(tensor.rows),
                                  .cols = static_cast<size_t>(tensor.cols),
                                  .bits = quantization_.bits,
                                  .in_words = quantization_.form == Form::kPacked,
                                  .numbers = numbers,
                                  .scales = scales,
                                  .scale_rows = static_cast<size_t>(scale_rows),
                                  .scale_cols = static_cast<size_t>(scale_cols),
                                  .zero_points = zero_points};
  out.blocks = BlocksOf(integers);
  out.bytes = ToBlocks(integers);
  return out;
}

absl::StatusOr<std::vector<std::byte>> QuantizedTensors::ReadFloats(const std::string& name,
                                                                    const Read& read) const {
  ASSIGN_OR_RETURN(const auto stored, ReadStored(name, read));
  const Tensor& tensor = tensors_.at(name);
  Float8Scales scales;
  HostMatrix matrix = {stored.bytes.data(), DType::kFloat32, tensor.rows, tensor.cols,
                       stored.blocks ? &*stored.blocks : nullptr};
  if (stored.float8) {
    scales = {stored.float8->scales.data(), stored.float8->block_rows, stored.float8->block_cols};
    matrix.float8 = &scales;
  }
  // cannot wrap: Add() has seen the product
  std::vector<std::byte> out(static_cast<size_t>(tensor.rows * tensor.cols) * sizeof(float));
  std::vector<float> row(static_cast<size_t>(tensor.cols));
  std::byte* to = out.data();
  for (int64_t i = 0; i < tensor.rows; ++i) {
    eta::ReadFloats(matrix, i, row);
    const auto bytes = std::as_bytes(std::span(row));
    to = std::ranges::copy(bytes, to).out;
  }
  return out;
}

}  // namespace eta
