// The softmax of decode rows over one block of scores at a time, for the target that is being
// compiled: gate, weights, and the base that weights refer to. SIMD sources include this file after
// "hwy/foreach_target.h"; it is read once per target.
#if defined(ETA_KERNELS_CPU_BLOCK_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_BLOCK_SOFTMAX_INL_H_
#undef ETA_KERNELS_CPU_BLOCK_SOFTMAX_INL_H_
#else
#define ETA_KERNELS_CPU_BLOCK_SOFTMAX_INL_H_
#endif

#include <cstddef>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;

HWY_INLINE float Exp2Scalar(float x) {
  const Floats df;
  return hn::GetLane(Exp2(df, hn::Set(df, x)));
}

HWY_INLINE void Scale(float* HWY_RESTRICT values, size_t count, float factor) {
  const Floats df;
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    hn::Store(hn::Mul(hn::Load(df, values + i), hn::Set(df, factor)), df, values + i);
  }
}

// The gate as a line in log2 units: S~ = S / (1 + 2^(offset - slope * S)).
struct GateLine {
  float slope;   // beta * log2(e)
  float offset;  // slope * tau_eff
};

// Turns scores S of one head into gated logits and returns their maximum, lane by lane. kPartial:
// only `valid` tokens count, and token `own` is not gated. `own` is the row's own token; it lies
// past the end if the block does not hold it.
template <bool kGated, bool kPartial>
HWY_INLINE Vector GateScores(float* HWY_RESTRICT scores, size_t padded, size_t valid, size_t own,
                             const GateLine& gate) {
  const Floats df;
  Vector max = hn::Set(df, -std::numeric_limits<float>::infinity());
  for (size_t i = 0; i < padded; i += hn::Lanes(df)) {
    const Vector score = hn::Load(df, scores + i);
    Vector logit = score;
    if constexpr (kGated) {
      logit =
          Gated(df, score, hn::NegMulAdd(hn::Set(df, gate.slope), score, hn::Set(df, gate.offset)));
    }
    if constexpr (kPartial) {
      const Vector token = hn::Iota(df, static_cast<float>(i));
      const auto is_own = hn::Eq(token, hn::Set(df, static_cast<float>(own)));
      const auto counts = hn::Lt(token, hn::Set(df, static_cast<float>(valid)));
      logit = hn::IfThenElse(is_own, score, logit);
      logit = hn::IfThenElse(counts, logit, hn::Set(df, -std::numeric_limits<float>::infinity()));
    }
    hn::Store(logit, df, scores + i);
    max = hn::Max(max, logit);
  }
  return max;
}

// Turns logits into weights 2^(logit * log2(e) - base) - floor and adds their sum to `totals`, lane
// by lane.
HWY_INLINE void WeighLogits(float* HWY_RESTRICT logits, size_t padded, float base, float floor,
                            float* HWY_RESTRICT totals) {
  const Floats df;
  Vector total = hn::Load(df, totals);
  for (size_t i = 0; i < padded; i += hn::Lanes(df)) {
    const Vector exponent =
        hn::MulSub(hn::Load(df, logits + i), hn::Set(df, kLog2E), hn::Set(df, base));
    const Vector weight = hn::Sub(Exp2(df, exponent), hn::Set(df, floor));
    hn::Store(weight, df, logits + i);
    total = hn::Add(total, weight);
  }
  hn::Store(total, df, totals);
}

HWY_INLINE Vector GateBlock(float* scores, size_t padded, size_t valid, size_t own, bool gated,
                            const GateLine& gate) {
  const bool partial = valid < padded || own < padded;
  if (gated) {
    return partial ? GateScores<true, true>(scores, padded, valid, own, gate)
                   : GateScores<true, false>(scores, padded, valid, own, gate);
  }
  return partial ? GateScores<false, true>(scores, padded, valid, own, gate)
                 : GateScores<false, false>(scores, padded, valid, own, gate);
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
