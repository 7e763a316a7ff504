// The ops that treat every row by itself: Convert, Embed, biases, Rope, thresholds, SwiGlu.

#include <cmath>

#include "training/reference/elements.h"
#include "training/reference/ops.h"

namespace eta::training::reference {

void Convert(const Tensor& from, const Tensor& to) {
  for (int64_t r = 0; r < from.rows; ++r) {
    for (int64_t i = 0; i < from.cols; ++i) Set(to, r, i, Get(from, r, i));
  }
}

void Embed(const EmbedParams& params) {
  for (int64_t r = 0; r < params.out.rows; ++r) {
    const int32_t token = params.tokens[static_cast<size_t>(r)];
    for (int64_t i = 0; i < params.out.cols; ++i)
      Set(params.out, r, i, Get(params.table, token, i));
  }
}

void EmbedBackward(const EmbedBackwardParams& params) {
  const int64_t width = params.grad_out.cols;
  for (int64_t r = 0; r < params.grad_out.rows; ++r) {
    const int64_t token = params.tokens[static_cast<size_t>(r)];
    for (int64_t i = 0; i < width; ++i) {
      AddTo(params.grad_table, token * width + i, Get(params.grad_out, r, i));
    }
  }
}

void AddBias(const AddBiasParams& params) {
  for (int64_t r = 0; r < params.x.rows; ++r) {
    for (int64_t i = 0; i < params.x.cols; ++i) AddTo(params.x, r, i, params.bias[i]);
  }
}

void BiasBackward(const BiasBackwardParams& params) {
  for (int64_t i = 0; i < params.grad_out.cols; ++i) {
    double sum = 0.0;
    for (int64_t r = 0; r < params.grad_out.rows; ++r) sum += Get(params.grad_out, r, i);
    AddTo(params.grad_bias, i, sum);
  }
}

namespace {

void Rotate(const Tensor& x, const RopeParams& params) {
  const int32_t half = params.head_dim / 2;
  for (int64_t r = 0; r < x.rows; ++r) {
    const auto position = static_cast<double>(params.first + r % params.length * params.stride);
    for (int32_t i = 0; i < half; ++i) {
      const double turns = params.scaling.Turns(params.theta, params.head_dim, i);
      const double angle = position * (RopeScaling::kTurn * turns);
      const double cosine = params.scaling.attention_factor * std::cos(angle);
      const double sine =
          params.scaling.attention_factor * (params.inverse ? -std::sin(angle) : std::sin(angle));
      for (int64_t begin = 0; begin < x.cols; begin += params.head_dim) {
        const double a = Get(x, r, begin + i);
        const double b = Get(x, r, begin + i + half);
        Set(x, r, begin + i, a * cosine - b * sine);
        Set(x, r, begin + i + half, b * cosine + a * sine);
      }
    }
  }
}

}  // namespace

void Rope(const RopeParams& params) {
  if (!params.q.empty()) Rotate(params.q, params);
  Rotate(params.k, params);
}

void PredictThresholds(const ThresholdParams& params) {
  const int64_t width = params.q.cols;
  const int64_t heads = params.num_heads;
  for (int64_t r = 0; r < params.q.rows; ++r) {
    for (int64_t h = 0; h < heads; ++h) {
      double sum = params.bias[h];
      if (params.weight != nullptr) {
        for (int64_t i = 0; i < width; ++i)
          sum += Get(params.q, r, i) * params.weight[h * width + i];
      }
      params.tau[r * heads + h] = static_cast<float>(sum);
    }
  }
}

void ThresholdsBackward(const ThresholdBackwardParams& params) {
  const int64_t width = params.q.cols;
  const int64_t heads = params.num_heads;
  for (int64_t h = 0; h < heads; ++h) {
    double bias = 0.0;
    for (int64_t r = 0; r < params.q.rows; ++r) bias += params.grad_tau[r * heads + h];
    AddTo(params.grad_bias, h, bias);
    if (params.weight == nullptr) continue;
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0.0;
      for (int64_t r = 0; r < params.q.rows; ++r) {
        sum += params.grad_tau[r * heads + h] * Get(params.q, r, i);
      }
      AddTo(params.grad_weight, h * width + i, sum);
    }
  }
  if (params.weight == nullptr) return;
  for (int64_t r = 0; r < params.q.rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      double sum = 0.0;
      for (int64_t h = 0; h < heads; ++h) {
        sum += params.grad_tau[r * heads + h] * static_cast<double>(params.weight[h * width + i]);
      }
      AddTo(params.grad_q, r, i, sum);
    }
  }
}

void SwiGlu(const SwiGluParams& params) {
  const int64_t width = params.out.cols;
  for (int64_t r = 0; r < params.out.rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const double gate = Get(params.gate_up, r, i);
      Set(params.out, r, i, gate / (1.0 + std::exp(-gate)) * Get(params.gate_up, r, width + i));
    }
  }
}

void SwiGluBackward(const SwiGluBackwardParams& params) {
  const int64_t width = params.grad_out.cols;
  for (int64_t r = 0; r < params.grad_out.rows; ++r) {
    for (int64_t i = 0; i < width; ++i) {
      const double gate = Get(params.gate_up, r, i);
      const double up = Get(params.gate_up, r, width + i);
      const double sigmoid = 1.0 / (1.0 + std::exp(-gate));
      const double grad = Get(params.grad_out, r, i);
      Set(params.grad_gate_up, r, i, grad * up * sigmoid * (1.0 + gate * (1.0 - sigmoid)));
      Set(params.grad_gate_up, r, width + i, grad * gate * sigmoid);
    }
  }
}

}  // namespace eta::training::reference
