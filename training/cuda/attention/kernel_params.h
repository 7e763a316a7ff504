// What the kernels of gated attention take. Tensors of heads are [B, T, H, d] in bfloat16; numbers
// of one query are [B, HQ, T], but for tau and its gradient [B, T, HQ]. T' is T rounded up to whole
// tiles of 64 tokens.
#pragma once

#include <cuda.h>
#include <cuda_bf16.h>

#include <cstdint>

#include "training/attention_params.h"

namespace eta::training::cuda {

struct HeadsShape {
  int32_t sequences = 0;    // B
  int32_t tokens = 0;       // T
  int32_t query_heads = 0;  // HQ
  int32_t kv_heads = 0;     // HKV

  __host__ __device__ int32_t group() const { return query_heads / kv_heads; }
  __host__ __device__ int32_t tiles() const { return (tokens + 63) / 64; }
  __host__ __device__ int32_t padded_tokens() const { return tiles() * 64; }
};

// The gate in the form in which the kernels compute it. With a = <q, k>, t = tanh(slope * a + bias)
// and bias = bias_slope * tau the gate is (1 + t) / 2. Logits are base 2:
//   silu      a * (open + gated * t)
//   additive  a * full + (open + gated * t)
struct GateFactors {
  float full;  // an ungated logit: a * full
  float open;
  float gated;
  float slope;
  float bias_slope;
  // The gradient of a score, base 2, through its gate is y * (1 - t^2), where dl is the gradient of
  // the score's logit and ds that of the gate's sum:
  //   silu      y = dl * a * through + ds * sum
  //   additive  y = dl * through + ds * sum
  float through;
  float sum;
};

// The order in which CTAs take work: head by head in sections whose keys stay in the L2 cache, and
// in a section the longest tiles of all heads first. `head` numbers heads of all sequences.
struct WorkOrder {
  int32_t first_head = 0;
  int32_t heads = 0;
  int32_t tiles = 0;    // of a head
  int32_t section = 0;  // heads of a section
};

// KeySelection, with a window of at least 1 and at most T.
struct SelectedKeys {
  const uint64_t* blocks = nullptr;
  int32_t window = 0;
};

// A tensor of heads that kernels write.
struct HeadsOut {
  __nv_bfloat16* data = nullptr;
  int64_t stride = 0;  // elements from token to token
};

struct ForwardKernelParams {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  HeadsShape shape;
  WorkOrder order;
  GateFactors gate;
  const float* tau;
  HeadsOut out;
  float* log_sum_exp;  // natural
  float* gate_sum;     // may be null
  // Of whole blocks of 64 keys; each may be null.
  float* block_sum;   // sum of the largest gates
  uint8_t* largest;   // the place of the largest gate [B, HQ, T' / 64, T'], kNoLargest if not whole
  float* block_gate;  // the argument of its tanh, [B, HQ, T' / 64, T']; a head's own whole blocks
  SelectedKeys keys;
};

inline constexpr uint8_t kNoLargest = 255;

// Two neighbouring queries' numbers, as they lie in BackwardKernelParams::rows [B, HQ, T' / 2].
struct alignas(32) QueryRows {
  float bias[2];         // of the gate
  float log_sum_exp[2];  // base 2; infinite for queries from T on
  float delta[2];        // sum of grad_out * out
  float gate_grad[2];    // gradient of the gate sum, times GateFactors::sum
};

struct BackwardKernelParams {
  CUtensorMap q;
  CUtensorMap k;
  CUtensorMap v;
  CUtensorMap grad_out;
  HeadsShape shape;
  WorkOrder query_order;
  WorkOrder key_order;
  GateFactors gate;
  float tau_factor;  // of the sum over keys, for the gradient of tau
  const QueryRows* rows;
  const float* block_grad;  // gradient of the block sum, times GateFactors::sum [B, HQ, T']
  const uint8_t* largest;   // ForwardKernelParams::largest
  HeadsOut grad_q;
  HeadsOut grad_k;
  HeadsOut grad_v;
  float* grad_tau;
  SelectedKeys keys;
};

}  // namespace eta::training::cuda
