#include "training/cpu/vector_math.h"

#include <algorithm>

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "training/cpu/vector_math.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd_math-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::training::cpu {
namespace HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;
namespace math = eta::cpu::HWY_NAMESPACE;
using Float = hn::ScalableTag<float>;
using Floats = hn::Vec<Float>;

// The elements of a row, a vector at a time; the last ones in a vector that is padded with 0.
HWY_INLINE Floats LoadSome(Float d, const float* x, int64_t count) {
  HWY_ALIGN float padded[hn::MaxLanes(d)] = {};
  std::copy_n(x, count, padded);
  return hn::Load(d, padded);
}

HWY_INLINE void StoreSome(Float d, Floats x, float* out, int64_t count) {
  HWY_ALIGN float padded[hn::MaxLanes(d)];
  hn::Store(x, d, padded);
  std::copy_n(padded, count, out);
}

float DotOnTarget(const float* a, const float* b, int64_t count) {
  const Float d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  Floats s0 = hn::Zero(d);
  Floats s1 = s0;
  int64_t i = 0;
  for (; i + 2 * lanes <= count; i += 2 * lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
    s1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), s1);
  }
  for (; i < count; i += lanes) {
    const int64_t some = std::min(lanes, count - i);
    s0 = hn::MulAdd(LoadSome(d, a + i, some), LoadSome(d, b + i, some), s0);
  }
  return hn::GetLane(hn::SumOfLanes(d, hn::Add(s0, s1)));
}

void SiluTimesOnTarget(const float* gate, const float* up, float* out, int64_t count) {
  const Float d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    hn::StoreU(hn::Mul(math::Silu(d, hn::LoadU(d, gate + i)), hn::LoadU(d, up + i)), d, out + i);
  }
  if (i == count) return;
  const Floats rest = LoadSome(d, gate + i, count - i);
  StoreSome(d, hn::Mul(math::Silu(d, rest), LoadSome(d, up + i, count - i)), out + i, count - i);
}

// The gradients of gate and up.
HWY_INLINE void SiluGradients(Float d, Floats gate, Floats up, Floats grad, Floats& grad_gate,
                              Floats& grad_up) {
  const Floats one = hn::Set(d, 1.0f);
  const Floats sigmoid = hn::Div(one, hn::Add(one, math::Exp(d, hn::Neg(gate))));
  grad_up = hn::Mul(grad, hn::Mul(gate, sigmoid));
  const Floats slope = hn::Mul(sigmoid, hn::MulAdd(gate, hn::Sub(one, sigmoid), one));
  grad_gate = hn::Mul(hn::Mul(grad, up), slope);
}

void SiluTimesBackwardOnTarget(const float* gate, const float* up, const float* grad,
                               float* grad_gate, float* grad_up, int64_t count) {
  const Float d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  Floats by_gate;
  Floats by_up;
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    SiluGradients(d, hn::LoadU(d, gate + i), hn::LoadU(d, up + i), hn::LoadU(d, grad + i), by_gate,
                  by_up);
    hn::StoreU(by_gate, d, grad_gate + i);
    hn::StoreU(by_up, d, grad_up + i);
  }
  if (i == count) return;
  const int64_t some = count - i;
  SiluGradients(d, LoadSome(d, gate + i, some), LoadSome(d, up + i, some),
                LoadSome(d, grad + i, some), by_gate, by_up);
  StoreSome(d, by_gate, grad_gate + i, some);
  StoreSome(d, by_up, grad_up + i, some);
}

float LargestOnTarget(const float* x, int64_t count) {
  const Float d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  Floats largest = hn::Set(d, x[0]);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) largest = hn::Max(largest, hn::LoadU(d, x + i));
  float result = hn::GetLane(hn::MaxOfLanes(d, largest));
  for (; i < count; ++i) result = std::max(result, x[i]);
  return result;
}

float ExpShiftedOnTarget(float* x, float shift, int64_t count) {
  const Float d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const Floats shifts = hn::Set(d, shift);
  Floats sum = hn::Zero(d);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Floats y = math::Exp(d, hn::Sub(hn::LoadU(d, x + i), shifts));
    hn::StoreU(y, d, x + i);
    sum = hn::Add(sum, y);
  }
  float total = hn::GetLane(hn::SumOfLanes(d, sum));
  if (i == count) return total;
  StoreSome(d, math::Exp(d, hn::Sub(LoadSome(d, x + i, count - i), shifts)), x + i, count - i);
  for (; i < count; ++i) total += x[i];
  return total;
}

void GatesOnTarget(const AttentionGate& gate, float tau, const float* scores, float* open,
                   float* closed) {
  const Float d;
  const Floats one = hn::Set(d, 1.0f);
  const Floats taus = hn::Set(d, tau);
  const Floats beta = hn::Set(d, gate.beta);
  for (size_t i = 0; i < kTileKeys; i += hn::Lanes(d)) {
    const Floats x = hn::Mul(beta, hn::Sub(hn::LoadU(d, scores + i), taus));
    // e^-|x|: neither side overflows.
    const Floats e = math::Exp(d, hn::Neg(hn::Abs(x)));
    const Floats near = hn::Div(one, hn::Add(one, e));
    const Floats far = hn::Mul(e, near);
    const auto positive = hn::Ge(x, hn::Zero(d));
    hn::StoreU(hn::IfThenElse(positive, near, far), d, open + i);
    hn::StoreU(hn::IfThenElse(positive, far, near), d, closed + i);
  }
}

