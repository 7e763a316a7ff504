// The bytes of a file from its beginning, unpacked if its name ends in `.xz`.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "absl/status/statusor.h"

namespace eta {

class ByteStream {
 public:
  // NotFound for a file that cannot be opened. `max_decoder_bytes` bounds the memory of unpacking.
  static absl::StatusOr<std::unique_ptr<ByteStream>> Open(const std::string& path,
                                                          uint64_t max_decoder_bytes);
  virtual ~ByteStream() = default;

  // Reads up to `size` bytes into `out`; 0 at the end. InvalidArgument for a damaged or cut `.xz`.
  virtual absl::StatusOr<size_t> Read(char* out, size_t size) = 0;
};

}  // namespace eta
