// Gated attention, forward (the paper's Algorithm 1). A CTA takes the queries of RowShape of one
// head: warpgroups of 64 queries against the same keys, and a producer. A warpgroup begins at its
// diagonal tile and goes down to the first key.
//
// The softmax's reference is the maximum of a row's diagonal tile and stays, since weights are
// bfloat16 and have float32's range: a later logit may exceed it by 60 powers of two before the
// reference is raised and the sums are rescaled. So a tile needs no maximum.
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
struct ForwardShape : RowShape<kHeadDim> {
  using RowShape<kHeadDim>::kConsumers;
  static constexpr int kTileBytes = kHeadDim / 64 * kPartBytes;
  static constexpr int kStages = kHeadDim == 64 ? 6 : 4;
  static constexpr int kQueries = kStages * 2 * kTileBytes;
  static constexpr int kBarriers = kQueries + kConsumers * kTileBytes;
  // Includes room to align the stages to the period of the swizzle.
  static constexpr int kSharedBytes = kBarriers + (2 * kStages + 1) * 8 + 1024;
};

// The two rows of a thread, and what it has summed over its columns of them.
struct ForwardRows {
  float bias[2];
  float reference[2];  // base 2
  float weight[2] = {0.0f, 0.0f};
  float tilt[2] = {0.0f, 0.0f};        // of all keys
  float block_tilt[2] = {0.0f, 0.0f};  // of the largest gate of each whole block, of whole rows
  bool kept[2] = {true, true};         // whether they attend to keys of the tile
};

// Sums of weights above this raise the reference.
inline constexpr float kLargestSum = 0x1p60f;

// Finds the largest gate of a block for each row, and notes it. `at` is the place of the
// warpgroup's first row. Of the diagonal block only the last row sees all keys.
template <GateKind kGate>
__device__ __forceinline__ void MeasureBlock(const float (&scores)[8][4], ForwardRows& rows,
                                             const ForwardKernelParams& params, int64_t at,
                                             bool diagonal) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4 + half * 8;
    const bool whole = !diagonal || row == 63;
    const PlacedScore largest = LargestPlace(scores, half);
    const float x = fmaf(largest.score, params.gate.slope, rows.bias[half]);
    if (whole) rows.block_tilt[half] += Gate<kGate>(x).t;
    if (params.largest == nullptr || lane % 4 != 0) continue;
    params.largest[at + row] = whole ? static_cast<uint8_t>(largest.column) : kNoLargest;
    if (params.block_gate != nullptr) params.block_gate[at + row] = x;
  }
}

// The diagonal tile: masks, sets the reference, and turns scores into weights.
template <GateKind kGate>
__device__ __forceinline__ void WeighDiagonal(float (&scores)[8][4], ForwardRows& rows,
                                              const GateFactors& gate) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const int32_t row = threadIdx.x % 128 / 32 * 16 + lane / 4 + half * 8;
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        const int32_t column = 8 * n + lane % 4 * 2 + e % 2;
        const float a = scores[n][e];
        float logit = a * gate.full;
        if (kGate != GateKind::kNone && column <= row) {
          const float t = Gate<kGate>(fmaf(a, gate.slope, rows.bias[half])).t;
          rows.tilt[half] += t;
          if (column < row) logit = Logit<kGate>(gate, a, t, 0.0f);
        }
        scores[n][e] = column <= row ? logit : -INFINITY;
      }
    }
    rows.reference[half] = MaximumOfRow(LargestScore(scores, half));
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        scores[n][e] = Exp2(scores[n][e] - rows.reference[half]);
        rows.weight[half] += scores[n][e];
      }
    }
  }
}

template <GateKind kGate>
__device__ __forceinline__ float LogitOf(float a, float bias, float shift,
                                         const GateFactors& gate) {
  const float t = kGate == GateKind::kNone ? 0.0f : Gate<kGate>(fmaf(a, gate.slope, bias)).t;
  return Logit<kGate>(gate, a, t, shift);
}

// Raises the references to this tile's maxima, and rescales what was summed before.
template <GateKind kGate, int kParts>
__device__ __forceinline__ void RaiseReference(const float (&scores)[8][4], ForwardRows& rows,
                                               float (&sums)[kParts][8][4],
                                               const GateFactors& gate) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float largest = rows.reference[half];
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 2 * half; e < 2 * half + 2; ++e) {
        largest = fmaxf(largest, LogitOf<kGate>(scores[n][e], rows.bias[half], 0.0f, gate));
      }
    }
    largest = MaximumOfRow(largest);
    const float factor = Exp2(rows.reference[half] - largest);
    rows.reference[half] = largest;
    rows.weight[half] *= factor;
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
        sums[part][n][2 * half] *= factor;
        sums[part][n][2 * half + 1] *= factor;
      }
    }
  }
}

