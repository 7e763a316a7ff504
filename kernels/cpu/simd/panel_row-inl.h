// One k of a panel of weights (matmul.h) as float32 vectors.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_PANEL_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_PANEL_ROW_INL_H_
#undef ETA_KERNELS_CPU_PANEL_ROW_INL_H_
#else
#define ETA_KERNELS_CPU_PANEL_ROW_INL_H_
#endif

#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/matmul.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/kv_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

inline constexpr size_t kPanelWidth = static_cast<size_t>(kPanelCols);
inline constexpr size_t kHalfPanel = kPanelWidth / 2;

// One row of a panel as vectors: columns [lane, lane + L) and [lane + 16, lane + 16 + L).
template <Storage kStorage>
HWY_INLINE void LoadColumns(const std::byte* row, size_t lane, Floats& low, Floats& high) {
  const Float d;
  if constexpr (kStorage == Storage::kFloat32) {
    const auto* from = reinterpret_cast<const float*>(row) + lane;
    low = hn::LoadU(d, from);
    high = hn::LoadU(d, from + kHalfPanel);
  } else if constexpr (kStorage == Storage::kFloat16) {
    const auto* from = reinterpret_cast<const uint16_t*>(row) + lane;
    low = LoadElements(Float16Elements(), d, from);
    high = LoadElements(Float16Elements(), d, from + kHalfPanel);
  } else {
    const hn::RebindToUnsigned<Float> du;
    const auto pairs = hn::LoadU(du, reinterpret_cast<const uint32_t*>(row) + lane);
    low = hn::BitCast(d, hn::ShiftLeft<16>(pairs));
    high = hn::BitCast(d, hn::And(pairs, hn::Set(du, 0xFFFF0000u)));
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
