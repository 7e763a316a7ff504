// Products of bytes: numbers without a sign times activations with one, four at a time into each
// lane of 32 bits, exactly.
//
// With VNNI (AVX-VNNI beside AVX2) that is one instruction, written out since compilers have it
// only in files that are built for such processors alone. Else pairs of products are added in 16
// bits first; as many pairs as 16 bits hold are added there. Numbers of 8 bits would not fit: their
// sign goes over to the activation. On other processors than x86 a byte of a word at a time is
// multiplied.
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
#include <utility>

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

// Rows that are multiplied side by side, since of one row each addition waits for the one before:
// as many as have registers for their sums beside all vectors of numbers. Numbers without an offset
// have two vectors each, and are taken one at a time.
template <int kBits, bool kVnni>
constexpr int RowsAtOnce() {
  if (kLanes >= 16 || TakesOffset<kBits, kVnni>()) return 8;
  return kLanes >= 8 && (kBits != 6 || kVnni) ? 4 : 2;
}

#if HWY_TARGET == HWY_AVX3
// sum + the products with four activations.
HWY_INLINE void AddVnni(Bytes u, const int32_t& x, Ints& sum) {
  asm("vpdpbusd %2%{1to16%}, %1, %0" : "+v"(sum.raw) : "v"(u.raw), "m"(x));
}
#elif HWY_TARGET == HWY_AVX2
HWY_INLINE void AddVnni(Bytes u, Bytes x, Ints& sum) {
  asm("%{vex%} vpdpbusd %2, %1, %0" : "+x"(sum.raw) : "x"(u.raw), "x"(x.raw));
}
#endif

// Quad t of vectors `vector` .. vector + kVectors - 1 of numbers.
template <size_t kQuad, size_t kVectors, class Numbers>
HWY_INLINE void GetQuads(const Numbers& u, size_t vector, Bytes (&quads)[kVectors]) {
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) quads[v] = u.template Get<kQuad>(vector + v);
}

// The functions below add, to sums[v][r], quad kQuad of vectors of numbers times that of row r of
// activations, kWords words behind row r - 1.

#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
template <size_t kWords, size_t kVectors, int kRows>
HWY_INLINE void AddQuadByVnni(const Bytes (&u)[kVectors], const int32_t* x, Ints (*sums)[kRows]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const int32_t& four = x[static_cast<size_t>(r) * kWords];
#if HWY_TARGET == HWY_AVX3
    AddVnni(u[0], four, sums[0][r]);
#else
    const Bytes row = hn::BitCast(Byte(), hn::Set(Int(), four));
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) AddVnni(u[v], row, sums[v][r]);
#endif
  }
}
#endif

#if ETA_BYTE_PAIRS
// `words` are sums of pairs, which go to `sums` before they can overflow.
template <int kBits, size_t kQuad, size_t kWords, size_t kVectors, class Words, int kRows>
HWY_INLINE void AddQuadByPairs(const Bytes (&u)[kVectors], const int32_t* x, Words& words,
                               Ints (*sums)[kRows]) {
  constexpr size_t kPairs = PairsInWord(kBits);
  const Byte d8;
  const hn::RebindToSigned<Byte> di8;
  __attribute__((uninitialized)) Bytes numbers[kVectors];
  __attribute__((uninitialized)) Bytes signs[kVectors];
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) {
    numbers[v] = u[v];
    if constexpr (kBits == 8) {
      signs[v] = hn::Xor(u[v], hn::Set(d8, 0x80));
      numbers[v] = hn::BitCast(d8, hn::Abs(hn::BitCast(di8, signs[v])));
    }
  }
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    const Bytes row = hn::BitCast(d8, hn::Set(Int(), x[static_cast<size_t>(r) * kWords]));
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) {
      const auto pairs = AddPairs(numbers[v], kBits == 8 ? ApplySign(row, signs[v]) : row);
      auto& word = words[v][r];
      word = kQuad % kPairs == 0 ? pairs : hn::Add(word, pairs);
      // Else the compiler makes many products first, adds them as a tree, and has no registers.
      asm("" : "+v"(word.raw));
      if constexpr ((kQuad + 1) % kPairs == 0) {
        sums[v][r] = hn::Add(sums[v][r], AddWords(word));
        asm("" : "+v"(sums[v][r].raw));
      }
    }
  }
}
#else
template <size_t kWords, size_t kVectors, int kRows>
HWY_INLINE void AddQuadByBytes(const Bytes (&u)[kVectors], const int32_t* x, Ints (*sums)[kRows]) {
  const Int di;
  const hn::RebindToUnsigned<Int> du;
  const auto product = [&](auto number, Ints activation) HWY_ATTR {
    const auto byte = hn::And(number, hn::Set(du, 0xFF));
    return hn::Mul(hn::BitCast(di, byte), hn::ShiftRight<24>(activation));
  };
  for (size_t v = 0; v < kVectors; ++v) {
    const auto word = hn::BitCast(du, u[v]);
    for (int r = 0; r < kRows; ++r) {
      const Ints row = hn::Set(di, x[static_cast<size_t>(r) * kWords]);
      Ints& sum = sums[v][r];
      sum = hn::Add(sum, product(word, hn::ShiftLeft<24>(row)));
      sum = hn::Add(sum, product(hn::ShiftRight<8>(word), hn::ShiftLeft<16>(row)));
      sum = hn::Add(sum, product(hn::ShiftRight<16>(word), hn::ShiftLeft<8>(row)));
      sum = hn::Add(sum, product(hn::ShiftRight<24>(word), row));
    }
  }
}
#endif

// The same of quads kQuad .. kQuads - 1, and of kVectors vectors from `vector` on.
template <int kBits, bool kVnni, size_t kQuad, size_t kQuads, size_t kWords, size_t kVectors,
          class Numbers, class Words, int kRows>
HWY_INLINE void AddQuads(const Numbers& u, size_t vector, const int32_t* x, Words& words,
                         Ints (*sums)[kRows]) {
  if constexpr (kQuad < kQuads) {
    __attribute__((uninitialized)) Bytes quads[kVectors];
    GetQuads<kQuad>(u, vector, quads);
#if !ETA_BYTE_PAIRS
    AddQuadByBytes<kWords>(quads, x + kQuad, sums);
#else
    if constexpr (!kVnni) {
      AddQuadByPairs<kBits, kQuad, kWords>(quads, x + kQuad, words, sums);
    } else {
#if HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX2
      AddQuadByVnni<kWords>(quads, x + kQuad, sums);
#endif
    }
#endif
    AddQuads<kBits, kVnni, kQuad + 1, kQuads, kWords, kVectors>(u, vector, x, words, sums);
  }
}

// sums[v][r] + the products of kQuads times four terms of row r of activations, kWords words behind
// row r - 1, with vector v of numbers: u.Get<t>(v) has terms 4 t .. 4 t + 3.
template <int kBits, bool kVnni, size_t kQuads, size_t kWords, class Numbers, int kRows,
          size_t kVectors>
HWY_INLINE void AddProducts(const Numbers& u, const int32_t* x, Ints (&sums)[kVectors][kRows]) {
  constexpr size_t kTogether = TakesOffset<kBits, kVnni>() ? 1 : kVectors;
#if ETA_BYTE_PAIRS
  static_assert(kQuads % PairsInWord(kBits) == 0);
  __attribute__((uninitialized)) hn::Vec<hn::Repartition<int16_t, Float>> words[kTogether][kRows];
#else
  const bool words = false;  // there are none
#endif
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; v += kTogether) {
    AddQuads<kBits, kVnni, 0, kQuads, kWords, kTogether>(u, v, x, words, sums + v);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
