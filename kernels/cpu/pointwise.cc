// RmsNorm, AddBias, NormHeads, Rope, PredictThresholds and SwiGlu: the ops that treat every row by
// itself. RmsNorm scales a row [D] to a root mean square of 1 and multiplies it with the weight
// [D], or adds that to out; NormHeads does so with every head [d] of q and k. Rope rotates q
// [HQ * d] and k [HKV * d] by the row's position. PredictThresholds computes q W^T + b [HQ]
// (eta-semantics.md, "Model"). SwiGlu computes activation(gate) * up [F] from [2F], or the clamped
// form of it.
//
// A row's sums run in one fixed order, so its bits do not depend on the batch. Each row is read
// once; the predictor also reads its whole weight [HQ, HQ * d], once for each row that it predicts.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <functional>
#include <vector>

#include "kernels/cpu/ops.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/pointwise.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd/simd_math-inl.h"

#ifndef ETA_KERNELS_CPU_POINTWISE_ONCE
#define ETA_KERNELS_CPU_POINTWISE_ONCE
namespace eta::cpu {
namespace {

// Rows of a task: enough work to be worth a hand-over to a thread.
constexpr int32_t kRowsPerTask = 8;

void ForRowRanges(Workers& workers, int64_t rows,
                  const std::function<void(int64_t begin, int64_t end)>& work) {
  workers.Run((rows + kRowsPerTask - 1) / kRowsPerTask, [&](int64_t task, int) {
    work(task * kRowsPerTask, std::min(rows, (task + 1) * kRowsPerTask));
  });
}

// RopeScaling::Turns of each coordinate pair, padded to whole vectors.
struct Frequencies {
  float theta = 0.0f;
  int32_t head_dim = 0;
  RopeScaling scaling;
  std::vector<double> turns;

  void Prepare(float new_theta, int32_t new_head_dim, const RopeScaling& new_scaling) {
    if (theta == new_theta && head_dim == new_head_dim && scaling == new_scaling) return;
    constexpr int32_t kWidest = 16;
    const int32_t half = new_head_dim / 2;
    // This comes first: if there is no memory for it, nothing has changed.
    turns.assign(static_cast<size_t>((half + kWidest - 1) / kWidest * kWidest), 0.0);
    theta = new_theta;
    head_dim = new_head_dim;
    scaling = new_scaling;
    for (int32_t i = 0; i < half; ++i) {
      turns[static_cast<size_t>(i)] = scaling.Turns(theta, head_dim, i);
    }
  }
};

}  // namespace
}  // namespace eta::cpu
#endif  // ETA_KERNELS_CPU_POINTWISE_ONCE

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

using Float = hn::ScalableTag<float>;
using Floats = hn::Vec<Float>;

// The sum of a[i] * b[i]: four chains of vectors, then the remaining elements one by one.
HWY_INLINE float Dot(const float* HWY_RESTRICT a, const float* HWY_RESTRICT b, int64_t count) {
  const Float d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  Floats s0 = hn::Zero(d);
  Floats s1 = s0;
  Floats s2 = s0;
  Floats s3 = s0;
  int64_t i = 0;
  for (; i + 4 * lanes <= count; i += 4 * lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
    s1 = hn::MulAdd(hn::LoadU(d, a + i + lanes), hn::LoadU(d, b + i + lanes), s1);
    s2 = hn::MulAdd(hn::LoadU(d, a + i + 2 * lanes), hn::LoadU(d, b + i + 2 * lanes), s2);
    s3 = hn::MulAdd(hn::LoadU(d, a + i + 3 * lanes), hn::LoadU(d, b + i + 3 * lanes), s3);
  }
  for (; i + lanes <= count; i += lanes) {
    s0 = hn::MulAdd(hn::LoadU(d, a + i), hn::LoadU(d, b + i), s0);
  }
  float sum = hn::GetLane(hn::SumOfLanes(d, hn::Add(hn::Add(s0, s1), hn::Add(s2, s3))));
  for (; i < count; ++i) sum += a[i] * b[i];
  return sum;
}

