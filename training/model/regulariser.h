// The sparsity regulariser: weight * ((1 - w) * mean gate + w * mean block gate).
//
// Mean gate: the paper's, the mean over layers, heads and rows of (sum of m over s <= t) / (t + 1).
// Block gate: the mean over layers, heads and rows with whole blocks of (sum over the whole blocks
// of the largest m in each) / (number of whole blocks). It is a soft density of what the server
// reads, for which one admitted key is as dear as 64. With group_blocks its heads are the KV heads.
//
// Both are linear in the row sums of attention, so their gradients are known before the forward
// pass: one number per position.
#pragma once

#include <cstdint>
#include <vector>

#include "training/attention_params.h"

namespace eta::training {

struct RegulariserOptions {
  double weight = 0.0;       // lambda
  double block_share = 0.0;  // w in [0, 1]
  bool group_blocks = true;
};

// Whole blocks that lie at or before position t.
inline int32_t WholeBlocks(int32_t t) {
  return (t + 1) / kRegulariserBlock;
}

// Per position [T]: what a row sum is multiplied with. Means over `rows` rows of a step, of which
// this call's are a part.
struct RegulariserWeights {
  std::vector<float> gate;   // 1 / (t + 1) / rows
  std::vector<float> block;  // 1 / WholeBlocks(t) / rows with whole blocks; 0 where there are none
};

// Weights of densities: sum over rows of weight * row sum is the mean of one layer and head.
RegulariserWeights DensityWeights(int32_t length, int64_t sequences_in_step);

// Gradients of the regulariser by the row sums of one layer and head, over `num_layers` layers.
RegulariserWeights RegulariserGradients(const RegulariserOptions& options,
                                        const AttentionShape& shape, int32_t num_layers,
                                        int64_t sequences_in_step);

}  // namespace eta::training
