// Tensors by name, of a file or made in memory.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors_header.h"

namespace eta {

// Const methods are thread-safe.
class TensorReader {
 public:
  virtual ~TensorReader() = default;

  // Names, dtypes and shapes; offsets mean something to the reader only.
  virtual const std::map<std::string, TensorInfo>& tensors() const = 0;
  // Data of one tensor, row-major, little-endian. NOT_FOUND for an unknown name.
  virtual absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const = 0;

 protected:
  TensorReader() = default;
  TensorReader(TensorReader&&) = default;
  TensorReader& operator=(TensorReader&&) = default;
};

}  // namespace eta
