// The rows of compressed attention between its products: scores become weights, and name blocks;
// weights and their gradients become gradients of scores. A warp holds a row in registers, four
// neighbouring windows of every 128 in a lane: those that begin in one block of 64 keys.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/fast_math.cuh"
#include "training/cuda/rows/elements.cuh"
#include "training/native_sparse_params.h"

namespace eta::training::cuda {

inline constexpr int kPieceWindows = 128;
inline constexpr int kWarps = kThreads / 32;
static_assert(4 * kCompressedStride == kRegulariserBlock && kCompressedWindow == 32);

// Rows of some tokens of some sequences, of the heads of one KV head: matrices [G, sequences,
// tokens, padded] of float32. What a kernel writes lies in the first half of a row, in bfloat16.
struct CompressedRows {
  int32_t group;  // G
  int32_t sequences;
  int32_t tokens;
  int32_t first_token;  // of a sequence; a multiple of 64
  int32_t padded;       // columns, a multiple of 8; those from C on are no windows
  float scale;
  float* lse;  // of the first row; rows of the next head are T on
  int64_t length;
  int64_t lse_sequence;  // from sequence to sequence

  __device__ __forceinline__ int64_t RowOf(int32_t head, int32_t sequence, int32_t token) const {
    return (int64_t{head} * sequences + sequence) * tokens + token;
  }
  __device__ __forceinline__ float& LseOf(int32_t head, int32_t sequence, int32_t token) const {
    return lse[sequence * lse_sequence + head * length + token];
  }
};

// Windows before `seen`; 0 after them.
template <int kPieces>
__device__ __forceinline__ void LoadWindows(const float* row, int32_t seen,
                                            float (&to)[kPieces][4]) {
  const int32_t lane = threadIdx.x % 32;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int32_t col = p * kPieceWindows + lane * 4;
    if (col < seen) {
      eta::cuda::LoadElements<float, 4>(row + col, to[p]);
    } else {
#pragma unroll
      for (int e = 0; e < 4; ++e) to[p][e] = 0.0f;
    }
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      if (col + e >= seen) to[p][e] = 0.0f;
    }
  }
}

// Over the row's own scores: all lanes have loaded theirs and joined since.
template <int kPieces>
__device__ __forceinline__ void StoreWindows(const float (&from)[kPieces][4], float* row,
                                             int32_t padded) {
  auto* to = reinterpret_cast<__nv_bfloat16*>(row);
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const int32_t col = p * kPieceWindows + static_cast<int32_t>(threadIdx.x % 32) * 4;
    if (col < padded) eta::cuda::StoreElements<__nv_bfloat16, 4>(from[p], to + col);
  }
}

__device__ __forceinline__ float MaximumOfWarp(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    value = fmaxf(value, __shfl_xor_sync(~0u, value, step));
  }
  return value;
}

// Softmax of a row's scores, in place, and its lse. A row that sees no window has weights of 0.
template <int kPieces>
__device__ __forceinline__ float WeighRow(float (&x)[kPieces][4], int32_t seen, float factor) {
  const int32_t lane = threadIdx.x % 32;
  float largest = -INFINITY;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      x[p][e] = p * kPieceWindows + lane * 4 + e < seen ? x[p][e] * factor : -INFINITY;
      largest = fmaxf(largest, x[p][e]);
    }
  }
  largest = MaximumOfWarp(largest);
  const float reference = seen > 0 ? largest : 0.0f;
  float sum = 0.0f;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      x[p][e] = eta::cuda::Exp2(x[p][e] - reference);
      sum += x[p][e];
    }
  }
  sum = SumOfWarp(sum);
  const float inverse = seen > 0 ? 1.0f / sum : 0.0f;
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int e = 0; e < 4; ++e) x[p][e] *= inverse;
  }
  return seen > 0 ? eta::cuda::kLn2 * (reference + log2f(sum)) : -INFINITY;
}

// Sets a row's bit in the words of the blocks that it selects. `total`: the group's weights of each
// window. `own` is the row's block.
template <int kPieces>
__device__ __forceinline__ void SelectBlocks(const float (&total)[kPieces][4], int32_t own,
                                             unsigned long long bit, unsigned long long* words) {
  constexpr int kAlways = 3;  // own, the one before, the first
  const int32_t lane = threadIdx.x % 32;
  if (own < kSelectedBlocks) {
    if (lane <= own) atomicOr(words + lane, bit);
    return;
  }
  float importance[kPieces];
  float last = 0.0f;  // the last window of the piece before
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
    const float own_last = total[p][3];
    float before = __shfl_up_sync(~0u, own_last, 1);
    if (lane == 0) before = last;
    last = __shfl_sync(~0u, own_last, 31);
    const int32_t block = p * 32 + lane;
    importance[p] = block > 0 && block < own - 1
                        ? before + 2.0f * (total[p][0] + total[p][1] + total[p][2]) + own_last
                        : -1.0f;
  }
  if (lane == 0) {
    atomicOr(words, bit);
    atomicOr(words + own - 1, bit);
    atomicOr(words + own, bit);
  }
  for (int pick = 0; pick < kSelectedBlocks - kAlways; ++pick) {
    // As integers: numbers from 0 on keep their order, and -1 is below them.
    int32_t best = __float_as_int(importance[0]);
    int32_t block = lane;
#pragma unroll
    for (int p = 1; p < kPieces; ++p) {
      const int32_t value = __float_as_int(importance[p]);
      if (value > best) {
        best = value;
        block = p * 32 + lane;
      }
    }
    const int32_t largest = __reduce_max_sync(~0u, best);
    const int32_t chosen = __reduce_min_sync(~0u, best == largest ? block : kPieces * 32);
#pragma unroll
    for (int p = 0; p < kPieces; ++p) {
      if (p * 32 + lane == chosen) importance[p] = -1.0f;
    }
    if (lane == 0) atomicOr(words + chosen, bit);
  }
}

