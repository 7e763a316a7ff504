// Gate and online softmax of prefill attention, on scores as the tensor cores leave them.
//
// A warp holds 16 queries x 64 keys: scores[n][e] is query lane / 4 + 8 * (e / 2) against key 8 * n
// + 2 * (lane % 4) + e % 2. The query carries a factor, so scores arrive as h = S * log2(e) / 2
// (gated) or S * log2(e). All logits are base 2. With t = tanh(beta * (S - tau_eff) / 2) the gated
// logit S * sigma is h + h * t.
//
// A score costs one special-function instruction for the gate and one for the exponential. These
// bind most of all at d = 64. A warp whose scores all lie far below their thresholds skips both.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/fast_math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/prefill/admitted_keys.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

// Weights are 2^(logit - max + kWeightShift). Many keys have the tempered logit 0; the shift keeps
// their weights out of float16's subnormal range. It cancels in the quotient.
inline constexpr float kWeightShift = 10.0f;
// Logits may exceed the maximum by this much before it is raised and the sums are rescaled. Weights
// of 2^(kWeightShift + kSlack) still fit float16.
inline constexpr float kSlack = 5.0f;
// Below this argument of tanh the gate is under 4.6e-5, and the gated logit counts as 0.
inline constexpr float kClosedGate = -5.0f;
// A score, as it arrives, above which a weight 2^(2 * kLowScore + kWeightShift) has full precision
// in float16.
inline constexpr float kLowScore = -6.0f;
// Finite, so that a query without any key in the range gets weight 0 and no NaN.
inline constexpr float kNoMaximum = -1e30f;

// The factor that queries carry (see the top of the file).
__device__ __forceinline__ float QueryFactor(const PrefillParams& params) {
  return params.softmax_scale * (params.gated ? 0.5f * kLog2E : kLog2E);
}

// The factor of a score, as it arrives, in tanh's argument.
__device__ __forceinline__ float GateSlope(const PrefillParams& params) {
  return params.beta * kLn2;
}

// The two queries whose scores a lane holds.
struct QueryPair {
  int32_t position[2];
  float gate_bias[2];  // -beta * tau_eff / 2
  float maximum[2] = {kNoMaximum, kNoMaximum};
  float weight[2] = {0.0f, 0.0f};  // of this lane's keys
  uint32_t floored = 0;            // bit i: keys that query i pruned weigh exp(0)

  // Loads queries `query` and query + 8 of the tile. Queries after the tile's end attend to keys
  // too; their results are dropped.
  __device__ __forceinline__ void Load(const PrefillParams& params, const PrefillTile& tile,
                                       int32_t kv_head, int32_t query) {
    for (int32_t i = 0; i < 2; ++i) {
      const int32_t token = min((query + 8 * i) / params.group, tile.tokens - 1);
      const int32_t head = kv_head * params.group + (query + 8 * i) % params.group;
      const int64_t row = tile.row_begin + token;
      position[i] = tile.position + token;
      gate_bias[i] = 0.0f;
      if (params.gated) {
        const float tau = params.thresholds[row * params.thresholds_stride + head];
        gate_bias[i] = -0.5f * params.beta * (tau - params.step.rows[row].attention.offset);
      }
    }
  }

  // Notes which queries of sparse prefill have a floor. Their pruned keys, whose logit is 0, take
  // part in the maximum.
  __device__ __forceinline__ void LoadFloor(const PrefillParams& params, const PrefillTile& tile,
                                            int32_t kv_head, int32_t query) {
#pragma unroll
    for (int32_t i = 0; i < 2; ++i) {
      if (!HasFloor(params, tile, kv_head, query + 8 * i)) continue;
      floored |= 1u << i;
      maximum[i] = 0.0f;
    }
  }
};

// The weight of a head's sink beside others of the maximum `maximum`; 0: no sink. Infinite where
// the sink is far above it.
__device__ __forceinline__ float SinkWeight(const PrefillParams& params, int32_t head,
                                            float maximum) {
  return params.sinks != nullptr ? Exp2(fmaf(params.sinks[head], kLog2E, kWeightShift - maximum))
                                 : 0.0f;
}

