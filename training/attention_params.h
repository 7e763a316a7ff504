// Gated causal attention of training, forward and backward (the paper's "Hardware-Aligned Training
// Kernel", algorithms 1 and 2).
//
// Of head h, query t and key s <= t of one sequence, h of KV head h / G:
//   S = scale * <q_t, k_s>     m = sigma(beta * (S - tau_t))     C = kAdditivePenalty
//   kNone      S~ = S
//   kSilu      S~ = S * (1 - g + g * m)
//   kAdditive  S~ = S + g * C * (m - 1)
// On the diagonal, s == t, S~ = S. The output is the softmax of S~ times V. The gate strength g in
// [0, 1] leads a dense model to a gated one: 0 is dense attention, 1 the paper's.
//
// Row sums that a loss may ask for, both with the diagonal's m:
//   gate_sum   sum of m over s <= t
//   block_sum  sum, over the whole blocks of kRegulariserBlock keys that lie at or before t, of the
//              largest m in the block. With `group_blocks` the largest over the G heads of the
//              group too, so that a block counts once per KV head.
#pragma once

#include <cstddef>
#include <cstdint>

#include "training/tensor.h"

namespace eta::training {

enum class GateKind : uint8_t { kNone, kSilu, kAdditive };

inline constexpr float kAdditivePenalty = 100.0f;
inline constexpr int32_t kRegulariserBlock = 64;  // the server's default block

// Rows b * T + t, b < sequences, t < length.
struct AttentionShape {
  int32_t sequences = 0;        // B
  int32_t length = 0;           // T, any
  int32_t num_query_heads = 0;  // HQ
  int32_t num_kv_heads = 0;     // HKV, divides HQ
  int32_t head_dim = 0;         // d
  float scale = 0.0f;           // 1 / sqrt(d)

  int64_t rows() const { return int64_t{sequences} * length; }
  int32_t group() const { return num_query_heads / num_kv_heads; }  // G
};

struct AttentionGate {
  GateKind kind = GateKind::kNone;
  float beta = 1.0f;
  float strength = 1.0f;      // g; at 0 the gate is still measured
  bool group_blocks = false;  // block_sum: per KV head, else per query head

  // HB: heads of block_sum.
  int32_t block_heads(const AttentionShape& shape) const {
    return group_blocks ? shape.num_kv_heads : shape.num_query_heads;
  }
};

// Keys that a row attends to, of those at or before it. Only with GateKind::kNone.
struct KeySelection {
  // [B, HKV, N, N], N = Blocks(T): bit i of element [b, g, j, c] says that query 64 c + i of KV
  // head g's heads attends to the keys of block j. Of every query the bit of its own block is set.
  // Null: all blocks.
  const uint64_t* blocks = nullptr;
  int32_t window = 0;  // the row's last keys, its own among them; 0: all

  // Blocks of kRegulariserBlock tokens, the last of them perhaps in part.
  static constexpr int32_t Blocks(int32_t tokens) {
    return (tokens + kRegulariserBlock - 1) / kRegulariserBlock;
  }
  bool all() const { return blocks == nullptr && window == 0; }
};

struct AttentionForwardParams {
  AttentionShape shape;
  AttentionGate gate;
  Tensor q;          // [B T, HQ d] activations, after RoPE
  Tensor k;          // [B T, HKV d] activations, after RoPE
  Tensor v;          // [B T, HKV d] activations
  const float* tau;  // [B T, HQ]; null with kNone
  Tensor out;        // [B T, HQ d] activations
  float* lse;        // [B, HQ, T], log-sum-exp of S~
  float* gate_sum;   // [B, HQ, T]; null: not wanted, as always with kNone
  float* block_sum;  // [B, HB, T]; likewise
  // Memory in which the backend keeps what its backward op needs, AttentionSavedBytes(); null if
  // that is 0, or if there will be no backward op.
  std::byte* saved;
  KeySelection keys{};
};

// The gradient of one kind of row sums: element [b, h, t] is
// data[b * sequence_stride + h * head_stride + t]. Strides of 0 give all sequences, or all heads,
// the same [T]. Null: 0 everywhere.
struct RowGradient {
  const float* data = nullptr;
  int64_t sequence_stride = 0;
  int64_t head_stride = 0;
};

// Every gradient is written, not added to, and the same bits come out each time. Among equal
// gates of a block the gradient of block_sum goes to the first head's first key.
struct AttentionBackwardParams {
  // As it was given to the forward op, with what it wrote; gate_sum and block_sum are not read.
  AttentionForwardParams forward;
  Tensor grad_out;             // [B T, HQ d] activations
  RowGradient grad_gate_sum;   // of [B, HQ, T]
  RowGradient grad_block_sum;  // of [B, HB, T]
  Tensor grad_q;               // [B T, HQ d] activations
  Tensor grad_k;               // [B T, HKV d] activations
  Tensor grad_v;               // [B T, HKV d] activations
  float* grad_tau;             // [B T, HQ]; null with kNone
};

}  // namespace eta::training
