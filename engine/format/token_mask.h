// Sets of tokens as masks: MaskWords(V) words (kernels/params/sampling.h), bit i % 32 of word i /
// 32 for token i. REQUIRES: 0 <= token < V.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace eta {

inline bool HasToken(std::span<const uint32_t> mask, int32_t token) {
  return (mask[static_cast<size_t>(token) / 32] >> (token % 32) & 1) != 0;
}

inline void AddToken(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] |= uint32_t{1} << (token % 32);
}

inline void RemoveToken(std::span<uint32_t> mask, int32_t token) {
  mask[static_cast<size_t>(token) / 32] &= ~(uint32_t{1} << (token % 32));
}

}  // namespace eta
