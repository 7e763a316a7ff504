// RmsNorm, AddBias, NormHeads, Rope, PredictThresholds and SwiGlu: the ops that treat every row by
// itself. RmsNorm scales a row [D] to a root mean square of 1 and multiplies it with the weight
// [D], or adds that to out; NormHeads does so with every head [d] of q and k. Rope rotates q
// [HQ * d] and k [HKV * d] by the row's position. PredictThresholds computes q W^T + b [HQ]
// (eta-semantics.md, "Model"). SwiGlu computes activation(gate) * up [F] from [2F], or the clamped
// form of it.

#include <cmath>

#include "kernels/reference/ops.h"

namespace eta::reference {

namespace {

// `out` may be `x`, unless it is added to.
void Norm(const float* x, int64_t count, const float* weight, float eps, float* out,
          bool add = false) {
  double squares = 0.0;
  for (int64_t i = 0; i < count; ++i) squares += static_cast<double>(x[i]) * x[i];
  const double scale = 1.0 / std::sqrt(squares / static_cast<double>(count) + eps);
  for (int64_t i = 0; i < count; ++i) {
    out[i] = static_cast<float>((add ? double{out[i]} : 0.0) + x[i] * scale * weight[i]);
  }
}

}  // namespace

void RmsNorm(const RmsNormParams& params) {
  for (int64_t r = 0; r < params.out.rows; ++r) {
    const float* x = params.x.row(params.rows.empty() ? r : params.rows[static_cast<size_t>(r)]);
    Norm(x, params.x.cols, params.weight, params.eps, params.out.row(r), params.add);
  }
}

void AddBias(const AddBiasParams& params) {
  for (int64_t r = 0; r < params.x.rows; ++r) {
    float* x = params.x.row(r);
    for (int64_t i = 0; i < params.x.cols; ++i) x[i] += params.bias[i];
  }
}

void NormHeads(const NormHeadsParams& params) {
  const auto norm = [&](const TensorView& x, const float* weight) {
    for (int64_t r = 0; r < x.rows; ++r) {
      for (int64_t head = 0; head < x.cols / params.head_dim; ++head) {
        float* at = x.row(r) + head * params.head_dim;
        Norm(at, params.head_dim, weight, params.eps, at);
      }
    }
  };
  norm(params.q, params.q_weight);
  norm(params.k, params.k_weight);
}

namespace {

// Rotates every head of one row by its position's angles.
void Rotate(const TensorView& x, const Row& row, const RopeParams& params) {
  const int32_t head_dim = params.head_dim;
  const RopeScaling& scaling = params.scaling;
  const float theta = params.theta > 0.0f ? params.theta : row.sequence.rope_theta;
  const int32_t half = head_dim / 2;
  for (int32_t i = 0; i < half; ++i) {
    const double turns = scaling.Turns(theta, head_dim, i);
    const double angle = row.position * (RopeScaling::kTurn * turns);
    const double cosine = scaling.attention_factor * std::cos(angle);
    const double sine = scaling.attention_factor * std::sin(angle);
    for (int64_t head = 0; head < x.cols / head_dim; ++head) {
      float* at = x.row(row.index) + head * head_dim;
      const double a = at[i];
      const double b = at[i + half];
      at[i] = static_cast<float>(a * cosine - b * sine);
      at[i + half] = static_cast<float>(b * cosine + a * sine);
    }
  }
}

}  // namespace

void Rope(const BatchView& batch, const RopeParams& params) {
  ForEachRow(batch, [&](const Row& row) {
    Rotate(params.q, row, params);
    Rotate(params.k, row, params);
  });
}

void PredictThresholds(const BatchView& batch, const ThresholdParams& params) {
  const int64_t num_heads = params.out.cols;
  const int64_t width = params.q.cols;
  ForEachRow(batch, [&](const Row& row) {
    const float* frozen = row.sequence.frozen_thresholds;
    const float* q = params.q.row(row.index);
    for (int64_t h = 0; h < num_heads; ++h) {
      float& threshold = params.out.row(row.index)[h];
      if (frozen != nullptr) {
        threshold = frozen[params.layer * num_heads + h];
      } else if (params.weight == nullptr) {
        threshold = 0.0f;
      } else {
        double sum = params.bias[h];
        for (int64_t i = 0; i < width; ++i) {
          sum += static_cast<double>(q[i]) * params.weight[h * width + i];
        }
        threshold = static_cast<float>(sum);
      }
    }
  });
}

namespace {

// NaN stays NaN. 0.5 (1 + tanh(u)) is sigma(2u).
double Activate(Activation activation, double gate, double up) {
  if (activation == Activation::kClamped) {
    constexpr double kLimit = kClampedLimit;
    const double g = gate > kLimit ? kLimit : gate;
    const double u = up > kLimit ? kLimit : (up < -kLimit ? -kLimit : up);
    return g / (1.0 + std::exp(-double{kClampedSlope} * g)) * (u + 1.0);
  }
  constexpr double kTwoRootsOfTwoOverPi = 1.5957691216057308;
  const double slope =
      activation == Activation::kSilu ? 1.0 : kTwoRootsOfTwoOverPi * (1.0 + 0.044715 * gate * gate);
  return gate / (1.0 + std::exp(-slope * gate)) * up;
}

}  // namespace

void SwiGlu(const SwiGluParams& params) {
  const int64_t f = params.out.cols;
  for (int64_t r = 0; r < params.out.rows; ++r) {
    const float* gate = params.gate_up.row(r);
    const float* up = gate + f;
    for (int64_t i = 0; i < f; ++i) {
      params.out.row(r)[i] = static_cast<float>(Activate(params.activation, gate[i], up[i]));
    }
  }
}

}  // namespace eta::reference
