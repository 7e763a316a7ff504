// Vector exponential and sigmoid in float32, for the target that is being compiled.
// Included by SIMD sources after "hwy/foreach_target.h"; read once per target.
#if defined(ETA_KERNELS_CPU_SIMD_MATH_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_SIMD_MATH_INL_H_
#undef ETA_KERNELS_CPU_SIMD_MATH_INL_H_
#else
#define ETA_KERNELS_CPU_SIMD_MATH_INL_H_
#endif

#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// e^x for -87.33 <= x <= 88.37 or NaN, relative error below 3e-7; e^0 is exactly 1.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpInRange(D d, V x) {
  const hn::RebindToSigned<D> di;
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::MulAdd(x, hn::Set(d, 1.44269504088896341f), magic);
  const V n = hn::Sub(shifted, magic);
#if HWY_NATIVE_FMA
  const V r = hn::NegMulAdd(n, hn::Set(d, 0.693147180559945f), x);
#else
  // n * 0.693359375 is exact: the constant has 9 bits.
  V r = hn::NegMulAdd(n, hn::Set(d, 0.693359375f), x);
  r = hn::NegMulAdd(n, hn::Set(d, -2.12194440e-4f), r);
#endif
  // Minimax over |r| <= ln(2) / 2, the first two coefficients held at 1.
  V p = hn::MulAdd(hn::Set(d, 8.3124323929e-3f), r, hn::Set(d, 4.1890990281e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.6667118156e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 4.9999225822e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  return hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
}

// The clamps keep NaN: x86 returns the second operand of Min and Max when either is NaN.

// e^x: 0 below -87.33, finite (2.4e38) above 88.37.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  const V lowest = hn::Set(d, -87.33f);
  const V y = ExpInRange(d, hn::Min(hn::Set(d, 88.37f), hn::Max(lowest, x)));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), y);
}

// e^x for x <= 0 or NaN; 0 below -87.33.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ExpNonPositive(D d, V x) {
  const V lowest = hn::Set(d, -87.33f);
  return hn::IfThenZeroElse(hn::Lt(x, lowest), ExpInRange(d, hn::Max(lowest, x)));
}

// 1 / x for 1 <= x, within 2 units in the last place.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V ReciprocalFromOne(D d, V x) {
#if HWY_TARGET == HWY_AVX2 || HWY_TARGET == HWY_AVX3 || HWY_TARGET == HWY_AVX3_DL
  // At least 11.4 bits, doubled by one Newton step; a division of 16 lanes takes 16 cycles.
  const V approximate = hn::ApproximateReciprocal(x);
  return hn::Mul(approximate, hn::NegMulAdd(x, approximate, hn::Set(d, 2.0f)));
#else
  return hn::Div(hn::Set(d, 1.0f), x);
#endif
}

// 1 / (1 + e^-x); 0 and 1 at the infinities, NaN for NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V SigmoidOfNegated(D d, V minus_x) {
  const V clamped = hn::Min(hn::Set(d, 88.37f), hn::Max(hn::Set(d, -87.33f), minus_x));
  return ReciprocalFromOne(d, hn::Add(hn::Set(d, 1.0f), ExpInRange(d, clamped)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Sigmoid(D d, V x) {
  return SigmoidOfNegated(d, hn::Neg(x));
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
