// Gated attention, backward: gradients of keys and values. A CTA takes 128 keys of one KV head, two
// warpgroups of 64 keys, against the queries of all heads of the group. Scores are computed
// transposed, keys by queries: weights and gradients are then in registers as the next products
// want them, and dk and dv stay in registers from first to last query.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "training/cuda/attention/attention_backward_query.cuh"
#include "training/cuda/attention/attention_ring.cuh"
#include "training/cuda/attention/attention_selection.cuh"
#include "training/cuda/attention/attention_tile.cuh"
#include "training/cuda/attention/gate_math.cuh"
#include "training/cuda/attention/kernel_params.h"

namespace eta::training::cuda {

inline constexpr int kKeyConsumers = 2;
inline constexpr int kKeyThreads = (kKeyConsumers + 1) * 128;
inline constexpr int kKeysOfCta = kKeyConsumers * 64;

template <int kHeadDim, bool kBlocks>
struct KeyGradShape {
  static constexpr int kConsumers = kKeyConsumers;
  // Keys and values are read from registers where they fit.
  // Sums take so many registers that new scores must wait until the old ones have been used.
  static constexpr bool kEager = kHeadDim > 64;
  static constexpr bool kKeysInRegisters = kHeadDim == 64 && !kBlocks;
  static constexpr int kTileBytes = kHeadDim / 64 * kPartBytes;
  static constexpr int kRowBytes = 64 / 2 * static_cast<int>(sizeof(QueryRows));
  // Offsets in a stage: queries, gradients of outputs, QueryRows, block gradients, largest gates.
  static constexpr int kGradients = kTileBytes;
  static constexpr int kRows = 2 * kTileBytes;
  static constexpr int kBlockGrads = kRows + kRowBytes;
  static constexpr int kLargest = kBlockGrads + 64 * 4;
  static constexpr int kStageBytes = kRows + 2048;
  static constexpr int kStages = kHeadDim == 64 ? 5 : 3;
  static constexpr int kKeys = kStages * kStageBytes;
  static constexpr int kValues = kKeys + kKeyConsumers * kTileBytes;
  static constexpr int kBarriers = kValues + kKeyConsumers * kTileBytes;
  // Includes room to align the stages to the period of the swizzle.
  static constexpr int kSharedBytes = kBarriers + (2 * kStages + 1) * 8 + 1024;
};

// A warp's 16 rows of a tile as A operands.
__device__ __forceinline__ void LoadRows(uint32_t (&rows)[4][4], uint32_t tile) {
  const int32_t lane = threadIdx.x % 32;
  const int32_t row = threadIdx.x % 128 / 32 * 16 + lane % 16;
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    const int32_t chunk = (2 * k + lane / 16) ^ (row & 7);
    eta::cuda::LoadMatrices(rows[k], tile + row * 128 + chunk * 16);
  }
}

// Turns scores and gradients of weights, both keys by queries, into packed weights and gradients of
// scores. `stage` is the stage's shared memory, `largest_gates` the place in it of the warpgroup's
// largest gates. Queries whose bit is not set in `kept` have no weights.
template <int kHeadDim, GateKind kGate, bool kBlocks, bool kDiagonal>
__device__ __forceinline__ void DifferentiateColumns(
    const float (&scores)[8][4], const float (&grads)[8][4], uint32_t (&weights)[4][4],
    uint32_t (&packed)[4][4], const std::byte* stage, const std::byte* largest_gates, uint64_t kept,
    const GateFactors& gate) {
  using Shape = KeyGradShape<kHeadDim, kBlocks>;
  const int32_t lane = threadIdx.x % 32;
  const int32_t key = threadIdx.x % 128 / 32 * 16 + lane / 4;  // the other one is + 8
  const uint64_t bits = kept >> (lane % 4 * 2);
#pragma unroll
  for (int n = 0; n < 8; ++n) {
    const int32_t pair = 4 * n + lane % 4;
    asm volatile("" ::: "memory");  // loads of later columns wait: there are no registers for them
    const auto* from = reinterpret_cast<const float4*>(stage + Shape::kRows) + 2 * pair;
    const float4 first = from[0];
    const float4 second = from[1];
    const float bias[2] = {first.x, first.y};
    const float log_sum_exp[2] = {(bits >> (8 * n) & 1) != 0 ? first.z : INFINITY,
                                  (bits >> (8 * n + 1) & 1) != 0 ? first.w : INFINITY};
    const float delta[2] = {second.x, second.y};
    const float gate_grads[2] = {second.z, second.w};
    float2 block_grads = {};
    uint32_t largest = 0;
    if constexpr (kBlocks) {
      block_grads = reinterpret_cast<const float2*>(stage + Shape::kBlockGrads)[pair];
      largest = reinterpret_cast<const uint16_t*>(largest_gates)[pair];
    }
    float weight[4];
    float grad[4];
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      const int32_t own = key + e / 2 * 8;
      const int32_t query = 8 * n + lane % 4 * 2 + e % 2;
      const int side = e % 2;
      float gate_grad = gate_grads[side];
      if constexpr (kBlocks) {
        const uint32_t place = side == 0 ? largest & 0xff : largest >> 8;
        if (static_cast<uint32_t>(own) == place) {
          gate_grad += side == 0 ? block_grads.x : block_grads.y;
        }
      }
      ScoreGrad out = {};
      if (kDiagonal && own == query) {
        out = DifferentiateOwn<kGate>(scores[n][e], grads[n][e], bias[side], log_sum_exp[side],
                                      delta[side], gate_grad, gate);
      } else if (!kDiagonal || own < query) {
        out = Differentiate<kGate>(scores[n][e], grads[n][e], bias[side], log_sum_exp[side],
                                   delta[side], gate_grad, gate);
      }
      weight[e] = out.weight;
      grad[e] = out.grad;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int register_index = n % 2 * 2 + half;
      weights[n / 2][register_index] =
          eta::cuda::PackPair<BFloat16>(weight[2 * half], weight[2 * half + 1]);
      packed[n / 2][register_index] =
          eta::cuda::PackPair<BFloat16>(grad[2 * half], grad[2 * half + 1]);
    }
  }
}