// `out` may be `x`, unless it is added to.
template <bool add = false>
HWY_INLINE void Norm(const float* x, int64_t count, const float* HWY_RESTRICT weight, float eps,
                     float* out) {
  const Float d;
  const auto lanes = static_cast<int64_t>(hn::Lanes(d));
  const float mean = Dot(x, x, count) / static_cast<float>(count);
  const float scale = 1.0f / std::sqrt(mean + eps);
  const Floats scales = hn::Set(d, scale);
  int64_t i = 0;
  for (; i + lanes <= count; i += lanes) {
    const Floats scaled = hn::Mul(hn::LoadU(d, x + i), scales);
    const Floats normed = hn::Mul(scaled, hn::LoadU(d, weight + i));
    hn::StoreU(add ? hn::Add(hn::LoadU(d, out + i), normed) : normed, d, out + i);
  }
  for (; i < count; ++i) {
    const float normed = x[i] * scale * weight[i];
    out[i] = add ? out[i] + normed : normed;
  }
}

void RmsNormOnTarget(const Context& context, const RmsNormParams& params) {
  const int64_t cols = params.x.cols;
  const auto norm_row = [&](const float* x, float* out) HWY_ATTR {
    if (params.add) {
      Norm<true>(x, cols, params.weight, params.eps, out);
    } else {
      Norm(x, cols, params.weight, params.eps, out);
    }
  };
  ForRowRanges(context.workers, params.out.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      const int64_t from = params.rows.empty() ? r : params.rows[static_cast<size_t>(r)];
      norm_row(params.x.row(from), params.out.row(r));
    }
  });
}

void AddBiasOnTarget(const Context& context, const AddBiasParams& params) {
  const int64_t cols = params.x.cols;
  const auto add_row = [&](float* x) HWY_ATTR {
    const Float d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    int64_t i = 0;
    for (; i + lanes <= cols; i += lanes) {
      hn::StoreU(hn::Add(hn::LoadU(d, x + i), hn::LoadU(d, params.bias + i)), d, x + i);
    }
    for (; i < cols; ++i) x[i] += params.bias[i];
  };
  ForRowRanges(context.workers, params.x.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) add_row(params.x.row(r));
  });
}

void NormHeadsOnTarget(const Context& context, const NormHeadsParams& params) {
  const int32_t d = params.head_dim;
  const auto norm_row = [&](float* x, int64_t cols, const float* weight) HWY_ATTR {
    for (float* head = x; head < x + cols; head += d) Norm(head, d, weight, params.eps, head);
  };
  ForRowRanges(context.workers, params.q.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      norm_row(params.q.row(r), params.q.cols, params.q_weight);
      norm_row(params.k.row(r), params.k.cols, params.k_weight);
    }
  });
}

// Cosine and sine of position * frequency for every pair of one row, times `factor`. Double
// precision reduces the angle to within an eighth of a turn of a quadrant's axis, so that far
// positions lose nothing.
HWY_INLINE void Rotations(int32_t position, const std::vector<double>& turns, float factor,
                          float* cosines, float* sines) {
  const hn::ScalableTag<double> dd;
  const hn::Rebind<float, decltype(dd)> df;
  const hn::RebindToSigned<decltype(df)> di;
  using V = hn::Vec<decltype(df)>;
  const auto at = hn::Set(dd, static_cast<double>(position));
  for (size_t i = 0; i < turns.size(); i += hn::Lanes(dd)) {
    const auto quarters = hn::Mul(hn::Mul(at, hn::LoadU(dd, turns.data() + i)), hn::Set(dd, 4.0));
    const auto quadrant = hn::Round(quarters);
    const auto rest = hn::Sub(quarters, quadrant);  // in [-1/2, 1/2] quarter turns
    const auto cycle =
        hn::NegMulAdd(hn::Floor(hn::Mul(quadrant, hn::Set(dd, 0.25))), hn::Set(dd, 4.0), quadrant);
    const V x = hn::DemoteTo(df, hn::Mul(rest, hn::Set(dd, 1.5707963267948966)));
    const auto q = hn::DemoteTo(di, cycle);  // 0 .. 3

    // Minimax polynomials on [-pi/4, pi/4], error below 1e-8.
    const V xx = hn::Mul(x, x);
    V sine = hn::MulAdd(hn::Set(df, -1.9515295891e-4f), xx, hn::Set(df, 8.3321608736e-3f));
    sine = hn::MulAdd(sine, xx, hn::Set(df, -1.6666654611e-1f));
    sine = hn::MulAdd(hn::Mul(sine, xx), x, x);
    V cosine =
        hn::MulAdd(hn::Set(df, 2.443315711809948e-5f), xx, hn::Set(df, -1.388731625493765e-3f));
    cosine = hn::MulAdd(cosine, xx, hn::Set(df, 4.166664568298827e-2f));
    cosine = hn::MulAdd(hn::Mul(cosine, xx), xx,
                        hn::NegMulAdd(hn::Set(df, 0.5f), xx, hn::Set(df, 1.0f)));

    // A quarter turn maps (cos, sin) to (-sin, cos).
    const auto odd = hn::RebindMask(df, hn::Ne(hn::And(q, hn::Set(di, 1)), hn::Zero(di)));
    const auto second = hn::ShiftLeft<30>(hn::And(q, hn::Set(di, 2)));
    const auto between = hn::ShiftLeft<30>(hn::And(hn::Add(q, hn::Set(di, 1)), hn::Set(di, 2)));
    const V c = hn::IfThenElse(odd, sine, cosine);
    const V s = hn::IfThenElse(odd, cosine, sine);
    const V factors = hn::Set(df, factor);  // 1 changes no bit
    hn::StoreU(hn::Mul(hn::Xor(c, hn::BitCast(df, between)), factors), df, cosines + i);
    hn::StoreU(hn::Mul(hn::Xor(s, hn::BitCast(df, second)), factors), df, sines + i);
  }
}

