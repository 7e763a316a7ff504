// Products of bytes: numbers without a sign times activations with one, four at a time into each
// lane of 32 bits, exactly.
//
// With VNNI that is one instruction, written out since compilers have it only in files that are
// built for such processors alone. Else pairs of products are added in 16 bits first; as many pairs
// as 16 bits hold are added there. Numbers of 8 bits would not fit: their sign goes over to the
// activation. On other processors than x86 a byte of a word at a time is multiplied.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_BYTE_PRODUCTS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_BYTE_PRODUCTS_INL_H_
#undef ETA_KERNELS_CPU_BYTE_PRODUCTS_INL_H_
#else
#define ETA_KERNELS_CPU_BYTE_PRODUCTS_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"

#undef ETA_BYTE_PAIRS
#if HWY_TARGET == HWY_SSSE3 || HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3
#define ETA_BYTE_PAIRS 1
#else
#define ETA_BYTE_PAIRS 0
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

using Byte = hn::Repartition<uint8_t, Float>;
using Bytes = hn::Vec<Byte>;  // four numbers of each lane's channel
using Int = hn::RebindToSigned<Float>;
using Ints = hn::Vec<Int>;

// Whether a sum of numbers of so many bits comes without their offset: then it starts at zero.
template <int kBits, bool kVnni>
constexpr bool TakesOffset() {
  return ETA_BYTE_PAIRS == 1 && kBits == 8 && !kVnni;
}

#if ETA_BYTE_PAIRS

// Lane i: bytes 2i and 2i + 1 of `u` times those of `x`, added; 16 bits, saturated.
HWY_INLINE hn::Vec<hn::Repartition<int16_t, Float>> AddPairs(Bytes u, Bytes x) {
  using Result = hn::Vec<hn::Repartition<int16_t, Float>>;
#if HWY_TARGET == HWY_SSSE3
  return Result{_mm_maddubs_epi16(u.raw, x.raw)};
#elif HWY_TARGET == HWY_AVX2
  return Result{_mm256_maddubs_epi16(u.raw, x.raw)};
#else
  return Result{_mm512_maddubs_epi16(u.raw, x.raw)};
#endif
}

// Each byte of `x`, times the sign of that of `w`; where `w` is zero, anything.
HWY_INLINE Bytes ApplySign(Bytes x, Bytes w) {
#if HWY_TARGET == HWY_SSSE3
  return Bytes{_mm_sign_epi8(x.raw, w.raw)};
#elif HWY_TARGET == HWY_AVX2
  return Bytes{_mm256_sign_epi8(x.raw, w.raw)};
#else
  const __mmask64 negative = _mm512_movepi8_mask(w.raw);
  return Bytes{_mm512_mask_sub_epi8(x.raw, negative, _mm512_setzero_si512(), x.raw)};
#endif
}

// Lane i: words 2i and 2i + 1, added.
HWY_INLINE Ints AddWords(hn::Vec<hn::Repartition<int16_t, Float>> words) {
#if HWY_TARGET == HWY_SSSE3
  return Ints{_mm_madd_epi16(words.raw, _mm_set1_epi16(1))};
#elif HWY_TARGET == HWY_AVX2
  return Ints{_mm256_madd_epi16(words.raw, _mm256_set1_epi16(1))};
#else
  return Ints{_mm512_madd_epi16(words.raw, _mm512_set1_epi16(1))};
#endif
}

// Sums of so many pairs of products, each at most 2 * (2^bits - 1) * 127, or 2 * 128 * 127 of 8
// bits, fit in 16 bits.
constexpr size_t PairsInWord(int bits) {
  return bits == 4 ? 8 : bits == 5 ? 4 : bits == 6 ? 2 : 1;
}

#endif  // ETA_BYTE_PAIRS

// sum + the products of kQuads times four terms.
template <int kBits, bool kVnni, size_t kQuads>
HWY_INLINE Ints SumOfProducts(const Bytes* u, const int32_t* x, Ints sum) {
#if HWY_TARGET == HWY_AVX3
  if constexpr (kVnni) {
#pragma GCC unroll 8
    for (size_t t = 0; t < kQuads; ++t) {
      asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.raw) : "v"(u[t].raw), "m"(x[t]));
    }
    return sum;
  }
#endif
#if ETA_BYTE_PAIRS
  constexpr size_t kPairs = PairsInWord(kBits);
  static_assert(kQuads % kPairs == 0);
  const Byte d8;
  const hn::RebindToSigned<Byte> di8;
  const hn::Repartition<int16_t, Float> di16;
  auto words = hn::Zero(di16);
#pragma GCC unroll 8
  for (size_t t = 0; t < kQuads; ++t) {
    const Bytes row = hn::BitCast(d8, hn::Set(Int(), x[t]));
    if constexpr (kBits == 8) {
      const Bytes w = hn::Xor(u[t], hn::Set(d8, 0x80));
      const Bytes magnitude = hn::BitCast(d8, hn::Abs(hn::BitCast(di8, w)));
      words = AddPairs(magnitude, ApplySign(row, w));
    } else {
      words = hn::Add(words, AddPairs(u[t], row));
    }
    if ((t + 1) % kPairs == 0) {
      sum = hn::Add(sum, AddWords(words));
      words = hn::Zero(di16);
    }
  }
  return sum;
#else
  const Int di;
  const hn::RebindToUnsigned<Int> du;
  for (size_t t = 0; t < kQuads; ++t) {
    const auto word = hn::BitCast(du, u[t]);
    const Ints row = hn::Set(di, x[t]);
    const auto product = [&](auto number, Ints activation) HWY_ATTR {
      const auto byte = hn::And(number, hn::Set(du, 0xFF));
      return hn::Mul(hn::BitCast(di, byte), hn::ShiftRight<24>(activation));
    };
    sum = hn::Add(sum, product(word, hn::ShiftLeft<24>(row)));
    sum = hn::Add(sum, product(hn::ShiftRight<8>(word), hn::ShiftLeft<16>(row)));
    sum = hn::Add(sum, product(hn::ShiftRight<16>(word), hn::ShiftLeft<8>(row)));
    sum = hn::Add(sum, product(hn::ShiftRight<24>(word), row));
  }
  return sum;
#endif
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
