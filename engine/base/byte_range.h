// A stretch of a text, in bytes.
#pragma once

#include <cstddef>

namespace eta {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;  // past the last byte

  bool operator==(const ByteRange&) const = default;
};

}  // namespace eta
