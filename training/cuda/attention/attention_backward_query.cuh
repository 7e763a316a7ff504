// Gated attention, backward: gradients of queries and thresholds. A CTA takes the queries of
// RowShape of one head against all their keys, as the forward kernel does. It computes scores and
// weights anew. So nothing is added up across CTAs, and dq does not depend on their order; the
// price is two products and one gate more than in one kernel for all gradients.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "training/cuda/attention/attention_ring.cuh"
#include "training/cuda/attention/attention_selection.cuh"
#include "training/cuda/attention/attention_tile.cuh"
#include "training/cuda/attention/gate_math.cuh"
#include "training/cuda/attention/kernel_params.h"

namespace eta::training::cuda {

template <int kHeadDim>
struct QueryGradShape : RowShape<kHeadDim> {
  using RowShape<kHeadDim>::kConsumers;
  static constexpr int kTileBytes = kHeadDim / 64 * kPartBytes;
  static constexpr int kStages = 4;
  static constexpr int kQueries = kStages * 2 * kTileBytes;
  static constexpr int kGradients = kQueries + kConsumers * kTileBytes;
  static constexpr int kBarriers = kGradients + kConsumers * kTileBytes;
  // Includes room to align the stages to the period of the swizzle.
  static constexpr int kSharedBytes = kBarriers + (2 * kStages + 1) * 8 + 1024;
};

// A row's numbers (QueryRows), and what is summed of it.
struct GradRow {
  float bias = 0.0f;
  float log_sum_exp = INFINITY;
  float delta = 0.0f;
  float gate_grad = 0.0f;
  float block_grad = 0.0f;
  float through_gate = 0.0f;  // of this lane's columns
};

// Gradients of a score's logit and score.
struct ScoreGrad {
  float weight;        // of the score in the softmax
  float grad;          // of the score, base 2
  float through_gate;  // the part that came through the gate
};

// `a` is the score, `weight_grad` the gradient of its weight. `gate_grad` is that of its gate.
template <GateKind kGate>
__device__ __forceinline__ ScoreGrad Differentiate(float a, float weight_grad, float bias,
                                                   float log_sum_exp, float delta, float gate_grad,
                                                   const GateFactors& gate) {
  ScoreGrad out;
  if constexpr (kGate == GateKind::kNone) {
    out.weight = Exp2(fmaf(a, gate.full, -log_sum_exp));
    out.grad = out.weight * (weight_grad - delta) * gate.full;
    out.through_gate = 0.0f;
    return out;
  }
  const Tilt tilt = Gate<kGate>(fmaf(a, gate.slope, bias));
  float logit_grad;
  if constexpr (kGate == GateKind::kSilu) {
    const float factor = fmaf(tilt.t, gate.gated, gate.open);
    out.weight = Exp2(fmaf(a, factor, -log_sum_exp));
    logit_grad = out.weight * (weight_grad - delta);
    out.through_gate = fmaf(logit_grad * a, gate.through, gate_grad) * tilt.slope;
    out.grad = fmaf(logit_grad, factor, out.through_gate);
  } else {
    out.weight = Exp2(Logit<kGate>(gate, a, tilt.t, -log_sum_exp));
    logit_grad = out.weight * (weight_grad - delta);
    out.through_gate = fmaf(logit_grad, gate.through, gate_grad) * tilt.slope;
    out.grad = fmaf(logit_grad, gate.full, out.through_gate);
  }
  return out;
}

// The own key: its logit is not gated, but its gate counts in the sums.
template <GateKind kGate>
__device__ __forceinline__ ScoreGrad DifferentiateOwn(float a, float weight_grad, float bias,
                                                      float log_sum_exp, float delta,
                                                      float gate_grad, const GateFactors& gate) {
  ScoreGrad out =
      Differentiate<GateKind::kNone>(a, weight_grad, bias, log_sum_exp, delta, gate_grad, gate);
  if constexpr (kGate != GateKind::kNone) {
    out.through_gate = gate_grad * Gate<kGate>(fmaf(a, gate.slope, bias)).slope;
    out.grad += out.through_gate;
  }
  return out;
}

// Turns scores and gradients of weights into gradients of scores, in place of the latter.
template <GateKind kGate, bool kBlocks, bool kDiagonal>
__device__ __forceinline__ void DifferentiateRows(const float (&scores)[8][4], float (&grads)[8][4],
                                                  GradRow (&rows)[2], const int32_t (&largest)[2],
                                                  const GateFactors& gate) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      GradRow& row = rows[e / 2];
      const int32_t column = 8 * n + lane % 4 * 2 + e % 2;
      float gate_grad = row.gate_grad;
      if constexpr (kBlocks) {
        if (column == largest[e / 2]) gate_grad += row.block_grad;
      }
      ScoreGrad out;
      if constexpr (kDiagonal) {
        const int32_t own = threadIdx.x % 128 / 32 * 16 + lane / 4 + e / 2 * 8;
        if (column > own) {
          grads[n][e] = 0.0f;
          continue;
        }
        out = column == own ? DifferentiateOwn<kGate>(scores[n][e], grads[n][e], row.bias,
                                                      row.log_sum_exp, row.delta, gate_grad, gate)
                            : Differentiate<kGate>(scores[n][e], grads[n][e], row.bias,
                                                   row.log_sum_exp, row.delta, gate_grad, gate);
      } else {
        out = Differentiate<kGate>(scores[n][e], grads[n][e], row.bias, row.log_sum_exp, row.delta,
                                   gate_grad, gate);
      }
      grads[n][e] = out.grad;
      row.through_gate += out.through_gate;
    }
  }
}