template <int kHeadDim, GateKind kGate, bool kBlocks, bool kSelected>
__global__ void __launch_bounds__(kKeyThreads, 1)
    AttentionKeyGradKernel(const __grid_constant__ BackwardKernelParams params) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = KeyGradShape<kHeadDim, kBlocks>;
  Ring<Shape> ring;
  const uint32_t shared = ring.shared;
  auto& at = ring.at;
  const Work work = WorkOf(params.key_order);
  const HeadsShape& shape = params.shape;
  const int32_t sequence = work.head / shape.kv_heads;
  const int32_t kv_head = work.head % shape.kv_heads;
  const int32_t first_tile = work.tile * kKeyConsumers;
  const int32_t group = shape.group();
  const int32_t tiles = shape.tiles();
  const int32_t end_tile =
      EndTile<kSelected>(params.keys, (first_tile + kKeyConsumers) * 64, tiles);

  if (ring.warpgroup == kKeyConsumers) {
    ShrinkRegisters<24>();
    if (threadIdx.x % 128 != 0) return;
    Expect(ring.held_full, 2 * kKeyConsumers * Shape::kTileBytes);
    for (int i = 0; i < kKeyConsumers; ++i) {
      const int32_t to = i * Shape::kTileBytes;
      const int32_t token = (first_tile + i) * 64;
      CopyTile<kHeadDim>(shared + Shape::kKeys + to, params.k, kv_head, token, sequence,
                         ring.held_full);
      CopyTile<kHeadDim>(shared + Shape::kValues + to, params.v, kv_head, token, sequence,
                         ring.held_full);
    }
    constexpr uint32_t kBlockBytes = kBlocks ? 64 * 4 + kKeyConsumers * 64 : 0;
    for (int32_t i = 0; i < group; ++i) {
      const int32_t head = kv_head * group + i;
      const int64_t global_head = int64_t{sequence} * shape.query_heads + head;
#pragma unroll 1
      for (int32_t tile = first_tile; tile < end_tile; ++tile, at.Advance()) {
        eta::cuda::Wait(ring.empty + at.stage, at.phase ^ 1);
        Barrier* barrier = ring.full + at.stage;
        // The last CTA's second block may lie after the sequence's end.
        const bool second = kBlocks && first_tile + 1 < tiles;
        Expect(barrier, 2 * Shape::kTileBytes + Shape::kRowBytes + kBlockBytes -
                            (kBlocks && !second ? 64 : 0));
        const uint32_t to = shared + at.stage * Shape::kStageBytes;
        CopyTile<kHeadDim>(to, params.q, head, tile * 64, sequence, barrier);
        CopyTile<kHeadDim>(to + Shape::kGradients, params.grad_out, head, tile * 64, sequence,
                           barrier);
        const int64_t row = global_head * (tiles * 64) + tile * 64;
        CopyBytes(to + Shape::kRows, params.rows + row / 2, Shape::kRowBytes, barrier);
        if constexpr (kBlocks) {
          CopyBytes(to + Shape::kBlockGrads, params.block_grad + row, 64 * 4, barrier);
          const uint8_t* largest =
              params.largest + ((global_head * tiles + first_tile) * tiles + tile) * 64;
          CopyBytes(to + Shape::kLargest, largest, 64, barrier);
          if (second) CopyBytes(to + Shape::kLargest + 64, largest + tiles * 64, 64, barrier);
        }
      }
    }
    return;
  }

  GrowRegisters<240>();
  const GateFactors gate = params.gate;
  const int32_t diagonal = first_tile + ring.warpgroup;
  if (diagonal >= tiles) {
    for (int32_t i = 0; i < group * (end_tile - first_tile); ++i) ring.Skip();
    return;
  }
  const uint32_t keys = shared + Shape::kKeys + ring.warpgroup * Shape::kTileBytes;
  const uint32_t values = shared + Shape::kValues + ring.warpgroup * Shape::kTileBytes;
  [[maybe_unused]] uint32_t key_rows[4][4];
  [[maybe_unused]] uint32_t value_rows[4][4];
  eta::cuda::Wait(ring.held_full, 0);
  if constexpr (Shape::kKeysInRegisters) {
    LoadRows(key_rows, keys);
    LoadRows(value_rows, values);
  }
  float key_sums[kHeadDim / 64][8][4] = {};
  float value_sums[kHeadDim / 64][8][4] = {};
  float scores[8][4];
  float grads[8][4];
  uint32_t weights[4][4];
  uint32_t packed[4][4];
  const auto queries_of = [&](int32_t stage) { return shared + stage * Shape::kStageBytes; };
  const auto add_products = [&](int32_t stage) {
    AddProduct<kHeadDim>(value_sums, weights, queries_of(stage) + Shape::kGradients);
    AddProduct<kHeadDim>(key_sums, packed, queries_of(stage));
    wgmma::Commit();
  };
  // Weights and gradients of scores by the rows of stage `before`, if there is one; scores;
  // gradients of weights.
  const auto multiply = [&](auto has_before, int32_t before) {
    eta::cuda::Wait(ring.full + at.stage, at.phase);
    Pin(key_sums);
    Pin(value_sums);
    wgmma::Fence();
    if constexpr (has_before()) {
      if constexpr (!Shape::kEager) add_products(before);
    }
    const uint32_t queries = queries_of(at.stage);
    if constexpr (Shape::kKeysInRegisters) {
      MultiplyRows(scores, key_rows, queries);
      MultiplyRows(grads, value_rows, queries + Shape::kGradients);
    } else {
      MultiplyTiles<kHeadDim>(scores, keys, queries);
      MultiplyTiles<kHeadDim>(grads, values, queries + Shape::kGradients);
    }
    wgmma::Commit();
    wgmma::Wait<0>();
    wgmma::Pin(scores);
    wgmma::Pin(grads);
    Pin(key_sums);
    Pin(value_sums);
  };
  const auto finish_products = [&](int32_t stage) {
    wgmma::Fence();
    add_products(stage);
    wgmma::Wait<0>();
    Pin(key_sums);
    Pin(value_sums);
  };
  // Each warpgroup has its own largest gates.
  const std::byte* stages = ring.memory + ring.warpgroup * 64;
  const int32_t own_end_tile = EndTile<kSelected>(params.keys, (diagonal + 1) * 64, tiles);
  for (int32_t i = 0; i < group; ++i) {
    for (int32_t tile = first_tile; tile < diagonal; ++tile) ring.Skip();
    TileWords words(params.keys, (int64_t{work.head} * tiles + diagonal) * tiles + diagonal + 1, 1,
                    kSelected ? own_end_tile - diagonal - 1 : 0);
    bool waiting = true;  // whether the stage before has products that have not begun
    multiply(std::false_type{}, 0);
    if constexpr (kSelected) MaskWindow<true>(scores, -params.keys.window);
    DifferentiateColumns<kHeadDim, kGate, kBlocks, true>(
        scores, grads, weights, packed, ring.memory + at.stage * Shape::kStageBytes,
        stages + at.stage * Shape::kStageBytes + Shape::kLargest, ~uint64_t{0}, gate);
    if constexpr (Shape::kEager) finish_products(at.stage);
    for (int32_t tile = diagonal + 1; tile < own_end_tile; ++tile) {
      const int32_t before = at.stage;
      at.Advance();
      uint64_t kept = ~uint64_t{0};
      if constexpr (kSelected) {
        kept = words.Take();
        if (kept == 0) {
          if constexpr (!Shape::kEager) {
            if (waiting) finish_products(before);
            waiting = false;
          }
          ring.Release(before);
          eta::cuda::Wait(ring.full + at.stage, at.phase);
          continue;
        }
      }
      if (waiting) {
        multiply(std::true_type{}, before);
      } else {
        multiply(std::false_type{}, before);
      }
      waiting = true;
      ring.Release(before);
      if constexpr (kSelected) {
        MaskWindow<true>(scores, (tile - diagonal) * 64 - params.keys.window);
      }
      DifferentiateColumns<kHeadDim, kGate, kBlocks, false>(
          scores, grads, weights, packed, ring.memory + at.stage * Shape::kStageBytes,
          stages + at.stage * Shape::kStageBytes + Shape::kLargest, kept, gate);
      if constexpr (Shape::kEager) finish_products(at.stage);
    }
    if constexpr (!Shape::kEager) {
      if (waiting) finish_products(at.stage);
    }
    ring.Release(at.stage);
    at.Advance();
    for (int32_t tile = own_end_tile; tile < end_tile; ++tile) ring.Skip();
  }
  const int64_t first_token = int64_t{sequence} * shape.tokens + diagonal * 64;
  const auto store = [&](const float(&sums)[kHeadDim / 64][8][4], float factor,
                         const HeadsOut& out) {
    const float factors[2] = {factor, factor};
    StoreTile<kHeadDim>(sums, factors, out.data + first_token * out.stride + kv_head * kHeadDim,
                        out.stride, shape.tokens - diagonal * 64);
  };
  store(key_sums, kLn2, params.grad_k);
  store(value_sums, 1.0f, params.grad_v);
#else
  __trap();
#endif
}

}  // namespace eta::training::cuda
