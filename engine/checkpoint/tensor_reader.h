// Tensors by name, of a file or made in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/safetensors_header.h"
#include "kernels/weights/ggml_type.h"

namespace eta {

// Scales of a tensor in e4m3 (kernels/weights/float8_scales.h).
struct StoredScales {
  std::vector<float> scales;
  int64_t block_rows = 1;
  int64_t block_cols = 1;

  bool operator==(const StoredScales&) const = default;
};

// A tensor as its file keeps it.
struct StoredTensor {
  std::vector<std::byte> bytes;        // row-major, little-endian
  std::optional<GgmlLayout> blocks;    // set: rows of quantised blocks
  std::optional<StoredScales> float8;  // set: bytes are e4m3
};

// Const methods are thread-safe.
class TensorReader {
 public:
  virtual ~TensorReader() = default;

  // Names, dtypes and shapes; offsets mean something to the reader only.
  virtual const std::map<std::string, TensorInfo>& tensors() const = 0;
  // Data of one tensor, row-major, little-endian. NOT_FOUND for an unknown name.
  virtual absl::StatusOr<std::vector<std::byte>> Read(const std::string& name) const = 0;
  // The same without unpacking blocks.
  virtual absl::StatusOr<StoredTensor> ReadStored(const std::string& name) const {
    auto bytes = Read(name);
    if (!bytes.ok()) return bytes.status();
    return StoredTensor{*std::move(bytes), std::nullopt, std::nullopt};
  }

 protected:
  TensorReader() = default;
  TensorReader(TensorReader&&) = default;
  TensorReader& operator=(TensorReader&&) = default;
};

}  // namespace eta
