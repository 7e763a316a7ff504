// Rows of float32 in the best instruction set of the machine. Sums run in an order that the length
// and the instruction set fix.
#pragma once

#include <cstdint>

#include "training/attention_params.h"

namespace eta::training::cpu {

// Keys of a tile of attention: rows of a tile have this many elements, all of them readable and
// writable, the last ones of no meaning where there are fewer keys.
inline constexpr int32_t kTileKeys = 64;

float Dot(const float* a, const float* b, int64_t count);
double SumOfSquares(const float* x, int64_t count);

// out = silu(gate) * up
void SiluTimes(const float* gate, const float* up, float* out, int64_t count);
// `grad_gate` may be `gate`, `grad_up` may be `up`.
void SiluTimesBackward(const float* gate, const float* up, const float* grad, float* grad_gate,
                       float* grad_up, int64_t count);

// The largest of `count` >= 1 elements.
float Largest(const float* x, int64_t count);
// x = exp(x - shift). Returns their sum.
float ExpShifted(float* x, float shift, int64_t count);

// Of one row of a tile: m and 1 - m of the scores, each to its own relative precision.
void Gates(const AttentionGate& gate, float tau, const float* scores, float* open, float* closed);
// The logits S~ of keys that the gate tempers.
void Logits(const AttentionGate& gate, const float* scores, const float* open, const float* closed,
            float* logits);

// One row of a tile on the way back.
struct RowBackward {
  const float* scores;
  const float* open;
  const float* closed;
  const float* grad_weights;  // dP
  float* weights;             // in: the logits S~; out: P
  float* grad_scores;         // out: dS, not scaled
};
struct RowScalars {
  float lse;
  float mean;           // sum_k P_k dP_k
  float grad_gate_sum;  // of the row
};
// `keys` of the row, all gated; elements after them become 0. Returns the sum of dm beta m (1 - m).
float GatedBackward(const AttentionGate& gate, const RowScalars& scalars, int32_t keys,
                    const RowBackward& row);

}  // namespace eta::training::cpu
