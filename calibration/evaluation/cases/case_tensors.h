// Tensors of an evaluation case, read strictly. Errors are InvalidArgument and name the tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors.h"

namespace eta {

// Opens a case. The file may be writable for anybody: nothing in it is run or served.
absl::StatusOr<SafetensorsFile> OpenCase(const std::string& path);

// The size of a dimension that FindTensor does not check.
inline constexpr int64_t kAnySize = -1;

// Returns the description of a tensor, which must exist with this type and shape.
absl::StatusOr<TensorInfo> FindTensor(const SafetensorsFile& file, const std::string& name,
                                      DType dtype, const std::vector<int64_t>& shape);

// Reads a float32, float16 or bfloat16 tensor as float32. All elements must be finite.
absl::StatusOr<std::vector<float>> ReadFloats(const SafetensorsFile& file, const std::string& name,
                                              DType dtype, const std::vector<int64_t>& shape);

absl::StatusOr<std::vector<int32_t>> ReadInt32s(const SafetensorsFile& file,
                                                const std::string& name,
                                                const std::vector<int64_t>& shape);

absl::StatusOr<std::vector<uint8_t>> ReadBytes(const SafetensorsFile& file, const std::string& name,
                                               const std::vector<int64_t>& shape);

template <typename T>
TensorToWrite AsTensor(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

}  // namespace eta
