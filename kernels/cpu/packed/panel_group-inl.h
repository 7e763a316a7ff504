// A group of 32 terms of a packed panel (block_rows.h) as vectors.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_PANEL_GROUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_PANEL_GROUP_INL_H_
#undef ETA_KERNELS_CPU_PANEL_GROUP_INL_H_
#else
#define ETA_KERNELS_CPU_PANEL_GROUP_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <utility>

#include "hwy/highway.h"
#include "kernels/cpu/packed/block_rows.h"
#include "kernels/cpu/simd/byte_products-inl.h"
#include "kernels/cpu/simd/kv_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

inline constexpr size_t kQuads = kGroupNumbers / 4;

// Bits of every byte, moved up by kBy or, if it is below zero, down; what crosses a byte is for the
// caller to mask.
template <int kBy>
HWY_INLINE Bytes MoveBits(Bytes bytes) {
  const hn::Repartition<uint16_t, Float> du16;
  const auto words = hn::BitCast(du16, bytes);
  if constexpr (kBy >= 0) {
    return hn::BitCast(Byte(), hn::ShiftLeft<kBy>(words));
  } else {
    return hn::BitCast(Byte(), hn::ShiftRight<-kBy>(words));
  }
}

// Four terms of channels [lane, lane + L): those from 4 kQuad on of the group at `numbers`.
template <int kBits, size_t kQuad>
HWY_INLINE Bytes LoadQuad(const uint8_t* numbers, size_t lane) {
  const Byte d8;
  const uint8_t* at = numbers + lane * sizeof(uint32_t);
  if constexpr (kBits == 8) return hn::Load(d8, at + kQuad * 64);
  const Bytes line = hn::Load(d8, at + kQuad % 4 * 64);
  const Bytes nibble = hn::And(kQuad < 4 ? line : MoveBits<-4>(line), hn::Set(d8, 0x0F));
  constexpr int kHighBits = kBits - 4;
  if constexpr (kHighBits == 1 || kHighBits == 2) {
    constexpr size_t kQuadsOfLine = kQuads / kHighBits;
    constexpr int kFrom = static_cast<int>(kQuad % kQuadsOfLine) * kHighBits;
    const Bytes high = hn::Load(d8, at + (4 + kQuad / kQuadsOfLine) * 64);
    const Bytes mask = hn::Set(d8, ((1 << kHighBits) - 1) << 4);
    return hn::Or(nibble, hn::And(MoveBits<4 - kFrom>(high), mask));
  }
  return nibble;
}

struct GroupNumbers {
  Bytes quads[kQuads];  // terms 4 t .. 4 t + 3
};

template <int kBits>
HWY_INLINE void LoadNumbers(const uint8_t* numbers, size_t lane, GroupNumbers& u) {
  [&]<size_t... kQuad>(std::index_sequence<kQuad...>) HWY_ATTR {
    ((u.quads[kQuad] = LoadQuad<kBits, kQuad>(numbers, lane)), ...);
  }
  (std::make_index_sequence<kQuads>());
}

// What a group's sums of integers are multiplied with.
struct GroupScales {
  Floats scale[2];
  Floats low;
};

template <GgmlType kType>
HWY_INLINE void LoadScales(const uint16_t* units, const uint8_t* factors, size_t group, size_t lane,
                           GroupScales& scales) {
  constexpr IntegerForm kForm = FormOf(kType);
  const Float d;
  const size_t index = kForm.nested ? group / kUnitGroups : group;
  const uint16_t* at = units + index * (UnitBytes(kForm) / sizeof(uint16_t)) + lane;
  const Floats unit = LoadElements(Float16Elements(), d, at);
  Floats low_unit = unit;
  if constexpr (kForm.has_low) low_unit = LoadElements(Float16Elements(), d, at + kPackedChannels);
  scales.scale[0] = unit;
  scales.low = low_unit;
  if constexpr (kForm.nested) {
    const auto* factor =
        reinterpret_cast<const int8_t*>(factors + group * FactorBytes(kForm)) + lane;
    scales.scale[0] = hn::Mul(unit, LoadBytes(d, factor));
    // Behind it stands the other half's, or that of the low.
    scales.low = hn::Mul(low_unit, LoadBytes(d, factor + kPackedChannels));
  }
  scales.scale[1] = scales.low;
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
