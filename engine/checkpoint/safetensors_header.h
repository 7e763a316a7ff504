// The safetensors format: 8 bytes little-endian header length n, n bytes of JSON, then tensor data.
//
//   {"__metadata__": {"key": "value", ...},
//    "name": {"dtype": "BF16", "shape": [8192, 512], "data_offsets": [begin, end]}, ...}
//
// Offsets count from the end of the header. The tensors, sorted by offset, must cover the data
// without a hole, an overlap or a byte left over, so a file has one reading only.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/dtype.h"

namespace eta {

inline constexpr uint64_t kSafetensorsMaxHeaderBytes = uint64_t{8} << 20;
inline constexpr size_t kSafetensorsMaxTensors = 100'000;
inline constexpr size_t kSafetensorsMaxRank = 8;

struct TensorInfo {
  DType dtype = DType::kFloat32;
  std::vector<int64_t> shape;
  uint64_t begin = 0;  // bytes from the end of the header
  uint64_t end = 0;

  uint64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::map<std::string, std::string> metadata;
  std::map<std::string, TensorInfo> tensors;
  uint64_t data_begin = 0;  // offset of the data in the file
};

// Header length n stated by the first bytes of a file of `file_size` bytes, at most
// kSafetensorsMaxHeaderBytes. DATA_LOSS if the file is too short to state one; INVALID_ARGUMENT for
// one past the limit. Whether the file holds that many bytes is ParseSafetensorsHeader's question.
absl::StatusOr<uint64_t> SafetensorsHeaderLength(std::string_view bytes, uint64_t file_size);

// REQUIRES: `bytes` are the first min(8 + n, file_size) bytes of the file, or more.
// DATA_LOSS for a file cut off in its header or data; UNIMPLEMENTED for a dtype that the runtime
// lacks; INVALID_ARGUMENT for everything else. Allocates in proportion to `bytes` only.
absl::StatusOr<SafetensorsHeader> ParseSafetensorsHeader(std::string_view bytes,
                                                         uint64_t file_size);

// "BF16" and the like; nullopt for what the format or the runtime does not know.
std::optional<DType> ParseSafetensorsDType(std::string_view name);
std::string_view SafetensorsName(DType dtype);

}  // namespace eta
