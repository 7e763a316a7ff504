// Random ragged cases of the ops of training that have no keys. Forward and backward of an op
// are one case.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "tests/testing/training/harness.h"

namespace eta::training::testing {

struct OpCase {
  std::string name;
  // The same case of the same seed, on any backend.
  std::function<Results(uint64_t seed, Harness& harness)> run;
};

// Embedding, norms, products, biases, RoPE, thresholds, SwiGLU, losses of the head with and without
// a teacher, its hits, windows and branches of Native Sparse Attention, sums of tensors, weighted
// row sums, sums of squares, AdamW.
const std::vector<OpCase>& OpCases();

}  // namespace eta::training::testing