// Sets the scores of those of the tile's 64 keys that are tempered to 0, the query's own key
// excepted: the gate leaves 0 as it is.
__device__ __forceinline__ void Temper(float (&scores)[8][4], const QueryPair& queries,
                                       int32_t first_key, uint64_t tempered) {
  if (tempered == 0) return;
  const int32_t own = 2 * static_cast<int32_t>(threadIdx.x % 4);
#pragma unroll
  for (int e = 0; e < 4; ++e) {
    const int32_t place = queries.position[e / 2] - first_key;  // of the query's own key
    const uint64_t others =
        place >= 0 && place < kTileKeys ? tempered & ~(uint64_t{1} << place) : tempered;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      if ((others >> (8 * n + own + e % 2) & 1) != 0) scores[n][e] = 0.0f;
    }
  }
}

// Turns a score into a gated logit.
template <bool kPrecise>
__device__ __forceinline__ float GatedLogit(float h, float gate_slope, float gate_bias) {
  const float x = fmaf(h, gate_slope, gate_bias);
  if constexpr (kPrecise) {
    return __fdividef(2.0f * h, 1.0f + Exp2(fminf(-2.0f * kLog2E * x, 126.0f)));
  } else {
    return fmaf(h, Tanh(x), h);
  }
}

// Applies gate and masks: keys out of the query's sight, and those that it does not attend to, get
// -infinity; and the query's own key is not gated.
template <bool kPrecise, typename Keys>
__device__ __forceinline__ void ApplyGateAndMask(float (&scores)[8][4], const QueryPair& queries,
                                                 const Keys& keys, bool gated, float gate_slope,
                                                 int32_t first_key) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int32_t key = first_key + 8 * n + 2 * (threadIdx.x % 4) + e % 2;
      const int32_t position = queries.position[e / 2];
      const float h = scores[n][e];
      float logit = gated ? 2.0f * h : h;
      if (gated && key < position) {
        logit = GatedLogit<kPrecise>(h, gate_slope, queries.gate_bias[e / 2]);
      }
      const bool attends = keys.Attends(e / 2, n * Keys::kPieces / 8);
      scores[n][e] = keys.Hides(key, position) || !attends ? -INFINITY : logit;
    }
  }
}

// The largest of this lane's scores, for each of its two queries; kNoMaximum if a query attends to
// none of them.
template <typename Keys>
__device__ __forceinline__ void LargestScores(const float (&scores)[8][4], const Keys& keys,
                                              float (&top)[2]) {
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float pairs[8];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      pairs[n] = fmaxf(scores[n][2 * i], scores[n][2 * i + 1]);
      if (Keys::kPieces > 1 && !keys.Attends(i, n * Keys::kPieces / 8)) pairs[n] = kNoMaximum;
    }
    top[i] = fmaxf(fmaxf(fmaxf(pairs[0], pairs[1]), fmaxf(pairs[2], pairs[3])),
                   fmaxf(fmaxf(pairs[4], pairs[5]), fmaxf(pairs[6], pairs[7])));
    if (Keys::kPieces == 1 && !keys.Attends(i)) top[i] = kNoMaximum;
  }
}

// The factors that sums of earlier tiles must be multiplied by. All lanes of the warp agree on
// `needed`.
struct Rescale {
  bool needed = false;
  float factor[2];
};

// Raises each maximum to `top` (this lane's keys, joined over the lanes of the query) if that is
// more than kSlack above it.
__device__ __forceinline__ Rescale RaiseMaximum(QueryPair& queries, const float (&top)[2]) {
  Rescale rescale;
  const bool raised = top[0] > queries.maximum[0] + kSlack || top[1] > queries.maximum[1] + kSlack;
  rescale.needed = __any_sync(~0u, raised);
  if (!rescale.needed) return rescale;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    float maximum = fmaxf(queries.maximum[i], top[i]);
    maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 1));
    maximum = fmaxf(maximum, __shfl_xor_sync(~0u, maximum, 2));
    rescale.factor[i] = Exp2(queries.maximum[i] - maximum);
    queries.maximum[i] = maximum;
    queries.weight[i] *= rescale.factor[i];
  }
  return rescale;
}

template <int kColumns>
__device__ __forceinline__ void Apply(const Rescale& rescale, float (&sums)[kColumns][4]) {
  if (!rescale.needed) return;
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
    sums[n][0] *= rescale.factor[0];
    sums[n][1] *= rescale.factor[0];
    sums[n][2] *= rescale.factor[1];
    sums[n][3] *= rescale.factor[1];
  }
}

// How scores become weights once the maximum is known.
enum class Weighing { kExponent, kGate, kClosed };

