// AMX: a thread's eight tiles of 16 rows x 64 bytes, and the product of prefill on them. Only for
// AVX-512; a caller asks WhyNoAmx() first. The instructions are written out, because compilers have
// them only in files that are built for such processors alone.
//
// Tiles 0 to 3 are sums, 4 and 5 columns, 6 and 7 rows. A tile multiplies bfloat16, 32 terms of a
// sum at a time (bytes: packed/amx_product-inl.h). Operands of more bits are the sum of two
// bfloat16, `high` + `low`, which is off by at most 2^-16 of the value. What is left out is low *
// low, at most 2^-16 of a term.
//
// Operands in memory, by steps of 32 terms k of the sum; a tile takes 1 KiB:
//
//   rows (A)     a step of 32 rows: low of rows 0 .. 15, low of 16 .. 31, high of both. Row r: word
//                j holds terms j and j + 16
//   columns (B)  a step of 32 columns: high of columns 0 .. 15, high of 16 .. 31; then low of both,
//                if B has more than 8 bits of mantissa. Row j: word c holds terms j and j + 16 of
//                column c
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_AMX_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_AMX_TILE_INL_H_
#undef ETA_KERNELS_CPU_AMX_TILE_INL_H_
#else
#define ETA_KERNELS_CPU_AMX_TILE_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

inline constexpr size_t kAmxRows = 16;      // of a tile
inline constexpr size_t kAmxPairRows = 32;  // rows of a product, two tiles
inline constexpr size_t kAmxColumns = 32;   // columns of a product, two tiles
inline constexpr size_t kAmxDepth = 32;     // terms of a step
inline constexpr size_t kAmxTileBytes = 1024;
inline constexpr size_t kAmxRowBytes = 64;
inline constexpr size_t kAmxTileWords = kAmxTileBytes / sizeof(uint32_t);
inline constexpr size_t kAmxRowStepBytes = 4 * kAmxTileBytes;  // of A

// Bytes of a step of B.
constexpr size_t AmxColumnStepBytes(bool has_low) {
  return (has_low ? 4 : 2) * kAmxTileBytes;
}

constexpr size_t AmxSteps(size_t depth) {
  return (depth + kAmxDepth - 1) / kAmxDepth;
}

// The tiles of this thread, while it lives. Columns and rows have `depth_bytes` of a sum's terms, a
// multiple of 4.
class AmxTiles {
 public:
  explicit AmxTiles(size_t depth_bytes = kAmxRowBytes) {
    Configuration all;
    std::fill_n(all.row_bytes, 6, static_cast<uint16_t>(kAmxRowBytes));
    std::fill_n(all.row_bytes + 6, 2, static_cast<uint16_t>(depth_bytes));
    std::fill_n(all.rows, 8, static_cast<uint8_t>(kAmxRows));
    std::fill_n(all.rows + 4, 2, static_cast<uint8_t>(depth_bytes / sizeof(uint32_t)));
    asm volatile("ldtilecfg %0" : : "m"(all));
  }
  ~AmxTiles() { asm volatile("tilerelease" : : : "memory"); }
  AmxTiles(const AmxTiles&) = delete;
  AmxTiles& operator=(const AmxTiles&) = delete;

 private:
  struct alignas(64) Configuration {
    uint8_t palette = 1;
    uint8_t start_row = 0;
    uint8_t reserved[14] = {};
    uint16_t row_bytes[16] = {};
    uint8_t rows[16] = {};
  };
};

template <int kTile>
HWY_INLINE void AmxZero() {
  asm volatile("tilezero %%tmm%c0" : : "i"(kTile));
}

// Rows `stride` bytes apart.
template <int kTile>
HWY_INLINE void AmxLoad(const void* from, size_t stride = kAmxRowBytes) {
  asm volatile("tileloadd (%0,%1,1), %%tmm%c2" : : "r"(from), "r"(stride), "i"(kTile) : "memory");
}

template <int kTile>
HWY_INLINE void AmxStore(void* to, size_t stride = kAmxRowBytes) {
  asm volatile("tilestored %%tmm%c2, (%0,%1,1)" : : "r"(to), "r"(stride), "i"(kTile) : "memory");
}