// A tile below the diagonal: packs its weights, and adds them up in `weight`.
template <GateKind kGate, bool kCount>
__device__ __forceinline__ void WeighTile(const float (&scores)[8][4], ForwardRows& rows,
                                          float (&weight)[2], uint32_t (&weights)[4][4],
                                          const GateFactors& gate) {
  const float shift[2] = {rows.kept[0] ? -rows.reference[0] : -INFINITY,
                          rows.kept[1] ? -rows.reference[1] : -INFINITY};
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    float p[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const float a = scores[n][e];
      float t = 0.0f;
      if constexpr (kGate != GateKind::kNone) {
        t = Gate<kGate>(fmaf(a, gate.slope, rows.bias[e / 2])).t;
        if constexpr (kCount) rows.tilt[e / 2] += t;
      }
      p[e] = Exp2(Logit<kGate>(gate, a, t, shift[e / 2]));
      weight[e / 2] += p[e];
    }
    weights[n / 2][n % 2 * 2] = eta::cuda::PackPair<BFloat16>(p[0], p[1]);
    weights[n / 2][n % 2 * 2 + 1] = eta::cuda::PackPair<BFloat16>(p[2], p[3]);
  }
}

// Takes the scores of rows that attend to no key of the tile.
__device__ __forceinline__ void MaskRows(float (&scores)[8][4], const ForwardRows& rows) {
#pragma unroll
  for (int n = 0; n < 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (!rows.kept[e / 2]) scores[n][e] = -INFINITY;
    }
  }
}