void LogitsOnTarget(const AttentionGate& gate, const float* scores, const float* open,
                    const float* closed, float* logits) {
  const Float d;
  const Floats strength = hn::Set(d, gate.strength);
  const Floats rest = hn::Set(d, 1.0f - gate.strength);
  const Floats penalty = hn::Set(d, gate.strength * kAdditivePenalty);
  for (size_t i = 0; i < kTileKeys; i += hn::Lanes(d)) {
    const Floats s = hn::LoadU(d, scores + i);
    hn::StoreU(gate.kind == GateKind::kSilu
                   ? hn::Mul(s, hn::MulAdd(strength, hn::LoadU(d, open + i), rest))
                   : hn::NegMulAdd(penalty, hn::LoadU(d, closed + i), s),
               d, logits + i);
  }
}

float GatedBackwardOnTarget(const AttentionGate& gate, const RowScalars& scalars, int32_t keys,
                            const RowBackward& row) {
  const Float d;
  const Floats zero = hn::Zero(d);
  const Floats one = hn::Set(d, 1.0f);
  const Floats lse = hn::Set(d, scalars.lse);
  const Floats mean = hn::Set(d, scalars.mean);
  const Floats grad_gate_sum = hn::Set(d, scalars.grad_gate_sum);
  const Floats beta = hn::Set(d, gate.beta);
  const Floats strength = hn::Set(d, gate.strength);
  const Floats rest = hn::Set(d, 1.0f - gate.strength);
  const Floats penalty = hn::Set(d, gate.strength * kAdditivePenalty);
  const bool silu = gate.kind == GateKind::kSilu;
  const bool gated = gate.kind != GateKind::kNone;
  Floats sum = zero;
  for (size_t i = 0; i < kTileKeys; i += hn::Lanes(d)) {
    const auto inside =
        hn::FirstN(d, static_cast<size_t>(std::max<int64_t>(0, keys - static_cast<int64_t>(i))));
    const Floats p =
        hn::IfThenElseZero(inside, math::Exp(d, hn::Sub(hn::LoadU(d, row.weights + i), lse)));
    const Floats grad_logit =
        hn::IfThenElseZero(inside, hn::Mul(p, hn::Sub(hn::LoadU(d, row.grad_weights + i), mean)));
    hn::StoreU(p, d, row.weights + i);
    if (!gated) {
      hn::StoreU(grad_logit, d, row.grad_scores + i);
      continue;
    }
    const Floats open = hn::LoadU(d, row.open + i);
    const Floats by_gate = silu ? hn::Mul(strength, hn::LoadU(d, row.scores + i)) : penalty;
    const Floats by_score = silu ? hn::MulAdd(strength, open, rest) : one;
    const Floats slope = hn::Mul(beta, hn::Mul(open, hn::LoadU(d, row.closed + i)));
    const Floats through_gate =
        hn::IfThenElseZero(inside, hn::Mul(hn::MulAdd(grad_logit, by_gate, grad_gate_sum), slope));
    sum = hn::Add(sum, through_gate);
    hn::StoreU(hn::MulAdd(grad_logit, by_score, through_gate), d, row.grad_scores + i);
  }
  return hn::GetLane(hn::SumOfLanes(d, sum));
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::training::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::training::cpu {

HWY_EXPORT(DotOnTarget);
HWY_EXPORT(SiluTimesOnTarget);
HWY_EXPORT(SiluTimesBackwardOnTarget);
HWY_EXPORT(LargestOnTarget);
HWY_EXPORT(ExpShiftedOnTarget);
HWY_EXPORT(GatesOnTarget);
HWY_EXPORT(LogitsOnTarget);
HWY_EXPORT(GatedBackwardOnTarget);

float Dot(const float* a, const float* b, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(DotOnTarget)(a, b, count);
}
double SumOfSquares(const float* x, int64_t count) {
  constexpr int64_t kRun = 1024;
  double sum = 0.0;
  for (int64_t i = 0; i < count; i += kRun) {
    const int64_t run = std::min(kRun, count - i);
    sum += static_cast<double>(Dot(x + i, x + i, run));
  }
  return sum;
}
void SiluTimes(const float* gate, const float* up, float* out, int64_t count) {
  HWY_DYNAMIC_DISPATCH(SiluTimesOnTarget)(gate, up, out, count);
}
void SiluTimesBackward(const float* gate, const float* up, const float* grad, float* grad_gate,
                       float* grad_up, int64_t count) {
  HWY_DYNAMIC_DISPATCH(SiluTimesBackwardOnTarget)(gate, up, grad, grad_gate, grad_up, count);
}
float Largest(const float* x, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(LargestOnTarget)(x, count);
}
float ExpShifted(float* x, float shift, int64_t count) {
  return HWY_DYNAMIC_DISPATCH(ExpShiftedOnTarget)(x, shift, count);
}
void Gates(const AttentionGate& gate, float tau, const float* scores, float* open, float* closed) {
  HWY_DYNAMIC_DISPATCH(GatesOnTarget)(gate, tau, scores, open, closed);
}
void Logits(const AttentionGate& gate, const float* scores, const float* open, const float* closed,
            float* logits) {
  HWY_DYNAMIC_DISPATCH(LogitsOnTarget)(gate, scores, open, closed, logits);
}
float GatedBackward(const AttentionGate& gate, const RowScalars& scalars, int32_t keys,
                    const RowBackward& row) {
  return HWY_DYNAMIC_DISPATCH(GatedBackwardOnTarget)(gate, scalars, keys, row);
}

}  // namespace eta::training::cpu
#endif  // HWY_ONCE
