// Arithmetic on sizes that come from files and requests: nullopt instead of wrapping around.
#pragma once

#include <cstdint>
#include <optional>
#include <span>

namespace eta {

inline std::optional<uint64_t> CheckedAdd(uint64_t a, uint64_t b) {
  uint64_t sum;
  if (__builtin_add_overflow(a, b, &sum)) return std::nullopt;
  return sum;
}

inline std::optional<uint64_t> CheckedMul(uint64_t a, uint64_t b) {
  uint64_t product;
  if (__builtin_mul_overflow(a, b, &product)) return std::nullopt;
  return product;
}

// Product of `dims` (1 if there are none) times `element_bytes`; nullopt for a negative dimension.
inline std::optional<uint64_t> CheckedBytes(std::span<const int64_t> dims, uint64_t element_bytes) {
  std::optional<uint64_t> bytes = element_bytes;
  for (const int64_t dim : dims) {
    if (dim < 0) return std::nullopt;
    bytes = CheckedMul(*bytes, static_cast<uint64_t>(dim));
    if (!bytes) return std::nullopt;
  }
  return bytes;
}

}  // namespace eta
