// Tensors of an evaluation case, read strictly. Errors are InvalidArgument and name the tensor.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors.h"

namespace eta {

// Opens a case; whoever may write to it, since nothing in it is run or served.
absl::StatusOr<SafetensorsFile> OpenCase(const std::string& path);

// A dimension that FindTensor leaves open.
inline constexpr int64_t kAnySize = -1;

// The description of a tensor that must be there, with this type and shape.
absl::StatusOr<TensorInfo> FindTensor(const SafetensorsFile& file, const std::string& name,
                                      DType dtype, const std::vector<int64_t>& shape);

// A float32, float16 or bfloat16 tensor as float32, all of it finite.
absl::StatusOr<std::vector<float>> ReadFloats(const SafetensorsFile& file, const std::string& name,
                                              DType dtype, const std::vector<int64_t>& shape);

absl::StatusOr<std::vector<int32_t>> ReadInt32s(const SafetensorsFile& file,
                                                const std::string& name,
                                                const std::vector<int64_t>& shape);

template <typename T>
TensorToWrite AsTensor(DType dtype, std::vector<int64_t> shape, const std::vector<T>& values) {
  return {dtype, std::move(shape), std::as_bytes(std::span(values))};
}

}  // namespace eta
