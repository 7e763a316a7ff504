// The one product of attention over a block: C [rows, n] = A [rows, depth] * B [depth, n], where B
// is a tile of the KV cache. Scores: A = queries, B = K tile [d][b]. Output: A = weights, B = V
// tile [b][d]. Rows of A and C are kTileRowStride apart. An element of B is widened once for up to
// kMaxTileRows heads. SIMD sources include this file after "hwy/foreach_target.h"; it is read once
// per target.
#if defined(ETA_KERNELS_CPU_TILE_PRODUCT_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_TILE_PRODUCT_INL_H_
#undef ETA_KERNELS_CPU_TILE_PRODUCT_INL_H_
#else
#define ETA_KERNELS_CPU_TILE_PRODUCT_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/simd/kv_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

#undef ETA_UNROLL
#if HWY_COMPILER_CLANG
#define ETA_UNROLL _Pragma("clang loop unroll(full)")
#else
#define ETA_UNROLL _Pragma("GCC unroll 16")
#endif

// Sums stay in registers: 16 of 32 registers with 512-bit vectors, 8 of 16 elsewhere.
inline constexpr int kMaxTileRows = HWY_MAX_BYTES == 64 ? 8 : 4;

template <class Elements>
struct Tile {
  const typename Elements::Stored* data;  // B, rows `stride` elements apart
  size_t stride;
  size_t depth;    // rows of B to multiply
  size_t columns;  // n, a multiple of 16
  ptrdiff_t next;  // elements from here to the next tile to be read; 0 = none
};

// Multiplies kVecs vectors of columns, beginning at `column`. C rows are c + rows[r] *
// kTileRowStride.
template <class Elements, int kRows, int kVecs, bool kAccumulate>
HWY_INLINE void MultiplyStrip(const float* HWY_RESTRICT a, const Tile<Elements>& tile,
                              size_t column, const uint8_t* HWY_RESTRICT rows,
                              float* HWY_RESTRICT c) {
  const hn::ScalableTag<float> df;
  using V = hn::Vec<decltype(df)>;
  constexpr size_t kLanes = hn::MaxLanes(df);
  constexpr size_t kStripBytes = kVecs * kLanes * sizeof(typename Elements::Stored);
  constexpr size_t kLines = kStripBytes > 64 ? kStripBytes / 64 : 1;
  constexpr size_t kLineElements = 64 / sizeof(typename Elements::Stored);

  V sums[kRows][kVecs];
  ETA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ETA_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      if constexpr (kAccumulate) {
        sums[r][v] = hn::LoadU(df, c + rows[r] * kTileRowStride + column + v * kLanes);
      } else {
        sums[r][v] = hn::Zero(df);
      }
    }
  }
  const typename Elements::Stored* HWY_RESTRICT b = tile.data + column;
  for (size_t k = 0; k < tile.depth; ++k, b += tile.stride) {
    ETA_UNROLL
    for (size_t line = 0; line < kLines; ++line) {
      // The prefetch goes to L2, which takes more requests at once than L1.
      __builtin_prefetch(b + tile.next + line * kLineElements, 0, 2);
    }
    V elements[kVecs];
    ETA_UNROLL
    for (int v = 0; v < kVecs; ++v) elements[v] = LoadElements(Elements(), df, b + v * kLanes);
    ETA_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const V factor = hn::Set(df, a[r * kTileRowStride + k]);
      ETA_UNROLL
      for (int v = 0; v < kVecs; ++v) sums[r][v] = hn::MulAdd(factor, elements[v], sums[r][v]);
    }
  }
  ETA_UNROLL
  for (int r = 0; r < kRows; ++r) {
    ETA_UNROLL
    for (int v = 0; v < kVecs; ++v) {
      hn::StoreU(sums[r][v], df, c + rows[r] * kTileRowStride + column + v * kLanes);
    }
  }
}

template <class Elements, int kRows, bool kAccumulate>
HWY_NOINLINE void MultiplyRows(const float* HWY_RESTRICT a, const Tile<Elements>& tile,
                               const uint8_t* HWY_RESTRICT rows, float* HWY_RESTRICT c) {
  const hn::ScalableTag<float> df;
  constexpr size_t kLanes = hn::MaxLanes(df);
  // Few rows take wider strips; otherwise the sums would wait for each other.
  constexpr int kVecs = kRows * 2 <= kMaxTileRows ? 4 : 2;
  size_t column = 0;
  for (; column + kVecs * kLanes <= tile.columns; column += kVecs * kLanes) {
    MultiplyStrip<Elements, kRows, kVecs, kAccumulate>(a, tile, column, rows, c);
  }
  for (; column < tile.columns; column += kLanes) {
    MultiplyStrip<Elements, kRows, 1, kAccumulate>(a, tile, column, rows, c);
  }
}

// C row rows[r] (+)= row r of A times B. The order of each sum depends on depth alone.
template <class Elements, bool kAccumulate>
HWY_INLINE void Multiply(const float* HWY_RESTRICT a, Tile<Elements> tile, size_t num_rows,
                         const uint8_t* HWY_RESTRICT rows, float* HWY_RESTRICT c) {
  for (size_t row = 0; row < num_rows; row += kMaxTileRows) {
    const float* from = a + row * kTileRowStride;
    const uint8_t* to = rows + row;
    switch (std::min<size_t>(num_rows - row, kMaxTileRows)) {
      case 1:
        MultiplyRows<Elements, 1, kAccumulate>(from, tile, to, c);
        break;
      case 2:
        MultiplyRows<Elements, 2, kAccumulate>(from, tile, to, c);
        break;
      case 3:
        MultiplyRows<Elements, 3, kAccumulate>(from, tile, to, c);
        break;
      case 4:
        MultiplyRows<Elements, 4, kAccumulate>(from, tile, to, c);
        break;
#if HWY_MAX_BYTES == 64
      case 5:
        MultiplyRows<Elements, 5, kAccumulate>(from, tile, to, c);
        break;
      case 6:
        MultiplyRows<Elements, 6, kAccumulate>(from, tile, to, c);
        break;
      case 7:
        MultiplyRows<Elements, 7, kAccumulate>(from, tile, to, c);
        break;
      case 8:
        MultiplyRows<Elements, 8, kAccumulate>(from, tile, to, c);
        break;
#endif
    }
    tile.next = 0;  // the next tile is prefetched once, not for each group of rows
  }
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