template <int kHeadDim, GateKind kGate, bool kBlocks, bool kSelected>
__global__ void __launch_bounds__(RowShape<kHeadDim>::kThreads, 1)
    AttentionForwardKernel(const __grid_constant__ ForwardKernelParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = ForwardShape<kHeadDim>;
  constexpr uint32_t kStageBytes = 2 * Shape::kTileBytes;
  Ring<Shape> ring;
  const uint32_t shared = ring.shared;
  auto& at = ring.at;
  const HeadsShape& shape = params.shape;
  const QueryWork<Shape> work(shape, params.order);
  const int32_t last_tile = FirstTile<kSelected>(params.keys, work.first_query);

  if (ring.warpgroup == Shape::kConsumers) {
    ShrinkRegisters<Shape::kProducerRegisters>();
    if (threadIdx.x % 128 != 0) return;
    Expect(ring.held_full, Shape::kConsumers * Shape::kTileBytes);
    for (int i = 0; i < Shape::kConsumers; ++i) {
      CopyTile<kHeadDim>(shared + Shape::kQueries + i * Shape::kTileBytes, params.q, work.head,
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
  const int64_t first_row = int64_t{work.sequence} * shape.tokens + diagonal * 64;
  ForwardRows rows;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    rows.bias[half] = 0.0f;
    if (kGate != GateKind::kNone && diagonal * 64 + row + half * 8 < shape.tokens) {
      rows.bias[half] = gate.bias_slope *
                        params.tau[(first_row + row + half * 8) * shape.query_heads + work.head];
    }
  }
  const uint32_t queries = shared + Shape::kQueries + ring.warpgroup * Shape::kTileBytes;
  float sums[kHeadDim / 64][8][4] = {};
  float scores[8][4];
  uint32_t weights[4][4];
  // Keys after the warpgroup's queries are the other warpgroups'.
  int32_t tile = work.tiles - 1;
  for (; tile > diagonal; --tile) ring.Skip();
  if (diagonal >= shape.tiles()) {
    for (; tile >= last_tile; --tile) ring.Skip();
    return;
  }
  const auto keys_of = [&](int32_t stage) { return shared + stage * kStageBytes; };
  // Weights by values of stage `before`, if there is one, and queries by keys.
  const auto multiply = [&](auto has_before, int32_t before) {
    eta::cuda::Wait(ring.full + at.stage, at.phase);
    Pin(sums);
    wgmma::Fence();
    if constexpr (has_before()) {
      AddProduct<kHeadDim>(sums, weights, keys_of(before) + Shape::kTileBytes);
    }
    MultiplyTiles<kHeadDim>(scores, queries, keys_of(at.stage));
    wgmma::Commit();
    wgmma::Wait<0>();
    wgmma::Pin(scores);
    Pin(sums);
  };
  const auto add_values = [&](int32_t stage) {
    wgmma::Fence();
    AddProduct<kHeadDim>(sums, weights, keys_of(stage) + Shape::kTileBytes);
    wgmma::Commit();
    wgmma::Wait<0>();
    Pin(sums);
  };
  eta::cuda::Wait(ring.held_full, 0);
  const auto block_at = [&](int32_t block) {
    return (int64_t{work.global_head} * shape.tiles() + block) * shape.padded_tokens() +
           diagonal * 64;
  };
  const int32_t own_last_tile = FirstTile<kSelected>(params.keys, diagonal * 64);
  const int64_t kv_head = int64_t{work.sequence} * shape.kv_heads + work.head / shape.group();
  TileWords words(params.keys, (kv_head * shape.tiles() + diagonal - 1) * shape.tiles() + diagonal,
                  -shape.tiles(), kSelected ? diagonal - own_last_tile : 0);
  bool waiting = true;  // whether the stage before has weights that its values wait for
  multiply(std::false_type{}, 0);
  if constexpr (kSelected) MaskWindow<false>(scores, -params.keys.window);
  if constexpr (kBlocks) MeasureBlock<kGate>(scores, rows, params, block_at(tile), true);
  WeighDiagonal<kGate>(scores, rows, gate);
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    weights[n / 2][n % 2 * 2] = eta::cuda::PackPair<BFloat16>(scores[n][0], scores[n][1]);
    weights[n / 2][n % 2 * 2 + 1] = eta::cuda::PackPair<BFloat16>(scores[n][2], scores[n][3]);
  }
  for (--tile; tile >= own_last_tile; --tile) {
    const int32_t before = at.stage;
    at.Advance();
    if constexpr (kSelected) {
      const uint64_t word = words.Take();
      if (word == 0) {
        if (waiting) add_values(before);
        waiting = false;
        ring.Release(before);
        eta::cuda::Wait(ring.full + at.stage, at.phase);
        continue;
      }
      const auto bits = static_cast<uint32_t>(word >> row);
      rows.kept[0] = (bits & 1) != 0;
      rows.kept[1] = (bits >> 8 & 1) != 0;
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
    if constexpr (kBlocks) MeasureBlock<kGate>(scores, rows, params, block_at(tile), false);
    float weight[2] = {0.0f, 0.0f};
    WeighTile<kGate, true>(scores, rows, weight, weights, gate);
    if (__any_sync(~0u, fmaxf(weight[0], weight[1]) > kLargestSum)) {
      if constexpr (kSelected) MaskRows(scores, rows);
      RaiseReference<kGate>(scores, rows, sums, gate);
      weight[0] = weight[1] = 0.0f;
      WeighTile<kGate, false>(scores, rows, weight, weights, gate);
    }
    rows.weight[0] += weight[0];
    rows.weight[1] += weight[1];
  }
  if (waiting) add_values(at.stage);
  if constexpr (kSelected) {
    ring.Release(at.stage);
    at.Advance();
    for (; tile >= last_tile; --tile) ring.Skip();
  }
  float factor[2];
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const float weight = SumOfRow(rows.weight[half]);
    const float tilt = SumOfRow(rows.tilt[half]);
    factor[half] = 1.0f / weight;
    const int32_t query = diagonal * 64 + row + half * 8;
    if (lane % 4 != 0 || query >= shape.tokens) continue;
    const int64_t to =
        (int64_t{work.sequence} * shape.query_heads + work.head) * shape.tokens + query;
    params.log_sum_exp[to] = kLn2 * (rows.reference[half] + log2f(weight));
    if constexpr (kGate != GateKind::kNone) {
      if (params.gate_sum != nullptr) {
        params.gate_sum[to] = 0.5f * (static_cast<float>(query + 1) + tilt);
      }
      if (kBlocks && params.block_sum != nullptr) {
        params.block_sum[to] =
            0.5f * (static_cast<float>((query + 1) / 64) + rows.block_tilt[half]);
      }
    }
  }
  StoreTile<kHeadDim>(sums, factor,
                      params.out.data + first_row * params.out.stride + work.head * kHeadDim,
                      params.out.stride, shape.tokens - diagonal * 64);
#else
  __trap();
#endif
}

}  // namespace eta::training::cuda
