// Packed weights as integers (eta-semantics.md, "Packed weights"): groups of 32 numbers of a row.
//
// Number i of a group is w_i = scale * q_i - low, with an integer q_i of 4 to 8 bits. Q6_K has a
// scale for each half of a group, the other types have one.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/weights/ggml_type.h"

namespace eta {

inline constexpr int kGroupNumbers = 32;

struct IntegerForm {
  int bits;            // of a number as it is stored: q + offset, without a sign, or a code
  int offset;          // 0, or what brings q + offset above 0
  int scales;          // of a group: 1, or 2
  bool has_low;        // else low is 0
  bool nested;         // scale and low are small integers times a float16 that 8 groups share
  bool coded = false;  // what is stored is a code of q (kCodedNumbers), and units are bfloat16
};

// q of the codes of e2m1, which are floats of 4 bits: twice their values.
inline constexpr std::array<int8_t, 16> kCodedNumbers = {0, 1,  2,  3,  4,  6,  8,  12,
                                                         0, -1, -2, -3, -4, -6, -8, -12};

constexpr bool IsPacked(GgmlType type) {
  return type != GgmlType::kF32 && type != GgmlType::kF16 && type != GgmlType::kBF16;
}

// REQUIRES: IsPacked(type).
constexpr IntegerForm FormOf(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_0:
      return {4, 8, 1, false, false};
    case GgmlType::kQ4_1:
      return {4, 0, 1, true, false};
    case GgmlType::kQ5_0:
      return {5, 16, 1, false, false};
    case GgmlType::kQ5_1:
      return {5, 0, 1, true, false};
    case GgmlType::kQ4_K:
      return {4, 0, 1, true, true};
    case GgmlType::kQ5_K:
      return {5, 0, 1, true, true};
    case GgmlType::kQ6_K:
      return {6, 32, 2, false, true};
    case GgmlType::kMXFP4:
      return {4, 16, 1, false, false, true};
    default:
      return {8, 128, 1, false, false};
  }
}

// `unit` and `low_unit` are float16 values, or powers of two where numbers are coded, the factors
// integers of at most 8 bits: so scale() and low() are exact, and so is scale() times a q.
struct IntegerGroup {
  std::array<int8_t, kGroupNumbers> q;
  float unit = 0.0f;
  float low_unit = 0.0f;
  std::array<int8_t, 2> factor = {1, 1};  // of the two halves
  int8_t low_factor = 1;

  float scale(size_t half) const { return unit * static_cast<float>(factor[half]); }
  float low() const { return low_unit * static_cast<float>(low_factor); }
};

// REQUIRES: IsPacked(layout.type); `blocks` is a whole number n of blocks; `out` has
// n * block_elements / 32 groups.
void DecodeGroups(const GgmlLayout& layout, std::span<const std::byte> blocks,
                  std::span<IntegerGroup> out);

// The numbers as float32, by ggml's formulas: each product and each sum is rounded.
void UnpackGroup(const IntegerGroup& group, bool has_low, std::span<float, kGroupNumbers> out);

}  // namespace eta
