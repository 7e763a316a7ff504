// Gated attention of training on any backend, from host memory to host memory: random cases, and
// what forward and backward make of them.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "tests/testing/kernels/kernel_harness.h"
#include "training/attention_params.h"
#include "training/backend.h"

namespace eta::testing {

// Inputs are values that bfloat16 holds, but for tau and the gradients of row sums.
struct GatedAttentionCase {
  training::AttentionShape shape;
  training::AttentionGate gate;
  bool gate_sums = true;   // with a gate: wanted, with a gradient
  bool block_sums = true;  // likewise
  bool beside = true;      // q, k and v are columns of one matrix
  std::vector<float> q;    // [B T, HQ d]
  std::vector<float> k;    // [B T, HKV d]
  std::vector<float> v;
  std::vector<float> tau;             // [B T, HQ]
  std::vector<float> grad_out;        // [B T, HQ d]
  std::vector<float> grad_gate_sum;   // [B, HQ, T]
  std::vector<float> grad_block_sum;  // [B, HB, T]
  std::vector<uint64_t> blocks;       // of KeySelection; empty: all
  int32_t window = 0;

  std::string Describe() const;
};

struct GatedAttentionResults {
  std::vector<double> out;
  std::vector<double> lse;
  std::vector<double> gate_sum;
  std::vector<double> block_sum;
  std::vector<double> grad_q;
  std::vector<double> grad_k;
  std::vector<double> grad_v;
  std::vector<double> grad_tau;

  bool operator==(const GatedAttentionResults&) const = default;
};

// Fills the inputs of a case whose shape, gate and wishes are set.
void FillAttentionCase(Random& random, GatedAttentionCase& test);
// Ragged lengths up to `longest`, all gates, groups and strengths; head dimension 64 or 128.
GatedAttentionCase RandomAttentionCase(Random& random, int32_t longest);

// REQUIRES: the backend does the case's shape.
GatedAttentionResults RunAttention(training::TrainingBackend& backend,
                                   const GatedAttentionCase& test);

// The results' largest difference, with its name. Gradients of gates and sums of gates are compared
// on the scale of one gate, since a closed gate's share of them is below bfloat16's errors.
struct NamedDifference {
  std::string name;
  double difference = 0.0;
};
NamedDifference LargestDifference(const GatedAttentionResults& results,
                                  const GatedAttentionResults& expected);

}  // namespace eta::testing
