// Sums and maxima of as many vectors as a vector has lanes, for the target that is being compiled.
// SIMD sources include this file after "hwy/foreach_target.h"; it is read once per target.
#if defined(ETA_KERNELS_CPU_TRANSPOSE_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_TRANSPOSE_SUM_INL_H_
#undef ETA_KERNELS_CPU_TRANSPOSE_SUM_INL_H_
#else
#define ETA_KERNELS_CPU_TRANSPOSE_SUM_INL_H_
#endif

#include <cstddef>

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

struct AddOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Add(a, b);
  }
};
struct MaxOp {
  template <class V>
  HWY_INLINE V operator()(V a, V b) const {
    return hn::Max(a, b);
  }
};

// Lane i of the result is the sum (AddOp) of the lanes of vector i at table + i * lanes. Each step
// halves the number of vectors: one bit of a vector's number becomes that bit of the lane's number.
// This takes about one shuffle per sum; summing one vector at a time takes four.
template <class Op>
HWY_INLINE hn::Vec<hn::ScalableTag<float>> TransposeReduce(const float* HWY_RESTRICT table) {
  const hn::ScalableTag<float> df;
  const Op op;
  using V = hn::Vec<decltype(df)>;
  constexpr size_t kLanes = hn::MaxLanes(df);
  V v[kLanes];
#pragma GCC unroll 16
  for (size_t i = 0; i < kLanes; ++i) v[i] = hn::Load(df, table + i * kLanes);
#if HWY_MAX_BYTES >= 32
#pragma GCC unroll 16
  for (size_t i = 0; i < kLanes / 2; ++i) {  // halves
    const V a = v[i];
    const V b = v[i + kLanes / 2];
    v[i] = op(hn::ConcatUpperLower(df, b, a), hn::ConcatLowerUpper(df, b, a));
  }
#endif
#if HWY_MAX_BYTES == 64
#pragma GCC unroll 16
  for (size_t i = 0; i < 4; ++i) {  // blocks of 128 bits within the halves
    const V a = v[i];
    const V b = v[i + 4];
    v[i] = op(hn::OddEvenBlocks(b, a), hn::SwapAdjacentBlocks(hn::OddEvenBlocks(a, b)));
  }
#endif
  const hn::RepartitionToWide<hn::RebindToUnsigned<decltype(df)>> d64;
#pragma GCC unroll 16
  for (size_t i = 0; i < 2; ++i) {  // pairs within the blocks
    const auto a = hn::BitCast(d64, v[i]);
    const auto b = hn::BitCast(d64, v[i + 2]);
    v[i] = op(hn::BitCast(df, hn::InterleaveLower(d64, a, b)),
              hn::BitCast(df, hn::InterleaveUpper(d64, a, b)));
  }
  return op(hn::OddEven(v[1], v[0]), hn::Shuffle2301(hn::OddEven(v[0], v[1])));
}

HWY_INLINE hn::Vec<hn::ScalableTag<float>> TransposeSum(const float* HWY_RESTRICT table) {
  return TransposeReduce<AddOp>(table);
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
