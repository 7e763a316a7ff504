// Masks over block ordinals: bit j % 64 of word j / 64 (PrefillSelection in
// kernels/params/selection.h).
#pragma once

#include <cstdint>

namespace eta::cpu {

// Sets the bits [begin, end).
inline void SetBits(uint64_t* words, int32_t begin, int32_t end) {
  for (int32_t j = begin; j < end; ++j) words[j / 64] |= uint64_t{1} << (j % 64);
}

// Adds bits of the blocks from `first` on.
inline void AddBits(uint64_t* words, int32_t first, uint64_t bits) {
  const int32_t shift = first % 64;
  words[first / 64] |= bits << shift;
  const uint64_t rest = shift > 0 ? bits >> (64 - shift) : 0;
  if (rest != 0) words[first / 64 + 1] |= rest;
}

// Whether a bit before `end` is set.
inline bool HasBit(const uint64_t* words, int32_t end) {
  for (int32_t word = 0; word < end / 64; ++word) {
    if (words[word] != 0) return true;
  }
  return end % 64 != 0 && (words[end / 64] & ((uint64_t{1} << (end % 64)) - 1)) != 0;
}

}  // namespace eta::cpu
