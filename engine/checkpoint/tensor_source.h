// Where a model's weights come from: a checkpoint on disk, or tensors made in memory.
#pragma once

#include <cstddef>
#include <map>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors_header.h"

namespace eta {

class SafetensorsFile;

// Const methods are thread-safe.
class TensorSource {
 public:
  virtual ~TensorSource() = default;

  virtual const std::string& config_json() const = 0;  // as ParseModelConfig reads it
  // Names, dtypes and shapes; offsets mean something to the source only.
  virtual const std::map<std::string, TensorInfo>& tensors() const = 0;
  // Data of one tensor, row-major, little-endian. NOT_FOUND for an unknown name.
  virtual absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const = 0;
  // What records of outliers are made with (eta-semantics.md, "Index kinds"); null: there is none.
  virtual const SafetensorsFile* index_metric() const { return nullptr; }

 protected:
  TensorSource() = default;
  TensorSource(TensorSource&&) = default;
  TensorSource& operator=(TensorSource&&) = default;
};

}  // namespace eta
