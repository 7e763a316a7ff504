// A group of 32 terms of a packed panel (block_rows.h) as vectors.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_PANEL_GROUP_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_PANEL_GROUP_INL_H_
#undef ETA_KERNELS_CPU_PANEL_GROUP_INL_H_
#else
#define ETA_KERNELS_CPU_PANEL_GROUP_INL_H_
#endif

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <type_traits>
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

// q + offset of the codes in `codes`.
HWY_INLINE Bytes Decode(Bytes codes) {
  constexpr IntegerForm kForm = FormOf(GgmlType::kMXFP4);
  HWY_ALIGN static constexpr auto kNumbers = [] {
    std::array<uint8_t, 16> numbers{};
    for (size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = static_cast<uint8_t>(kCodedNumbers[i] + kForm.offset);
    }
    return numbers;
  }();
  return hn::TableLookupBytes(hn::LoadDup128(Byte(), kNumbers.data()), codes);
}

// Four terms of channels [lane, lane + L): those from 4 kQuad on of the group at `numbers`. kBits
// is StoredAs() of their form.
template <int kBits, size_t kQuad>
HWY_INLINE Bytes LoadQuad(const uint8_t* numbers, size_t lane) {
  const Byte d8;
  const uint8_t* at = numbers + lane * sizeof(uint32_t);
  if constexpr (kBits == 8) return hn::Load(d8, at + kQuad * 64);
  const Bytes line = hn::Load(d8, at + kQuad % 4 * 64);
  const Bytes nibble = hn::And(kQuad < 4 ? line : MoveBits<-4>(line), hn::Set(d8, 0x0F));
  if constexpr (kBits == kCoded) return Decode(nibble);
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

// Vectors that hold a number of each channel of a panel.
inline constexpr size_t kPanelVectors = kPackedChannels / kLanes;

// The numbers of a group, unpacked as they are taken.
template <int kBits>
struct StoredNumbers {
  const uint8_t* numbers;

  template <size_t kQuad>
  HWY_INLINE Bytes Get(size_t vector) const {
    return LoadQuad<kBits, kQuad>(numbers, vector * kLanes);
  }
};

// The same, unpacked once for rows that take them several times.
template <int kBits>
struct UnpackedNumbers {
  Bytes quads[kQuads][kPanelVectors];

  template <size_t kQuad = 0>
  HWY_INLINE void Unpack(const uint8_t* numbers) {
    if constexpr (kQuad < kQuads) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kPanelVectors; ++v) {
        quads[kQuad][v] = LoadQuad<kBits, kQuad>(numbers, v * kLanes);
      }
      Unpack<kQuad + 1>(numbers);
    }
  }
  template <size_t kQuad>
  HWY_INLINE Bytes Get(size_t vector) const {
    return quads[kQuad][vector];
  }
};

// Quads from kFirst on of other numbers.
template <class Numbers, size_t kFirst>
struct QuadsFrom {
  const Numbers& numbers;

  template <size_t kQuad>
  HWY_INLINE Bytes Get(size_t vector) const {
    return numbers.template Get<kFirst + kQuad>(vector);
  }
};

// Where multiply-adds are fused, integers become float32 as they are summed: a sum that starts at
// the bits of 1.5 * 2^23 has, read as a float32, the value 1.5 * 2^23 + I, since |I| < 2^22. Then
// s I, rounded once, is fma(s, that, -1.5 * 2^23 s), and the last term is exact: s has at most 18
// bits.
inline constexpr bool kBiased = HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3;
inline constexpr float kBias = 12582912.0f;
inline constexpr int32_t kFirstSum = kBiased ? std::bit_cast<int32_t>(kBias) : 0;

// What a group's sums of integers are multiplied with.
struct GroupScales {
  Floats scale[2];
  Floats minus_bias;  // -kBias * scale[0]
  Floats low;
};

template <GgmlType kType>
HWY_INLINE void LoadScales(const uint16_t* units, const uint8_t* factors, size_t group, size_t lane,
                           GroupScales& scales) {
  constexpr IntegerForm kForm = FormOf(kType);
  const Float d;
  const size_t index = kForm.nested ? group / kUnitGroups : group;
  const uint16_t* at = units + index * (UnitBytes(kForm) / sizeof(uint16_t)) + lane;
  using Units = std::conditional_t<kForm.coded, BFloat16Elements, Float16Elements>;
  const Floats unit = LoadElements(Units(), d, at);
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
  scales.minus_bias = hn::Mul(scales.scale[0], hn::Set(d, -kBias));
}

// scale * integers of the first half, or of the group.
HWY_INLINE Floats Scale(const GroupScales& scales, Ints integers) {
  const Float d;
  if constexpr (kBiased) {
    return hn::MulAdd(scales.scale[0], hn::BitCast(d, integers), scales.minus_bias);
  } else {
    return hn::Mul(scales.scale[0], hn::ConvertTo(d, integers));
  }
}

// scaled + scale * integers of the second half.
HWY_INLINE Floats AddScaled(const GroupScales& scales, Ints integers, Floats scaled) {
  const Float d;
  const Floats numbers =
      kBiased ? hn::Sub(hn::BitCast(d, integers), hn::Set(d, kBias)) : hn::ConvertTo(d, integers);
  return hn::MulAdd(scales.scale[1], numbers, scaled);
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