struct WeighArgs {
  CompressedRows rows;
  float* scores;          // become weights
  uint64_t* selected;     // of the first sequence and the KV head [N, N]
  int64_t selected_step;  // from sequence to sequence
  int32_t blocks;         // N
};

// A CTA takes one block of queries of one sequence.
template <int kPieces>
__global__ void __launch_bounds__(kThreads) WeighWindows(const __grid_constant__ WeighArgs args) {
  extern __shared__ unsigned long long words[];  // of each block of keys
  Begin();
  const CompressedRows& rows = args.rows;
  const auto sequence = static_cast<int32_t>(blockIdx.y);
  const int32_t first = static_cast<int32_t>(blockIdx.x) * kRegulariserBlock;
  const int32_t own = (rows.first_token + first) / kRegulariserBlock;
  const int32_t lane = threadIdx.x % 32;
  for (int32_t i = threadIdx.x; i < args.blocks; i += kThreads) words[i] = 0;
  __syncthreads();
  const int32_t count = min(kRegulariserBlock, rows.tokens - first);
  for (int32_t row = threadIdx.x / 32; row < count; row += kWarps) {
    const int32_t token = first + row;
    const int32_t seen = CompressedCountAt(rows.first_token + token);
    float total[kPieces][4] = {};
    for (int32_t head = 0; head < rows.group; ++head) {
      float* scores = args.scores + rows.RowOf(head, sequence, token) * rows.padded;
      float x[kPieces][4];
      LoadWindows(scores, seen, x);
      const float lse = WeighRow(x, seen, rows.scale * eta::cuda::kLog2E);
      __syncwarp();
      StoreWindows(x, scores, rows.padded);
#pragma unroll
      for (int p = 0; p < kPieces; ++p) {
#pragma unroll
        for (int e = 0; e < 4; ++e) total[p][e] += x[p][e];
      }
      if (lane == 0) rows.LseOf(head, sequence, token) = lse;
    }
    SelectBlocks(total, own, 1ull << row, words);
  }
  __syncthreads();
  uint64_t* to = args.selected + sequence * args.selected_step + own;
  for (int32_t i = threadIdx.x; i < args.blocks; i += kThreads) {
    to[int64_t{i} * args.blocks] = words[i];
  }
}

struct DifferentiateArgs {
  CompressedRows rows;
  float* scores;  // become weights
  float* grads;   // of weights; become those of scores
};

// A warp takes one row.
template <int kPieces>
__global__ void __launch_bounds__(kThreads)
    DifferentiateWindows(const __grid_constant__ DifferentiateArgs args) {
  Begin();
  const CompressedRows& rows = args.rows;
  const int64_t index = ThreadIndex() / 32;
  if (index >= int64_t{rows.group} * rows.sequences * rows.tokens) return;
  const auto token = static_cast<int32_t>(index % rows.tokens);
  const auto sequence = static_cast<int32_t>(index / rows.tokens % rows.sequences);
  const auto head = static_cast<int32_t>(index / rows.tokens / rows.sequences);
  const int32_t lane = threadIdx.x % 32;
  const int32_t seen = CompressedCountAt(rows.first_token + token);
  const float shift = -eta::cuda::kLog2E * rows.LseOf(head, sequence, token);
  const float factor = rows.scale * eta::cuda::kLog2E;
  float weights[kPieces][4];
  float grads[kPieces][4];
  LoadWindows(args.scores + index * rows.padded, seen, weights);
  LoadWindows(args.grads + index * rows.padded, seen, grads);
  float delta = 0.0f;  // sum of grad_out * out
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      weights[p][e] = p * kPieceWindows + lane * 4 + e < seen
                          ? eta::cuda::Exp2(fmaf(weights[p][e], factor, shift))
                          : 0.0f;
      delta = fmaf(weights[p][e], grads[p][e], delta);
    }
  }
  delta = SumOfWarp(delta);
#pragma unroll
  for (int p = 0; p < kPieces; ++p) {
#pragma unroll
    for (int e = 0; e < 4; ++e) {
      grads[p][e] = weights[p][e] * (grads[p][e] - delta) * rows.scale;
    }
  }
  __syncwarp();
  StoreWindows(weights, args.scores + index * rows.padded, rows.padded);
  StoreWindows(grads, args.grads + index * rows.padded, rows.padded);
}

}  // namespace eta::training::cuda
