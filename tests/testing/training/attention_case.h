// A case of gated attention in training: shape, gate, inputs and upstream gradients.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/training/harness.h"
#include "training/attention_params.h"

namespace eta::training::testing {

struct AttentionCase {
  AttentionShape shape;
  AttentionGate gate;
  std::vector<double> q;               // [B T, HQ d]
  std::vector<double> k;               // [B T, HKV d]
  std::vector<double> v;               // [B T, HKV d]
  std::vector<double> tau;             // [B T, HQ]
  std::vector<double> grad_out;        // [B T, HQ d]
  std::vector<double> grad_gate_sum;   // [B, HQ, T]; empty: none
  std::vector<double> grad_block_sum;  // [B, HB, T]; empty: none
  std::vector<uint64_t> blocks;        // of KeySelection; empty: all
  int32_t window = 0;

  std::string Describe() const;
};

// `head_dims`: the head dimensions that the backend does. Lengths from 1 to `longest`, batches,
// groups, gates, strengths and, without a gate, choices of keys as they come.
AttentionCase RandomAttentionCase(uint64_t seed, const std::vector<int32_t>& head_dims,
                                  int32_t longest);

// Takes the gradient from rows in which the two largest gates of a block are too close for float32
// to tell apart, either of which may have it: their scores' distances from the thresholds differ by
// less than `margin`.
void ClearNearTies(AttentionCase& attention, DType rounding, double margin = 1e-4);

// "out", "lse", "gate_sum", "block_sum", and, with `backward`, "dq", "dk", "dv", "dtau".
Results RunAttention(const AttentionCase& attention, Harness& harness, bool backward = true);

}  // namespace eta::training::testing
