// The tempered keys of a sequence (SequenceRows::tempered), a run of keys at a time. Words without
// a set bit cost a comparison.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <span>

namespace eta::cpu {

// Bits of the 64 keys that begin with key `first`; bit i is key first + i.
inline uint64_t TemperedWord(std::span<const uint64_t> tempered, size_t first) {
  const size_t word = first / 64;
  const size_t shift = first % 64;
  if (word >= tempered.size()) return 0;
  uint64_t bits = tempered[word] >> shift;
  if (shift > 0 && word + 1 < tempered.size()) bits |= tempered[word + 1] << (64 - shift);
  return bits;
}

// Calls visit(i) for every tempered key first + i, i < count, but key first + own.
template <class Visit>
void ForEachTempered(std::span<const uint64_t> tempered, size_t first, size_t count, size_t own,
                     const Visit& visit) {
  for (size_t at = 0; at < count && (first + at) / 64 < tempered.size(); at += 64) {
    for (uint64_t bits = TemperedWord(tempered, first + at); bits != 0; bits &= bits - 1) {
      const size_t i = at + static_cast<size_t>(std::countr_zero(bits));
      if (i >= count) break;
      if (i != own) visit(i);
    }
  }
}

}  // namespace eta::cpu
