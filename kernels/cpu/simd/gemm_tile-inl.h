// The register tile of every dense product: rows x (a few vectors of columns), with one float32
// accumulator per element. The sum over the depth runs in ascending order, the same for every
// number of rows. So an element's bits depend on its own row and column only.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_GEMM_TILE_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_GEMM_TILE_INL_H_
#undef ETA_KERNELS_CPU_GEMM_TILE_INL_H_
#else
#define ETA_KERNELS_CPU_GEMM_TILE_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// At most 16 lanes: weights and keys are arranged in 32 columns, at most two vectors.
using Float = hn::CappedTag<float, 16>;
using Floats = hn::Vec<Float>;
inline constexpr size_t kLanes = HWY_MIN(HWY_MAX_BYTES / sizeof(float), 16);

// The accumulators that fit beside the operands, in 32 registers or in 16.
inline constexpr int kMaxAccumulators = HWY_MAX_BYTES >= 64 ? 24 : 12;
inline constexpr int kTileRows = kMaxAccumulators / 2;

// acc[r][v] += sum over k of a[k * kStepA + r * kRowA] * columns v of b's row k. b.Load(k, v) fills
// the vectors of row k.
template <int kRows, int kVectors, size_t kStepA, size_t kRowA, class LoadB>
HWY_INLINE void MultiplyTile(const float* HWY_RESTRICT a, size_t depth, const LoadB& b,
                             Floats (&acc)[kRows][kVectors]) {
  const Float d;
  for (size_t k = 0; k < depth; ++k) {
    Floats columns[kVectors];
    b.Load(k, columns);
#pragma GCC unroll 16
    for (int r = 0; r < kRows; ++r) {
      const Floats row = hn::Set(d, a[static_cast<size_t>(r) * kRowA]);
#pragma GCC unroll 8
      for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::MulAdd(row, columns[v], acc[r][v]);
    }
    a += kStepA;
  }
}

template <int kRows, int kVectors>
HWY_INLINE void ClearTile(Floats (&acc)[kRows][kVectors]) {
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
#pragma GCC unroll 8
    for (int v = 0; v < kVectors; ++v) acc[r][v] = hn::Zero(Float());
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
