// What is done per query before and after the attention kernels: the numbers that the backward
// kernels read (QueryRows), and block sums that count a block once for a group of heads.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "training/attention_params.h"
#include "training/cuda/attention/gate_math.cuh"
#include "training/cuda/attention/kernel_params.h"

namespace eta::training::cuda {

inline constexpr int kRowLanes = 16;  // threads of a row
inline constexpr int kRowThreads = 256;

struct RowsParams {
  HeadsShape shape;
  const __nv_bfloat16* out;
  int64_t out_stride;
  const __nv_bfloat16* grad_out;
  int64_t grad_out_stride;
  const float* tau;  // may be null
  const float* log_sum_exp;
  RowGradient grad_gate_sum;
  RowGradient grad_block_sum;
  int32_t block_group;  // query heads that share a row of grad_block_sum
  float bias_slope;
  float sum_factor;  // GateFactors::sum
  QueryRows* rows;
  float* block_grad;  // may be null
};

__device__ __forceinline__ float GradientAt(const RowGradient& gradient, int32_t b, int32_t h,
                                            int32_t t) {
  if (gradient.data == nullptr) return 0.0f;
  return gradient.data[b * gradient.sequence_stride + h * gradient.head_stride + t];
}

// 16 lanes take one query of one head.
template <int kHeadDim>
__global__ void __launch_bounds__(kRowThreads)
    QueryRowsKernel(const __grid_constant__ RowsParams params) {
  constexpr int kCount = kHeadDim / kRowLanes;
  eta::cuda::WaitForPrevious();
  eta::cuda::AllowNext();
  const HeadsShape& shape = params.shape;
  const int64_t index =
      (int64_t{blockIdx.x} * kRowThreads + static_cast<int64_t>(threadIdx.x)) / kRowLanes;
  const int32_t lane = threadIdx.x % kRowLanes;
  const auto head = static_cast<int32_t>(index % shape.query_heads);
  const int64_t row = index / shape.query_heads;
  const auto t = static_cast<int32_t>(row % shape.padded_tokens());
  const auto b = static_cast<int32_t>(row / shape.padded_tokens());
  if (b >= shape.sequences) return;
  const bool used = t < shape.tokens;
  const int64_t token = int64_t{b} * shape.tokens + t;
  float delta = 0.0f;
  if (used) {
    float out[kCount];
    float grad[kCount];
    const int64_t column = int64_t{head} * kHeadDim + lane * kCount;
    eta::cuda::LoadElements(params.out + token * params.out_stride + column, out);
    eta::cuda::LoadElements(params.grad_out + token * params.grad_out_stride + column, grad);
#pragma unroll
    for (int i = 0; i < kCount; ++i) delta = fmaf(out[i], grad[i], delta);
  }
  const uint32_t lanes = 0xffffu << (threadIdx.x % 32 / kRowLanes * kRowLanes);
#pragma unroll
  for (int step = kRowLanes / 2; step > 0; step /= 2) delta += __shfl_xor_sync(lanes, delta, step);
  if (lane != 0) return;
  const int64_t global_head = int64_t{b} * shape.query_heads + head;
  const int64_t to = global_head * shape.padded_tokens() + t;
  QueryRows& pair = params.rows[to / 2];
  const int side = t % 2;
  pair.bias[side] = used && params.tau != nullptr
                        ? params.bias_slope * params.tau[token * shape.query_heads + head]
                        : 0.0f;
  pair.log_sum_exp[side] =
      used ? kLog2E * params.log_sum_exp[global_head * shape.tokens + t] : INFINITY;
  pair.delta[side] = delta;
  pair.gate_grad[side] =
      used ? params.sum_factor * GradientAt(params.grad_gate_sum, b, head, t) : 0.0f;
  if (params.block_grad != nullptr) {
    params.block_grad[to] = used ? params.sum_factor * GradientAt(params.grad_block_sum, b,
                                                                  head / params.block_group, t)
                                 : 0.0f;
  }
}

struct GroupBlocksParams {
  HeadsShape shape;
  int32_t first_head;       // KV heads of all sequences
  float* block_sum;         // [B, HKV, T]
  uint8_t* largest;         // ForwardKernelParams::largest; only the winner's stays
  const float* block_gate;  // ForwardKernelParams::block_gate, from first_head's first query head
};

inline constexpr int kGroupThreads = 128;

// A thread takes one query of one KV head: of each whole block it keeps the largest gate of all
// heads of the group, the first of equal ones.
__global__ void __launch_bounds__(kGroupThreads)
    GroupBlocksKernel(const __grid_constant__ GroupBlocksParams params) {
  eta::cuda::WaitForPrevious();
  eta::cuda::AllowNext();
  const HeadsShape& shape = params.shape;
  const auto t = static_cast<int32_t>(blockIdx.x * kGroupThreads + threadIdx.x);
  if (t >= shape.tokens) return;
  const int64_t local = blockIdx.y;
  const int64_t head = params.first_head + local;
  const int32_t group = shape.group();
  const int64_t head_size = int64_t{shape.tiles()} * shape.padded_tokens();
  float sum = 0.0f;
  for (int32_t block = 0; block < (t + 1) / 64; ++block) {
    const int64_t at = int64_t{block} * shape.padded_tokens() + t;
    const float* gates = params.block_gate + local * group * head_size + at;
    float best = gates[0];
    int32_t winner = 0;
    for (int32_t i = 1; i < group; ++i) {
      const float gate = gates[i * head_size];
      if (gate > best) {
        best = gate;
        winner = i;
      }
    }
    sum += 1.0f / (1.0f + Exp2(-2.0f * kLog2E * best));
    if (params.largest == nullptr) continue;
    for (int32_t i = 0; i < group; ++i) {
      if (i != winner) params.largest[(head * group + i) * head_size + at] = kNoLargest;
    }
  }
  params.block_sum[head * shape.tokens + t] = sum;
}

}  // namespace eta::training::cuda