template <int kHeadDim, GateKind kGate, bool kBlocks, bool kSelected>
__global__ void __launch_bounds__(RowShape<kHeadDim>::kThreads, 1)
    AttentionQueryGradKernel(const __grid_constant__ BackwardKernelParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = QueryGradShape<kHeadDim>;
  constexpr uint32_t kStageBytes = 2 * Shape::kTileBytes;
  Ring<Shape> ring;
  const uint32_t shared = ring.shared;
  auto& at = ring.at;
  const HeadsShape& shape = params.shape;
  const QueryWork<Shape> work(shape, params.query_order);
  const int32_t last_tile = FirstTile<kSelected>(params.keys, work.first_query);

  if (ring.warpgroup == Shape::kConsumers) {
    ShrinkRegisters<Shape::kProducerRegisters>();
    if (threadIdx.x % 128 != 0) return;
    Expect(ring.held_full, 2 * Shape::kConsumers * Shape::kTileBytes);
    for (int i = 0; i < Shape::kConsumers; ++i) {
      const int32_t to = i * Shape::kTileBytes;
      CopyTile<kHeadDim>(shared + Shape::kQueries + to, params.q, work.head,
                         work.first_query + i * 64, work.sequence, ring.held_full);
      CopyTile<kHeadDim>(shared + Shape::kGradients + to, params.grad_out, work.head,
                         work.first_query + i * 64, work.sequence, ring.held_full);
    }
    ProduceKeys<kHeadDim>(ring, work, params.k, params.v, work.head / shape.group(), last_tile);
    return;
  }

  GrowRegisters<Shape::kConsumerRegisters>();
  const int32_t lane = threadIdx.x % 32;
  const GateFactors gate = params.gate;
  const int32_t diagonal = work.first_query / 64 + ring.warpgroup;
  const int32_t row = ring.warp % 4 * 16 + lane / 4;  // the other one is + 8
  const int32_t padded = shape.padded_tokens();
  const int64_t first_row = int64_t{work.global_head} * padded + diagonal * 64;  // in QueryRows
  // Keys after the warpgroup's queries are the other warpgroups'.
  int32_t tile = work.tiles - 1;
  for (; tile > diagonal; --tile) ring.Skip();
  if (diagonal >= shape.tiles()) {
    for (; tile >= last_tile; --tile) ring.Skip();
    return;
  }

  GradRow rows[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int64_t index = first_row + row + half * 8;
    const QueryRows* from = params.rows + index / 2;
    const int64_t side = index % 2;
    rows[half].bias = from->bias[side];
    rows[half].log_sum_exp = from->log_sum_exp[side];
    rows[half].delta = from->delta[side];
    rows[half].gate_grad = from->gate_grad[side];
    if constexpr (kBlocks) rows[half].block_grad = params.block_grad[index];
  }
  const uint32_t queries = shared + Shape::kQueries + ring.warpgroup * Shape::kTileBytes;
  const uint32_t gradients = shared + Shape::kGradients + ring.warpgroup * Shape::kTileBytes;
  float sums[kHeadDim / 64][8][4] = {};
  float scores[8][4];
  float grads[8][4];
  uint32_t packed[4][4];
  int32_t largest[2] = {64, 64};
  const auto keys_of = [&](int32_t stage) { return shared + stage * kStageBytes; };
  // Gradients of scores by keys of stage `before`, if there is one; scores; gradients of weights.
  const auto multiply = [&](auto has_before, int32_t before) {
    eta::cuda::Wait(ring.full + at.stage, at.phase);
    Pin(sums);
    wgmma::Fence();
    if constexpr (has_before()) AddProduct<kHeadDim>(sums, packed, keys_of(before));
    MultiplyTiles<kHeadDim>(scores, queries, keys_of(at.stage));
    MultiplyTiles<kHeadDim>(grads, gradients, keys_of(at.stage) + Shape::kTileBytes);
    wgmma::Commit();
    wgmma::Wait<0>();
    wgmma::Pin(scores);
    wgmma::Pin(grads);
    Pin(sums);
  };
  const auto add_keys = [&](int32_t stage) {
    wgmma::Fence();
    AddProduct<kHeadDim>(sums, packed, keys_of(stage));
    wgmma::Commit();
    wgmma::Wait<0>();
    Pin(sums);
  };
  const auto pack = [&] {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      packed[n / 2][n % 2 * 2] = eta::cuda::PackPair<BFloat16>(grads[n][0], grads[n][1]);
      packed[n / 2][n % 2 * 2 + 1] = eta::cuda::PackPair<BFloat16>(grads[n][2], grads[n][3]);
    }
  };
  // Starts before the products, since it waits for memory.
  const auto load_largest = [&] {
    if constexpr (kBlocks) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        largest[half] = params.largest[(int64_t{work.global_head} * shape.tiles() + tile) * padded +
                                       diagonal * 64 + row + half * 8];
      }
    }
  };
  eta::cuda::Wait(ring.held_full, 0);
  load_largest();
  const int32_t own_last_tile = FirstTile<kSelected>(params.keys, diagonal * 64);
  const int64_t kv_head = int64_t{work.sequence} * shape.kv_heads + work.head / shape.group();
  TileWords words(params.keys, (kv_head * shape.tiles() + diagonal - 1) * shape.tiles() + diagonal,
                  -shape.tiles(), kSelected ? diagonal - own_last_tile : 0);
  [[maybe_unused]] const float log_sum_exp[2] = {rows[0].log_sum_exp, rows[1].log_sum_exp};
  bool waiting = true;  // whether the stage before has gradients that its keys wait for
  multiply(std::false_type{}, 0);
  if constexpr (kSelected) MaskWindow<false>(scores, -params.keys.window);
  DifferentiateRows<kGate, kBlocks, true>(scores, grads, rows, largest, gate);
  pack();
  for (--tile; tile >= own_last_tile; --tile) {
    const int32_t before = at.stage;
    at.Advance();
    load_largest();
    if constexpr (kSelected) {
      const uint64_t word = words.Take();
      if (word == 0) {
        if (waiting) add_keys(before);
        waiting = false;
        ring.Release(before);
        eta::cuda::Wait(ring.full + at.stage, at.phase);
        continue;
      }
      // No weight is left of a row that attends to no key of the tile.
      const auto bits = static_cast<uint32_t>(word >> row);
      rows[0].log_sum_exp = (bits & 1) != 0 ? log_sum_exp[0] : INFINITY;
      rows[1].log_sum_exp = (bits >> 8 & 1) != 0 ? log_sum_exp[1] : INFINITY;
    }
    if (waiting) {
      multiply(std::true_type{}, before);
    } else {
      multiply(std::false_type{}, before);
    }
    waiting = true;
    ring.Release(before);
    if constexpr (kSelected) {
      MaskWindow<false>(scores, (diagonal - tile) * 64 - params.keys.window);
    }
    DifferentiateRows<kGate, kBlocks, false>(scores, grads, rows, largest, gate);
    pack();
  }
  if (waiting) add_keys(at.stage);
  if constexpr (kSelected) {
    ring.Release(at.stage);
    at.Advance();
    for (; tile >= last_tile; --tile) ring.Skip();
  }
  const int64_t first_token = int64_t{work.sequence} * shape.tokens + diagonal * 64;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float through = SumOfRow(rows[half].through_gate);
    if (kGate == GateKind::kNone || lane % 4 != 0 ||
        diagonal * 64 + row + half * 8 >= shape.tokens) {
      continue;
    }
    params.grad_tau[(first_token + row + half * 8) * shape.query_heads + work.head] =
        through * params.tau_factor;
  }
  const float factor[2] = {kLn2, kLn2};
  StoreTile<kHeadDim>(
      sums, factor, params.grad_q.data + first_token * params.grad_q.stride + work.head * kHeadDim,
      params.grad_q.stride, shape.tokens - diagonal * 64);
#else
  __trap();
#endif
}

}  // namespace eta::training::cuda