HWY_INLINE void RotateRow(float* x, int64_t width, int32_t head_dim, const float* cosines,
                          const float* sines) {
  const Float d;
  const auto lanes = static_cast<int32_t>(hn::Lanes(d));
  const int32_t half = head_dim / 2;
  for (float* head = x; head < x + width; head += head_dim) {
    int32_t i = 0;
    for (; i + lanes <= half; i += lanes) {
      const Floats a = hn::LoadU(d, head + i);
      const Floats b = hn::LoadU(d, head + half + i);
      const Floats c = hn::LoadU(d, cosines + i);
      const Floats s = hn::LoadU(d, sines + i);
      hn::StoreU(hn::NegMulAdd(b, s, hn::Mul(a, c)), d, head + i);
      hn::StoreU(hn::MulAdd(a, s, hn::Mul(b, c)), d, head + half + i);
    }
    for (; i < half; ++i) {
      const float a = head[i];
      const float b = head[half + i];
      head[i] = a * cosines[i] - b * sines[i];
      head[half + i] = b * cosines[i] + a * sines[i];
    }
  }
}

void RopeOnTarget(const Context& context, const RopeParams& params) {
  struct Rows {
    const SequenceRows* sequence;
    int32_t begin;
    int32_t end;
  };
  std::vector<Rows> tasks;
  for (const SequenceRows& sequence : context.batch.sequences) {
    for (int32_t begin = 0; begin < sequence.num_rows; begin += kRowsPerTask) {
      tasks.push_back({&sequence, begin, std::min(begin + kRowsPerTask, sequence.num_rows)});
    }
  }
  const auto rotate = [&](const Rows& rows) HWY_ATTR {
    thread_local Frequencies by_owner[2];  // of sequences and of layers, which take turns
    thread_local std::vector<float> table;
    const bool of_layer = params.theta > 0.0f;
    Frequencies& frequencies = by_owner[of_layer ? 1 : 0];
    frequencies.Prepare(of_layer ? params.theta : rows.sequence->rope_theta, params.head_dim,
                        params.scaling);
    const size_t padded = frequencies.turns.size();
    table.resize(2 * padded);
    for (int32_t i = rows.begin; i < rows.end; ++i) {
      Rotations(rows.sequence->position + i, frequencies.turns,
                static_cast<float>(params.scaling.attention_factor), table.data(),
                table.data() + padded);
      for (const TensorView* x : {&params.q, &params.k}) {
        RotateRow(x->row(rows.sequence->row_begin + i), x->cols, params.head_dim, table.data(),
                  table.data() + padded);
      }
    }
  };
  context.workers.Run(static_cast<int64_t>(tasks.size()),
                      [&](int64_t i, int) { rotate(tasks[static_cast<size_t>(i)]); });
}

