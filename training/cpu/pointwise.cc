// Products of whole tensors, and the ops that treat every row by itself: Convert, Embed, biases,
// Rope, thresholds, SwiGlu.

#include <cmath>
#include <vector>

#include "training/cpu/column_sums.h"
#include "training/cpu/ops.h"
#include "training/cpu/product.h"
#include "training/cpu/vector_math.h"

namespace eta::training::cpu {
namespace {

constexpr int64_t kRowsPerTask = 16;
constexpr int64_t kColsPerTask = 64;

Operand Plain(const Tensor& x) {
  return {x.as<float>(), x.stride};
}
Operand Turned(const Tensor& x) {
  return {x.as<float>(), x.stride, Transposed::kYes};
}

}  // namespace

void Convert(const Context& context, const Tensor& from, const Tensor& to) {
  ForRanges(context, from.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) std::copy_n(Row(from, r), from.cols, Row(to, r));
  });
}

void MatMul(const Context& context, const MatMulParams& params) {
  MultiplyOnAll(context.workers, params.x.rows, params.weight.rows, params.x.cols, Plain(params.x),
                Turned(params.weight), params.accumulate, params.out.as<float>(),
                params.out.stride);
}

void MatMulInput(const Context& context, const MatMulInputParams& params) {
  MultiplyOnAll(context.workers, params.grad_out.rows, params.weight.cols, params.weight.rows,
                Plain(params.grad_out), Plain(params.weight), false, params.grad_x.as<float>(),
                params.grad_x.stride);
}

void MatMulWeight(const Context& context, const MatMulWeightParams& params) {
  MultiplyOnAll(context.workers, params.grad_out.cols, params.x.cols, params.x.rows,
                Turned(params.grad_out), Plain(params.x), true, params.grad_weight, params.x.cols);
}

void Embed(const Context& context, const EmbedParams& params) {
  ForRanges(context, params.out.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      std::copy_n(Row(params.table, params.tokens[static_cast<size_t>(r)]), params.out.cols,
                  Row(params.out, r));
    }
  });
}

void EmbedBackward(const Context& context, const EmbedBackwardParams& params) {
  if (params.grad_table == nullptr) return;
  const int64_t width = params.grad_out.cols;
  ForRanges(context, width, kColsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = 0; r < params.grad_out.rows; ++r) {
      float* out = params.grad_table + params.tokens[static_cast<size_t>(r)] * width;
      const float* grad = Row(params.grad_out, r);
      for (int64_t i = begin; i < end; ++i) out[i] += grad[i];
    }
  });
}

void AddBias(const Context& context, const AddBiasParams& params) {
  ForRanges(context, params.x.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      float* x = Row(params.x, r);
      for (int64_t i = 0; i < params.x.cols; ++i) x[i] += params.bias[i];
    }
  });
}

void BiasBackward(const Context& context, const BiasBackwardParams& params) {
  if (params.grad_bias == nullptr) return;
  const int64_t width = params.grad_out.cols;
  SumColumns(context, params.grad_out.rows, width, params.grad_bias,
             [&](int64_t begin, int64_t end, float* sums) {
               for (int64_t r = begin; r < end; ++r) {
                 const float* grad = Row(params.grad_out, r);
                 for (int64_t i = 0; i < width; ++i) sums[i] += grad[i];
               }
             });
}

void Rope(const Context& context, const RopeParams& params) {
  const int32_t half = params.head_dim / 2;
  std::vector<double> turns(static_cast<size_t>(half));
  for (int32_t i = 0; i < half; ++i) {
    turns[static_cast<size_t>(i)] = params.scaling.Turns(params.theta, params.head_dim, i);
  }
  // Tasks of positions, so that an angle serves all sequences and heads.
  const int64_t sequences = params.k.rows / std::max(params.length, 1);
  const double sign = params.inverse ? -1.0 : 1.0;
  ForRanges(context, params.length, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t t = begin; t < end; ++t) {
      for (int32_t i = 0; i < half; ++i) {
        const double angle = static_cast<double>(params.first + t * params.stride) *
                             turns[static_cast<size_t>(i)] * RopeScaling::kTurn;
        const auto cosine = static_cast<float>(params.scaling.attention_factor * std::cos(angle));
        const auto sine =
            static_cast<float>(sign * params.scaling.attention_factor * std::sin(angle));
        for (const Tensor* x : {&params.q, &params.k}) {
          if (x->empty()) continue;
          for (int64_t b = 0; b < sequences; ++b) {
            float* row = Row(*x, b * params.length + t);
            for (int64_t head = 0; head < x->cols; head += params.head_dim) {
              const float a = row[head + i];
              const float c = row[head + i + half];
              row[head + i] = a * cosine - c * sine;
              row[head + i + half] = c * cosine + a * sine;
            }
          }
        }
      }
    }
  });
}

void PredictThresholds(const Context& context, const ThresholdParams& params) {
  const int64_t heads = params.num_heads;
  if (params.weight != nullptr) {
    const int64_t width = params.q.cols;
    MultiplyOnAll(context.workers, params.q.rows, heads, width, Plain(params.q),
                  {params.weight, width, Transposed::kYes}, false, params.tau, heads);
  }
  ForRanges(context, params.q.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      for (int64_t h = 0; h < heads; ++h) {
        float& tau = params.tau[r * heads + h];
        tau = params.weight != nullptr ? tau + params.bias[h] : params.bias[h];
      }
    }
  });
}

void ThresholdsBackward(const Context& context, const ThresholdBackwardParams& params) {
  const int64_t heads = params.num_heads;
  const int64_t rows = params.q.rows;
  const int64_t width = params.q.cols;
  if (params.grad_bias != nullptr) {
    SumColumns(context, rows, heads, params.grad_bias,
               [&](int64_t begin, int64_t end, float* sums) {
                 for (int64_t r = begin; r < end; ++r) {
                   for (int64_t h = 0; h < heads; ++h) sums[h] += params.grad_tau[r * heads + h];
                 }
               });
  }
  if (params.weight == nullptr) return;
  if (params.grad_weight != nullptr) {
    MultiplyOnAll(context.workers, heads, width, rows, {params.grad_tau, heads, Transposed::kYes},
                  Plain(params.q), true, params.grad_weight, width);
  }
  MultiplyOnAll(context.workers, rows, width, heads, {params.grad_tau, heads},
                {params.weight, width}, true, params.grad_q.as<float>(), params.grad_q.stride);
}

void SwiGlu(const Context& context, const SwiGluParams& params) {
  const int64_t width = params.out.cols;
  ForRanges(context, params.out.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = Row(params.gate_up, r);
      SiluTimes(gate, gate + width, Row(params.out, r), width);
    }
  });
}

void SwiGluBackward(const Context& context, const SwiGluBackwardParams& params) {
  const int64_t width = params.grad_out.cols;
  ForRanges(context, params.grad_out.rows, kRowsPerTask, [&](int64_t begin, int64_t end, int) {
    for (int64_t r = begin; r < end; ++r) {
      const float* gate = Row(params.gate_up, r);
      float* grad = Row(params.grad_gate_up, r);
      SiluTimesBackward(gate, gate + width, Row(params.grad_out, r), grad, grad + width, width);
    }
  });
}

}  // namespace eta::training::cpu
