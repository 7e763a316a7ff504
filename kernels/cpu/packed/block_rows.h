// Rows of a weight that stay packed in 4 to 8 bits (eta-semantics.md, "Packed weights"), as the CPU
// multiplies them: panels of 16 output channels, cut into groups of 32 terms k.
//
// The stored numbers u = q + offset have no sign; where they are coded, their codes are stored. A
// panel is three arrays. `u[c][k]` is the number of channel c and term k of the group.
//
//   numbers  of each group: nibbles 4 x 64 bytes, byte 4 c + i of line j has the low four bits of
//            u[c][4 j + i] and above them those of u[c][16 + 4 j + i]; then the bits above these:
//              5 bits  64 bytes, bit t of byte 4 c + i is of u[c][4 t + i]
//              6 bits  2 x 64 bytes, bits 2 t and 2 t + 1 of byte 4 c + i of line h are of
//                      u[c][16 h + 4 t + i]
//            or, of 8 bits, 8 x 64 bytes, byte 4 c + i of line t is u[c][4 t + i]
//   units    float16, of coded numbers bfloat16: d of the 16 channels and behind them, where there
//            is a low, that of the lows: of each group, or of 8 groups if scales are nested
//   factors  nested scales, a byte for each of the 16 channels: of each group its scales, then its
//            low
//
// So one load of 64 bytes gives, by a shift and a mask, vectors of four terms of 16 channels, which
// the products of bytes take. Channels from N on are zero; activations are zero for terms from K
// on. The arrangement does not depend on the instruction set.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/backend.h"
#include "kernels/cpu/memory/host_memory.h"
#include "kernels/weights/ggml_type.h"
#include "kernels/weights/integer_groups.h"

namespace eta::cpu {

inline constexpr size_t kPackedChannels = 16;  // of a panel
inline constexpr size_t kUnitGroups = 8;       // that share a unit, if scales are nested

// How a group's numbers are stored, for templates: their bits, or that they are coded.
inline constexpr int kCoded = 0;
constexpr int StoredAs(const IntegerForm& form) {
  return form.coded ? kCoded : form.bits;
}
// Of q + offset, as products have it.
constexpr int ProductBits(const IntegerForm& form) {
  return form.coded ? 5 : form.bits;
}

constexpr size_t NumberBytes(const IntegerForm& form) {
  return static_cast<size_t>(form.bits) * kPackedChannels * kGroupNumbers / 8;
}
constexpr size_t UnitBytes(const IntegerForm& form) {
  return kPackedChannels * sizeof(uint16_t) * (form.has_low ? 2 : 1);
}
constexpr size_t FactorBytes(const IntegerForm& form) {
  if (!form.nested) return 0;
  return kPackedChannels * static_cast<size_t>(form.scales + (form.has_low ? 1 : 0));
}

class BlockRows {
 public:
  // Rows of zeros. REQUIRES: IsPacked(layout.type).
  BlockRows(int64_t rows, int64_t cols, const GgmlLayout& layout);

  int64_t rows() const { return rows_; }
  int64_t cols() const { return cols_; }
  const GgmlLayout& layout() const { return layout_; }
  size_t num_groups() const { return num_groups_; }
  int64_t num_panels() const { return num_panels_; }
  size_t bytes() const { return panel_bytes_ * static_cast<size_t>(num_panels_); }

  const uint8_t* numbers(int64_t panel) const {
    return reinterpret_cast<const uint8_t*>(data_.get()) +
           static_cast<size_t>(panel) * panel_bytes_;
  }
  const uint16_t* units(int64_t panel) const {
    return reinterpret_cast<const uint16_t*>(numbers(panel) + units_at_);
  }
  const uint8_t* factors(int64_t panel) const { return numbers(panel) + factors_at_; }

  // Writes row `row` from its blocks, [BlockRowBytes()].
  void SetRow(int64_t row, std::span<const std::byte> blocks);
  // Writes row `row` as float32 [K], by ggml's formulas.
  void ReadRow(int64_t row, float* out) const;

 private:
  void SetGroup(int64_t row, size_t index, const IntegerGroup& group);
  IntegerGroup GetGroup(int64_t row, size_t index) const;

  GgmlLayout layout_;
  IntegerForm form_;
  int64_t rows_;
  int64_t cols_;
  size_t num_groups_;
  int64_t num_panels_;
  size_t units_at_;
  size_t factors_at_;
  size_t panel_bytes_;
  HostMemory data_;
};

}  // namespace eta::cpu