// The first half of the softmax: raises the maxima to bounds of the tile's logits. The bound is the
// gated logit of the largest score, or 0: S * sigma grows with S from 0 on, and is negative below
// 0. The bound does not serve in `masked` tiles, with a falling gate, and for a query whose scores
// are all far below 0 so far. Only then are all scores gated here and the exact maximum is taken.
template <bool kPrecise, typename Keys>
__device__ __forceinline__ Weighing BoundMaximum(float (&scores)[8][4], QueryPair& queries,
                                                 Rescale& rescale, const PrefillParams& params,
                                                 const Keys& keys, int32_t first_key, bool masked) {
  const float gate_slope = GateSlope(params);
  float top[2];
  if (!masked) {
    LargestScores(scores, keys, top);
    if (!params.gated) {
      rescale = RaiseMaximum(queries, top);
      return Weighing::kExponent;
    }
    if (!kPrecise && params.beta > 0.0f) {
      const float x[2] = {fmaf(top[0], gate_slope, queries.gate_bias[0]),
                          fmaf(top[1], gate_slope, queries.gate_bias[1])};
      const bool closed = fmaxf(x[0], x[1]) < kClosedGate;
      // A query that attends to none of the keys needs nothing.
      const float maximum[2] = {keys.Attends(0) ? queries.maximum[0] : 0.0f,
                                keys.Attends(1) ? queries.maximum[1] : 0.0f};
      const float lowest = fminf(fmaxf(top[0], maximum[0]), fmaxf(top[1], maximum[1]));
      const bool low = lowest < kLowScore;
      // The open gate's logit is the cheapest bound.
      const float excess =
          fmaxf(fmaxf(2.0f * top[0], 0.0f) - maximum[0], fmaxf(2.0f * top[1], 0.0f) - maximum[1]);
      const bool raised = excess > kSlack;
      const bool all_closed = __all_sync(~0u, closed);
      const Weighing weighing = all_closed ? Weighing::kClosed : Weighing::kGate;
      if (!__any_sync(~0u, low | raised)) {
        rescale.needed = false;
        return weighing;
      }
      if (!__any_sync(~0u, low)) {
        const float bound[2] = {
            keys.Attends(0) ? fmaxf(fmaf(top[0], Tanh(x[0]), top[0]), 0.0f) : kNoMaximum,
            keys.Attends(1) ? fmaxf(fmaf(top[1], Tanh(x[1]), top[1]), 0.0f) : kNoMaximum};
        rescale = RaiseMaximum(queries, bound);
        return weighing;
      }
    }
  }
  ApplyGateAndMask<kPrecise>(scores, queries, keys, params.gated, gate_slope, first_key);
  LargestScores(scores, keys, top);
  rescale = RaiseMaximum(queries, top);
  return Weighing::kExponent;
}

// The second half of the softmax: turns scores into weights, in place.
template <typename Keys>
__device__ __forceinline__ void Weigh(float (&scores)[8][4], QueryPair& queries, Weighing weighing,
                                      const PrefillParams& params, const Keys& keys) {
  const float gate_slope = GateSlope(params);
  float shift[Keys::kPieces][2];  // -infinity makes weights 0
  float floor[Keys::kPieces][2];  // what the floor gives these keys already
#pragma unroll
  for (int piece = 0; piece < Keys::kPieces; ++piece) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      shift[piece][i] = keys.Attends(i, piece) ? kWeightShift - queries.maximum[i] : -INFINITY;
      floor[piece][i] = keys.Floors(i, piece) ? Exp2(shift[piece][i]) : 0.0f;
    }
  }
  if (weighing == Weighing::kClosed) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const int piece = n * Keys::kPieces / 8;
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const float weight = Exp2(shift[piece][i]) - (Keys::kFloors ? floor[piece][i] : 0.0f);
        if (n % (8 / Keys::kPieces) == 0) {
          queries.weight[i] += 16.0f / Keys::kPieces * weight;
        }
        scores[n][2 * i] = scores[n][2 * i + 1] = weight;
      }
    }
    return;
  }
  const auto take = [&](int n, int e, float weight) {
    if constexpr (Keys::kFloors) weight -= floor[n * Keys::kPieces / 8][e / 2];
    scores[n][e] = weight;
    queries.weight[e / 2] += weight;
  };
  if (weighing == Weighing::kGate) {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const float h = scores[n][e];
        const float t = Tanh(fmaf(h, gate_slope, queries.gate_bias[e / 2]));
        take(n, e, Exp2(fmaf(h, t, h + shift[n * Keys::kPieces / 8][e / 2])));
      }
    }
    return;
  }
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      take(n, e, Exp2(scores[n][e] + shift[n * Keys::kPieces / 8][e / 2]));
    }
  }
}

}  // namespace eta::cuda
