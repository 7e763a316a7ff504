// Vector exponential, gate and sum of exponentials in float32, for the target that is being
// compiled. SIMD sources include this file after "hwy/foreach_target.h"; it is read once per
// target.
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

inline constexpr float kLog2E = 1.44269504f;

// Softmax over blocks: a query's weights refer to a maximum, which is renewed only when a logit
// passes it by this much. Weights stay below e^8, and sums are rescaled only a few times per query.
inline constexpr float kMaxSlack = 8.0f;

// 2^x, relative error below 2e-7. 2^0 is exactly 1, and NaN stays NaN. Below -126 the result is a
// denormal number or 0; above 127 it is infinity or some number of at least 2^126.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp2(D d, V x) {
#if HWY_TARGET == HWY_AVX3
  // Two instructions that need no limits: x - floor(x), and p * 2^floor(x).
  const V r{_mm512_reduce_ps(x.raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
#else
  // The clamps keep NaN: x86 returns the second operand of Min and Max if either is NaN.
  const V lowest = hn::Set(d, -126.0f);
  const V clamped = hn::Min(hn::Set(d, 127.0f), hn::Max(lowest, x));
  // Adding 1.5 * 2^23 rounds to an integer and leaves it in the low bits of the mantissa.
  const V magic = hn::Set(d, 12582912.0f);
  const V shifted = hn::Add(hn::Sub(clamped, hn::Set(d, 0.5f)), magic);
  const V r = hn::Sub(clamped, hn::Sub(shifted, magic));
#endif
  // A minimax polynomial over 0 <= r <= 1 whose first coefficient is held at 1.
  V p = hn::MulAdd(hn::Set(d, 1.8671301e-3f), r, hn::Set(d, 9.0170303e-3f));
  p = hn::MulAdd(p, r, hn::Set(d, 5.5799913e-2f));
  p = hn::MulAdd(p, r, hn::Set(d, 2.4016445e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 6.9315131e-1f));
  p = hn::MulAdd(p, r, hn::Set(d, 1.0f));
#if HWY_TARGET == HWY_AVX3
  return V{_mm512_scalef_ps(p.raw, x.raw)};
#else
  const hn::RebindToSigned<D> di;
  const auto exponent = hn::ShiftLeft<23>(hn::BitCast(di, shifted));
  const V y = hn::BitCast(d, hn::Add(hn::BitCast(di, p), exponent));
  return hn::IfThenZeroElse(hn::Lt(x, lowest), y);
#endif
}

// x / (1 + 2^y): x times sigma(-y * ln(2)).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gated(D d, V x, V y) {
  return hn::Div(x, hn::Add(hn::Set(d, 1.0f), Exp2(d, y)));
}

template <class D, class V = hn::Vec<D>>
HWY_INLINE V Silu(D d, V x) {
  return Gated(d, x, hn::Mul(x, hn::Set(d, -kLog2E)));
}

// GELU in its form with tanh, since 0.5 (1 + tanh(u)) is sigma(2u).
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Gelu(D d, V x) {
  constexpr float kLinear = 1.59576912f * kLog2E;  // 2 sqrt(2/pi)
  const V square = hn::Mul(x, x);
  const V slope = hn::MulAdd(square, hn::Set(d, -0.044715f * kLinear), hn::Set(d, -kLinear));
  return Gated(d, x, hn::Mul(x, slope));
}

// e^x, with the limits of Exp2.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V Exp(D d, V x) {
  return Exp2(d, hn::Mul(x, hn::Set(d, kLog2E)));
}

// log(e^a + e^b), absolute error below 3e-7 beside the rounding of the result. REQUIRES: not both
// -infinity. NaN of either gives NaN.
template <class D, class V = hn::Vec<D>>
HWY_INLINE V LogAdd(D d, V a, V b) {
  const V x = Exp(d, hn::Neg(hn::Abs(hn::Sub(a, b))));
  // log(1 + x), 0 <= x <= 1, is 2 atanh(s) with s = x / (2 + x), at most 1/3.
  const V s = hn::Div(x, hn::Add(hn::Set(d, 2.0f), x));
  const V s2 = hn::Mul(s, s);
  V p = hn::MulAdd(hn::Set(d, 1.0f / 13), s2, hn::Set(d, 1.0f / 11));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 9));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 7));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 5));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f / 3));
  p = hn::MulAdd(p, s2, hn::Set(d, 1.0f));
  return hn::MulAdd(hn::Add(s, s), p, hn::Max(a, b));
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