// Tile kC += tile kA * tile kB.
template <int kC, int kA, int kB>
HWY_INLINE void AmxMultiply() {
  asm volatile("tdpbf16ps %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

// The same of bytes with a sign, and sums of int32.
template <int kC, int kA, int kB>
HWY_INLINE void AmxMultiplyBytes() {
  asm volatile("tdpbssd %%tmm%c2, %%tmm%c1, %%tmm%c0" : : "i"(kC), "i"(kA), "i"(kB));
}

// Tiles 0 .. 3 are the sums [2 x 16 rows, 32 columns] of one product, row by row of tiles.
HWY_INLINE void AmxZeroSums() {
  AmxZero<0>();
  AmxZero<1>();
  AmxZero<2>();
  AmxZero<3>();
}

// `sums` [32][32], rows `stride` bytes apart.
HWY_INLINE void AmxLoadSums(const float* sums, size_t stride) {
  const auto* at = reinterpret_cast<const std::byte*>(sums);
  AmxLoad<0>(at, stride);
  AmxLoad<1>(at + kAmxRowBytes, stride);
  AmxLoad<2>(at + kAmxRows * stride, stride);
  AmxLoad<3>(at + kAmxRows * stride + kAmxRowBytes, stride);
}

HWY_INLINE void AmxStoreSums(float* sums, size_t stride) {
  auto* at = reinterpret_cast<std::byte*>(sums);
  AmxStore<0>(at, stride);
  AmxStore<1>(at + kAmxRowBytes, stride);
  AmxStore<2>(at + kAmxRows * stride, stride);
  AmxStore<3>(at + kAmxRows * stride + kAmxRowBytes, stride);
}

// The sums at the places of the tiles of a step of rows: columns 0 .. 15 where low words stand.
HWY_INLINE void AmxStoreTiles(std::byte* step) {
  AmxStore<0>(step);
  AmxStore<2>(step + kAmxTileBytes);
  AmxStore<1>(step + 2 * kAmxTileBytes);
  AmxStore<3>(step + 3 * kAmxTileBytes);
}

// Tiles 4 and 5: columns. Tiles 6 and 7: rows.
HWY_INLINE void AmxMultiplySums() {
  AmxMultiply<0, 6, 4>();
  AmxMultiply<1, 6, 5>();
  AmxMultiply<2, 7, 4>();
  AmxMultiply<3, 7, 5>();
}

// Adds `steps` steps of 32 rows times 32 columns to the sums. An element is the same sum in the
// same order whatever stands in the other rows. Tiles compute beside the vector units: `beside` is
// called after each step for work that has to be done anyway.
template <bool kHasLow, class Beside>
HWY_INLINE void AmxMultiplyPair(const std::byte* rows, const std::byte* columns, size_t steps,
                                const Beside& beside) {
  for (size_t s = 0; s < steps; ++s) {
    AmxLoad<4>(columns);
    AmxLoad<6>(rows);
    AmxLoad<5>(columns + kAmxTileBytes);
    AmxLoad<7>(rows + kAmxTileBytes);
    AmxMultiplySums();
    AmxLoad<6>(rows + 2 * kAmxTileBytes);
    AmxLoad<7>(rows + 3 * kAmxTileBytes);
    AmxMultiplySums();
    if constexpr (kHasLow) {
      AmxLoad<4>(columns + 2 * kAmxTileBytes);
      AmxLoad<5>(columns + 3 * kAmxTileBytes);
      AmxMultiplySums();
    }
    rows += kAmxRowStepBytes;
    columns += AmxColumnStepBytes(kHasLow);
    beside();
  }
}

// The same for the first 16 rows alone: sums in tiles 0 and 1.
template <bool kHasLow, class Beside>
HWY_INLINE void AmxMultiplySingle(const std::byte* rows, const std::byte* columns, size_t steps,
                                  const Beside& beside) {
  for (size_t s = 0; s < steps; ++s) {
    AmxLoad<4>(columns);
    AmxLoad<6>(rows);
    AmxLoad<5>(columns + kAmxTileBytes);
    AmxLoad<7>(rows + 2 * kAmxTileBytes);
    AmxMultiply<0, 6, 4>();
    AmxMultiply<1, 6, 5>();
    AmxMultiply<0, 7, 4>();
    AmxMultiply<1, 7, 5>();
    if constexpr (kHasLow) {
      AmxLoad<4>(columns + 2 * kAmxTileBytes);
      AmxLoad<5>(columns + 3 * kAmxTileBytes);
      AmxMultiply<0, 7, 4>();
      AmxMultiply<1, 7, 5>();
    }
    rows += kAmxRowStepBytes;
    columns += AmxColumnStepBytes(kHasLow);
    beside();
  }
}

// Where the words of row `row` of 32 begin in a step of rows: low, and high 2 tiles behind it.
HWY_INLINE uint32_t* AmxRowWords(std::byte* step, size_t row) {
  return reinterpret_cast<uint32_t*>(step + row * kAmxRowBytes);
}

using Words = hn::Vec<hn::RebindToUnsigned<Float>>;

// Bfloat16 words of two vectors of terms, 16 apart: their upper halves.
HWY_INLINE Words JoinTerms(Floats first, Floats second) {
  const hn::RebindToUnsigned<Float> du;
  return hn::Or(hn::ShiftRight<16>(hn::BitCast(du, first)),
                hn::And(hn::BitCast(du, second), hn::Set(du, 0xFFFF0000u)));
}

// Bfloat16 words of two vectors of terms, 16 apart: `high` is the nearest bfloat16, `low` the upper
// half of the rest, so NaN stays NaN.
HWY_INLINE void SplitTerms(Floats first, Floats second, Words& high, Words& low) {
  const Float d;
  const hn::RebindToUnsigned<Float> du;
  const Words upper = hn::Set(du, 0xFFFF0000u);
  const Words half = hn::Set(du, 0x8000u);
  const Words first_high = hn::And(hn::Add(hn::BitCast(du, first), half), upper);
  const Words second_high = hn::And(hn::Add(hn::BitCast(du, second), half), upper);
  high = hn::Or(hn::ShiftRight<16>(first_high), second_high);
  const Floats first_low = hn::Sub(first, hn::BitCast(d, first_high));
  const Floats second_low = hn::Sub(second, hn::BitCast(d, second_high));
  low = JoinTerms(first_low, second_low);
}

// Tiles of columns of the row-major matrix `from` [terms][columns], which is padded with zeros to
// whole steps and to whole tiles but for the last 16 terms.
template <bool kHasLow>
HWY_NOINLINE void AmxSplitColumns(const float* from, size_t terms, size_t columns, std::byte* to) {
  const Float d;
  const hn::RebindToUnsigned<Float> du;
  for (size_t column = 0; column < columns; column += kAmxColumns) {
    for (size_t s = 0; s < AmxSteps(terms); ++s, to += AmxColumnStepBytes(kHasLow)) {
      auto* words = reinterpret_cast<uint32_t*>(to);
      for (size_t j = 0; j < kAmxRows; ++j, words += kLanes) {
        const float* first = from + (s * kAmxDepth + j) * columns + column;
        const float* second = first + kAmxRows * columns;
        const bool has_second = s * kAmxDepth + kAmxRows < terms;
        for (size_t half = 0; half < 2; ++half) {
          const Floats a = hn::Load(d, first + half * kLanes);
          const Floats b = has_second ? hn::Load(d, second + half * kLanes) : hn::Zero(d);
          if constexpr (kHasLow) {
            Words high;
            Words low;
            SplitTerms(a, b, high, low);
            hn::Store(high, du, words + half * kAmxTileWords);
            hn::Store(low, du, words + (2 + half) * kAmxTileWords);
          } else {
            hn::Store(JoinTerms(a, b), du, words + half * kAmxTileWords);
          }
        }
      }
    }
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // AVX-512

#endif  // include guard
