// The head of a GGUF file, versions 2 and 3, little-endian:
//
//   "GGUF", version, number of tensors, number of metadata entries,
//   entries: key, type, value; a list as value has one type of elements, not lists themselves,
//   tensors: name, dimensions (innermost first), type, offset from the start of the data.
//
// The data starts at the next multiple of general.alignment. The tensors, sorted by offset, must
// cover it without an overlap or a hole, but for the padding up to that multiple, so a file has one
// reading only. A file that is one of several (split.count) may have no tensors. Source:
// docs/gguf.md of ggml.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/weights/ggml_type.h"

namespace eta {

inline constexpr std::string_view kGgufMagic = "GGUF";
inline constexpr uint64_t kGgufAlignment = 32;  // where general.alignment does not say
inline constexpr uint64_t kGgufMaxHeaderBytes = uint64_t{64} << 20;
inline constexpr uint64_t kGgufMaxTensors = 100'000;
inline constexpr uint64_t kGgufMaxEntries = 65'536;
inline constexpr uint64_t kGgufMaxKeyBytes = 65'535;
inline constexpr uint64_t kGgufMaxTensorNameBytes = 128;
inline constexpr uint64_t kGgufMaxListElements = uint64_t{1} << 22;
inline constexpr uint64_t kGgufMaxAlignment = 65'536;
inline constexpr uint32_t kGgufMaxRank = 4;

// The numbers are the format's.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kList = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};

// A value as the file has it. Strings may hold any bytes; booleans are 0 or 1.
struct GgufValue {
  GgufType type = GgufType::kUint8;
  GgufType element_type = GgufType::kUint8;  // of a list
  uint64_t elements = 0;                     // of a list
  std::string_view bytes;  // of a number; of a string without its length; of all elements of a list

  bool operator==(const GgufValue&) const = default;
};

struct GgufTensor {
  GgmlLayout layout = {};
  std::vector<int64_t> shape;  // outermost first, as everywhere else here
  uint64_t offset = 0;         // bytes from the start of the file
  uint64_t bytes = 0;          // as stored
  size_t part = 0;             // of a model in several files (gguf_parts.h): which one has it
};

struct GgufHeader {
  uint32_t version = 0;
  std::map<std::string, GgufValue, std::less<>> metadata;  // views into the parsed bytes
  std::map<std::string, GgufTensor, std::less<>> tensors;
};

// REQUIRES: `bytes` are the first bytes of a file of `file_size` bytes; they outlive the header.
// OUT_OF_RANGE if the head may go on behind `bytes` (fewer than the file and kGgufMaxHeaderBytes):
// call again with more. DATA_LOSS for a file cut off in its head or data; UNIMPLEMENTED, naming it,
// for other versions, the big-endian form and types of tensors that are not read; INVALID_ARGUMENT
// for everything else. Allocates in proportion to `bytes` only.
absl::StatusOr<GgufHeader> ParseGgufHeader(std::string_view bytes, uint64_t file_size);

}  // namespace eta
