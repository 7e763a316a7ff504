// One parameter struct per op of training, in the order in which a layer calls them, forward and
// backward beside each other. Pointers are in the backend's memory unless a comment says host.
//
// R = B T rows, D model dimension, V vocabulary, F width of the feed-forward layer.
// "Activations" are of TrainingBackend::activation_dtype(), "residual" of residual_dtype(). Weights
// of products are tensors of the activations' type; gradients of parameters are float32 and are
// always added to; a null gradient of a parameter says that it is frozen.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "kernels/rope_scaling.h"
#include "training/attention_params.h"
#include "training/native_sparse_params.h"
#include "training/tensor.h"

namespace eta::training {

struct EmbedParams {
  std::span<const int32_t> tokens;  // [R], host, each in [0, V)
  Tensor table;                     // [V, D] weights
  Tensor out;                       // [R, D] residual
};

struct EmbedBackwardParams {
  std::span<const int32_t> tokens;  // [R], host
  Tensor grad_out;                  // [R, D] residual
  float* grad_table;                // [V, D]
};

// out = x * inverse_rms * weight, inverse_rms = 1 / sqrt(mean of x^2 + eps)
struct RmsNormParams {
  Tensor x;             // [R, D] residual
  const float* weight;  // [D]
  float eps;
  Tensor out;          // [R, D] activations
  float* inverse_rms;  // [R]
};

struct RmsNormBackwardParams {
  Tensor x;                  // [R, D] residual
  const float* weight;       // [D]
  const float* inverse_rms;  // [R]
  Tensor grad_out;           // [R, D] activations
  Tensor grad_x;             // [R, D] residual, added to
  float* grad_weight;        // [D]
};

// out = x weight^T (+ out, if accumulate)
struct MatMulParams {
  Tensor x;         // [R, K] activations
  Tensor weight;    // [N, K] weights
  Tensor out;       // [R, N] activations or residual
  bool accumulate;  // only into the residual
};

// grad_x = grad_out weight
struct MatMulInputParams {
  Tensor grad_out;  // [R, N] activations
  Tensor weight;    // [N, K] weights
  Tensor grad_x;    // [R, K] activations
};

// grad_weight += grad_out^T x
struct MatMulWeightParams {
  Tensor grad_out;     // [R, N] activations
  Tensor x;            // [R, K] activations
  float* grad_weight;  // [N, K]
};

// x += bias, in every row
struct AddBiasParams {
  Tensor x;           // [R, N] activations or residual
  const float* bias;  // [N]
};

struct BiasBackwardParams {
  Tensor grad_out;   // [R, N] activations or residual
  float* grad_bias;  // [N]
};

// RmsNorm of every head over its d elements, with one weight for all heads of q and one for those
// of k.
struct NormHeadsParams {
  Tensor q;               // [R, HQ d] activations
  Tensor k;               // [R, HKV d] activations
  const float* q_weight;  // [d]
  const float* k_weight;  // [d]
  int32_t head_dim;
  float eps;
  Tensor q_out;          // [R, HQ d] activations; not q
  Tensor k_out;          // [R, HKV d] activations; not k
  float* q_inverse_rms;  // [R, HQ]
  float* k_inverse_rms;  // [R, HKV]
};

struct NormHeadsBackwardParams {
  NormHeadsParams forward;  // as it was given to the forward op
  Tensor grad_q;            // [R, HQ d] activations, of q_out; becomes that of q, in place
  Tensor grad_k;            // [R, HKV d] activations, likewise
  float* grad_q_weight;     // [d]
  float* grad_k_weight;     // [d]
};

// Rotates q and k in place: half-split, the row's position is its index modulo `length`
// (eta-semantics.md, "Model"), times `stride` and after `first`. `inverse` turns gradients back:
// every pair by the opposite angle, and it grows by scaling.attention_factor all the same.
struct RopeParams {
  Tensor q;  // [R, HQ d] activations; empty: keys alone
  Tensor k;  // [R, HKV d] activations
  int32_t head_dim;
  int32_t length;  // T
  double theta;
  RopeScaling scaling{};
  bool inverse = false;
  int32_t first = 0;   // position of a sequence's first row
  int32_t stride = 1;  // positions from row to row
};

// tau = q W^T + b in float32. Without a weight tau = b: one learned constant per head.
struct ThresholdParams {
  int32_t num_heads;    // HQ
  Tensor q;             // [R, HQ d] activations, after RoPE
  const float* weight;  // [HQ, HQ d]; null: none
  const float* bias;    // [HQ]
  float* tau;           // [R, HQ]
};

struct ThresholdBackwardParams {
  int32_t num_heads;      // HQ
  Tensor q;               // [R, HQ d] activations
  const float* weight;    // [HQ, HQ d]; null: none
  const float* grad_tau;  // [R, HQ]
  Tensor grad_q;          // [R, HQ d] activations, added to; not touched without a weight
  float* grad_weight;     // [HQ, HQ d]
  float* grad_bias;       // [HQ]
};

// out = silu(gate) * up
struct SwiGluParams {
  Tensor gate_up;  // [R, 2F] activations: gate in the first F columns, up in the rest
  Tensor out;      // [R, F] activations
};

struct SwiGluBackwardParams {
  Tensor gate_up;       // [R, 2F] activations
  Tensor grad_out;      // [R, F] activations
  Tensor grad_gate_up;  // [R, 2F] activations; may be gate_up
};

// Losses of the head, and their gradients in the same call. With logits z = head hidden, p their
// softmax and P the teacher's softmax, row r has
//   cross_entropy = -log p[target]      divergence = sum_v P_v (log P_v - log p_v)
// and the loss is the sum over rows of ce_weight * cross_entropy + kl_weight * divergence. Logits
// of all rows are never in memory at once.
struct HeadLossParams {
  Tensor hidden;                      // [R, D] activations, after the last norm
  Tensor head;                        // [V, D] weights
  std::span<const int32_t> targets;   // [R], host; -1: the row has none
  std::span<const float> ce_weights;  // [R], host; not read where there is no target
  Tensor teacher_hidden;              // [R, DT] activations; empty: no teacher
  Tensor teacher_head;                // [V, DT] weights
  std::span<const float> kl_weights;  // [R], host; empty without a teacher
  float* cross_entropy;               // [R], not weighted; 0 without a target
  float* divergence;                  // [R], not weighted; null without a teacher
  Tensor grad_hidden;                 // [R, D] activations, written; empty: losses alone
  float* grad_head;                   // [V, D]
  // [R], 1 where the target has the largest logit, the first of equals, else 0; null: not wanted.
  float* hit = nullptr;
};

// out[h] += sum over b and t of x[b, h, t] * weights[t]
struct WeighRowSumsParams {
  const float* x;  // [B, H, T]
  int32_t sequences;
  int32_t heads;
  int32_t length;
  const float* weights;  // [T]
  float* out;            // [H]
};

// AdamW with decoupled weight decay (Loshchilov and Hutter, "Decoupled Weight Decay
// Regularization", ICLR 2019), element by element, with g = gradient_scale * gradient:
//   first = beta1 first + (1 - beta1) g          second = beta2 second + (1 - beta2) g^2
//   value -= rate * (first / (1 - beta1^step) / (sqrt(second / (1 - beta2^step)) + epsilon)
//                    + weight_decay * value)
struct AdamWParams {
  float* values;
  const float* gradients;
  float* first;
  float* second;
  void* rounded;  // the values in activation_dtype(), written; null where that is float32
  int64_t count;
  int64_t step;  // from 1
  float rate;
  float beta1;
  float beta2;
  float epsilon;
  float weight_decay;
  float gradient_scale;
};

}  // namespace eta::training