void PredictThresholdsOnTarget(const Context& context, const ThresholdParams& params) {
  const int64_t heads = params.out.cols;
  const int64_t width = params.q.cols;
  const auto predict_row = [&](int64_t row) HWY_ATTR {
    for (int64_t h = 0; h < heads; ++h) {
      params.out.row(row)[h] =
          Dot(params.q.row(row), params.weight + h * width, width) + params.bias[h];
    }
  };
  std::vector<const float*> frozen(static_cast<size_t>(params.out.rows), nullptr);
  for (const SequenceRows& sequence : context.batch.sequences) {
    if (sequence.frozen_thresholds == nullptr) continue;
    std::fill_n(frozen.begin() + sequence.row_begin, sequence.num_rows,
                sequence.frozen_thresholds + params.layer * heads);
  }
  ForRowRanges(context.workers, params.out.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) {
      if (frozen[static_cast<size_t>(r)] != nullptr) {
        std::copy_n(frozen[static_cast<size_t>(r)], heads, params.out.row(r));
      } else if (params.weight == nullptr) {
        std::fill_n(params.out.row(r), heads, 0.0f);
      } else {
        predict_row(r);
      }
    }
  });
}

// NaN stays NaN.
HWY_INLINE Floats Activate(Activation activation, Floats gate, Floats up) {
  const Float d;
  if (activation == Activation::kSilu) return hn::Mul(Silu(d, gate), up);
  if (activation == Activation::kGelu) return hn::Mul(Gelu(d, gate), up);
  const Floats limit = hn::Set(d, kClampedLimit);
  const Floats lowest = hn::Set(d, -kClampedLimit);
  gate = hn::IfThenElse(hn::Gt(gate, limit), limit, gate);
  up = hn::IfThenElse(hn::Gt(up, limit), limit, hn::IfThenElse(hn::Lt(up, lowest), lowest, up));
  const Floats exponent = hn::Mul(gate, hn::Set(d, -kClampedSlope * kLog2E));
  return hn::Mul(Gated(d, gate, exponent), hn::Add(up, hn::Set(d, 1.0f)));
}

void SwiGluOnTarget(const Context& context, const SwiGluParams& params) {
  const int64_t cols = params.out.cols;
  const auto row = [&](const float* gate, float* out) HWY_ATTR {
    const Float d;
    const auto lanes = static_cast<int64_t>(hn::Lanes(d));
    const float* up = gate + cols;
    int64_t i = 0;
    for (; i + lanes <= cols; i += lanes) {
      const Floats g = hn::LoadU(d, gate + i);
      hn::StoreU(Activate(params.activation, g, hn::LoadU(d, up + i)), d, out + i);
    }
    if (i < cols) {  // the remaining elements in a padded vector: the same arithmetic
      HWY_ALIGN float rest[3][hn::MaxLanes(d)] = {};
      const auto bytes = static_cast<size_t>(cols - i) * sizeof(float);
      std::memcpy(rest[0], gate + i, bytes);
      std::memcpy(rest[1], up + i, bytes);
      const Floats g = hn::Load(d, rest[0]);
      hn::Store(Activate(params.activation, g, hn::Load(d, rest[1])), d, rest[2]);
      std::memcpy(out + i, rest[2], bytes);
    }
  };
  ForRowRanges(context.workers, params.out.rows, [&](int64_t begin, int64_t end) {
    for (int64_t r = begin; r < end; ++r) row(params.gate_up.row(r), params.out.row(r));
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(RmsNormOnTarget);
HWY_EXPORT(AddBiasOnTarget);
HWY_EXPORT(NormHeadsOnTarget);
HWY_EXPORT(RopeOnTarget);
HWY_EXPORT(PredictThresholdsOnTarget);
HWY_EXPORT(SwiGluOnTarget);

void RmsNorm(const Context& context, const RmsNormParams& params) {
  HWY_DYNAMIC_DISPATCH(RmsNormOnTarget)(context, params);
}
void AddBias(const Context& context, const AddBiasParams& params) {
  HWY_DYNAMIC_DISPATCH(AddBiasOnTarget)(context, params);
}
void NormHeads(const Context& context, const NormHeadsParams& params) {
  HWY_DYNAMIC_DISPATCH(NormHeadsOnTarget)(context, params);
}
void Rope(const Context& context, const RopeParams& params) {
  HWY_DYNAMIC_DISPATCH(RopeOnTarget)(context, params);
}
void PredictThresholds(const Context& context, const ThresholdParams& params) {
  HWY_DYNAMIC_DISPATCH(PredictThresholdsOnTarget)(context, params);
}
void SwiGlu(const Context& context, const SwiGluParams& params) {
  HWY_DYNAMIC_DISPATCH(SwiGluOnTarget)(context, params);
}

}  // namespace eta::cpu
#endif  // HWY_ONCE
