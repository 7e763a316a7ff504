// Records as the columns of a matrix, widened to float32, and products of queries with such
// columns, for the target that is being compiled: SIMD sources include this file after
// "hwy/foreach_target.h"; it is read once per target.
#if defined(ETA_KERNELS_CPU_SELECT_RECORD_PANEL_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_SELECT_RECORD_PANEL_INL_H_
#undef ETA_KERNELS_CPU_SELECT_RECORD_PANEL_INL_H_
#else
#define ETA_KERNELS_CPU_SELECT_RECORD_PANEL_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/kv_elements-inl.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

constexpr size_t kPanelBlocks = 2 * kLanes;  // records of a panel

// Records of consecutive blocks, one per column.
struct Panel {
  float* vectors;  // [sums][d][kPanelBlocks]: mu, sigma^2 and, of kind outlier, the outlier
  float* scales;   // [2][kPanelBlocks]: steps of kind outlier; else the largest norms
};

inline size_t PanelFloats(size_t sums, size_t d) {
  return (sums * d + 2) * kPanelBlocks;
}

// `d` elements become a column; kSquared: their squares. load(i) gives a vector from element i on.
template <bool kSquared, class Load>
HWY_INLINE void LoadColumn(const Load& load, size_t d, float* column) {
  const Float df;
  for (size_t i = 0; i < d; i += kLanes) {
    alignas(64) float lanes[kLanes];
    const Floats values = load(i);
    hn::Store(kSquared ? hn::Mul(values, values) : values, df, lanes);
    for (size_t lane = 0; lane < kLanes; ++lane) column[(i + lane) * kPanelBlocks] = lanes[lane];
  }
}

// The record becomes column `r`.
template <bool kOutlier>
HWY_NOINLINE void LoadRecord(const KvTile& layout, std::byte* record, size_t r,
                             const Panel& panel) {
  const auto d = static_cast<size_t>(layout.head_dim);
  float* const column = panel.vectors + r;
  float* const scale = panel.scales + r;
  if constexpr (kOutlier) {
    const auto bytes = [](const auto* from) {
      return [from](size_t i) { return LoadBytes(Float(), from + i); };
    };
    LoadColumn<false>(bytes(layout.Mu8(record)), d, column);
    LoadColumn<true>(bytes(layout.Sigma8(record)), d, column + d * kPanelBlocks);
    LoadColumn<false>(bytes(layout.Outlier8(record)), d, column + 2 * d * kPanelBlocks);
    scale[0] = HalfToFloat(layout.Steps(record)[0]);
    scale[kPanelBlocks] = HalfToFloat(layout.Steps(record)[1]);
  } else {
    const auto halves = [](const uint16_t* from) {
      return [from](size_t i) { return LoadElements(Float16Elements(), Float(), from + i); };
    };
    LoadColumn<false>(halves(layout.Mu(record)), d, column);
    LoadColumn<true>(halves(layout.Sigma(record)), d, column + d * kPanelBlocks);
    scale[0] = *layout.MaxNorm(record);
  }
}

constexpr auto kQueries = static_cast<size_t>(kTileRows);  // of a product

// Two neighbouring vectors of a row-major matrix.
struct PanelColumns {
  const float* data;
  size_t stride;

  HWY_INLINE void Load(size_t k, Floats (&columns)[2]) const {
    const Float d;
    columns[0] = hn::Load(d, data + k * stride);
    columns[1] = hn::Load(d, data + k * stride + kLanes);
  }
};

// products [kQueries][kPanelBlocks] = queries [depth][kQueries] * columns [depth][...].
HWY_NOINLINE void MultiplyQueries(const float* queries, size_t depth, const PanelColumns& columns,
                                  float* products) {
  const Float d;
  Floats acc[kTileRows][2];
  ClearTile(acc);
  MultiplyTile<kTileRows, 2, kQueries, 1>(queries, depth, columns, acc);
#pragma GCC unroll 16
  for (size_t r = 0; r < kQueries; ++r) {
    hn::Store(acc[r][0], d, products + r * kPanelBlocks);
    hn::Store(acc[r][1], d, products + r * kPanelBlocks + kLanes);
  }
}

// The lanes before `count`.
HWY_INLINE hn::Mask<Float> FirstLanes(int32_t count) {
  const auto lanes = static_cast<int32_t>(kLanes);
  return hn::FirstN(Float(), static_cast<size_t>(std::clamp(count, 0, lanes)));
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
