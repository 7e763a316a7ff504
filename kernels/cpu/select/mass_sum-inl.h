// Sums of exponentials, lane by lane, for the target that is being compiled: SIMD sources include
// this file after "hwy/foreach_target.h"; it is read once per target.
#if defined(ETA_KERNELS_CPU_SELECT_MASS_SUM_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_SELECT_MASS_SUM_INL_H_
#undef ETA_KERNELS_CPU_SELECT_MASS_SUM_INL_H_
#else
#define ETA_KERNELS_CPU_SELECT_MASS_SUM_INL_H_
#endif

#include <cmath>
#include <cstddef>

#include "hwy/highway.h"
#include "kernels/cpu/simd/simd_math-inl.h"

#ifndef ETA_KERNELS_CPU_SELECT_MASS_SUM_ONCE_
#define ETA_KERNELS_CPU_SELECT_MASS_SUM_ONCE_
namespace eta::cpu {

// Below every exponent; finite, so that differences are numbers.
inline constexpr float kNoMass = -1e30f;

}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Sums of exponentials of one query: sum * e^base in every lane.
class MassSum {
 public:
  using Tag = hn::ScalableTag<float>;
  using Lanes = hn::Vec<Tag>;

  MassSum(float* base, float* sum) : base_(base), sum_(sum) {}

  void Clear() const {
    hn::Store(hn::Set(Tag(), kNoMass), Tag(), base_);
    hn::Store(hn::Zero(Tag()), Tag(), sum_);
  }

  // Adds the exponentials of all `exponents`, of which -infinity adds nothing. `max`: not below any
  // of them.
  template <size_t kCount>
  HWY_INLINE void Add(const Lanes (&exponents)[kCount], Lanes max) const {
    const Tag df;
    Lanes base = hn::Load(df, base_);
    Lanes sum = hn::Load(df, sum_);
    if (!hn::AllFalse(df, hn::Gt(max, hn::Add(base, hn::Set(df, kMaxSlack))))) {
      const Lanes renewed = hn::Max(base, max);
      sum = hn::Mul(sum, Exp(df, hn::Sub(base, renewed)));
      base = renewed;
      hn::Store(base, df, base_);
    }
#pragma GCC unroll 2
    for (size_t i = 0; i < kCount; ++i) {
      sum = hn::Add(sum, Exp(df, hn::Sub(exponents[i], base)));
    }
    hn::Store(sum, df, sum_);
  }

  // The log of the sum over lanes; -infinity of none.
  float Log() const {
    const Tag df;
    const Lanes bases = hn::Load(df, base_);
    const Lanes base = hn::MaxOfLanes(df, bases);
    const Lanes sum = hn::Mul(hn::Load(df, sum_), Exp(df, hn::Sub(bases, base)));
    return hn::GetLane(base) + std::log(hn::GetLane(hn::SumOfLanes(df, sum)));
  }

 private:
  float* base_;
  float* sum_;
};

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
