// The tensors of a folder whose weights are kept in 4 or 8 bits, by the names of the model: each
// with its scales as one.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/checkpoint/quantized/quantization_config.h"
#include "engine/checkpoint/tensor_reader.h"

namespace eta {

// Immutable; reads are as thread-safe as the function that they are given.
class QuantizedTensors {
 public:
  // The bytes of a tensor of the files.
  using Read = std::function<absl::StatusOr<std::vector<std::byte>>(const std::string& name)>;

  // Replaces, in the tensors of the files, those of each quantised one by X.weight, float32, and
  // takes out scales of activations and of the KV cache, which are not used. INVALID_ARGUMENT,
  // naming the tensor, for one without its scales and for types and shapes that do not fit.
  static absl::StatusOr<QuantizedTensors> Present(const Quantization& quantization,
                                                  std::map<std::string, TensorInfo>& tensors);

  bool Has(const std::string& name) const { return tensors_.contains(name); }
  // e4m3 with scales, or ggml's blocks: 4 bits become Q4_0, or Q4_1 where there are zero points, 8
  // bits Q8_0. Their scales are rounded to float16, beyond which they are infinite.
  // REQUIRES: Has(name).
  absl::StatusOr<StoredTensor> ReadStored(const std::string& name, const Read& read) const;
  // The same as float32.
  absl::StatusOr<std::vector<std::byte>> ReadFloats(const std::string& name,
                                                    const Read& read) const;

 private:
  struct Tensor {
    int64_t rows = 0;
    int64_t cols = 0;
    std::string numbers{};  // the files' tensors
    std::string scales{};
    DType scale_dtype = DType::kFloat32;
    std::string zero_points{};  // empty: none
  };

  explicit QuantizedTensors(const Quantization& quantization) : quantization_(quantization) {}

  absl::Status Add(const std::string& base, const std::string& numbers,
                   const std::map<std::string, TensorInfo>& tensors);
  absl::Status CheckScales(const Tensor& tensor, const TensorInfo& scales) const;
  absl::Status CheckZeroPoints(const Tensor& tensor, const TensorInfo& zero_points) const;
  // How many rows and columns a tensor has of scales.
  std::pair<int64_t, int64_t> ScalesOf(const Tensor& tensor) const;

  Quantization quantization_;
  std::map<std::string, Tensor> tensors_;
};

}  // namespace eta
