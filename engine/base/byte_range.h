// A stretch of a text, in bytes.
#pragma once

#include <cstddef>
#include <span>
#include <vector>

namespace eta {

struct ByteRange {
  size_t begin = 0;
  size_t end = 0;  // past the last byte

  bool operator==(const ByteRange&) const = default;
};

// Sorted, disjoint ranges, with those that touch as one.
inline std::vector<ByteRange> JoinTouching(std::span<const ByteRange> ranges) {
  std::vector<ByteRange> joined;
  for (const ByteRange& range : ranges) {
    if (!joined.empty() && joined.back().end == range.begin) {
      joined.back().end = range.end;
    } else {
      joined.push_back(range);
    }
  }
  return joined;
}

}  // namespace eta
