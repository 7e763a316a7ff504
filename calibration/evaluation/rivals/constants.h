// Constants per head without a profile: what a threshold that knows nothing of its row can do. The
// constants come from the text that is evaluated: every head admits the same share of the blocks of
// the first window, the share that reads a wanted union of them.
#pragma once

#include <cstdint>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/rivals/rival.h"

namespace eta {

// Bounds on the scores of the full blocks of one sampled row in one layer.
struct SampledBounds {
  int32_t layer = 0;
  int32_t num_keys = 0;                    // T
  std::vector<std::vector<float>> bounds;  // [HQ][N]
};

// What the constants are for.
struct ConstantsShape {
  int32_t num_layers = 0;
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t block_size = 0;
};

// Thresholds [L, HQ] with which the sampled rows read `union_density` of their keys per KV head, as
// near as it goes. InvalidArgument for a density below what is always read, or above 1.
absl::StatusOr<std::vector<float>> ConstantsForUnion(const std::vector<SampledBounds>& sample,
                                                     const ConstantsShape& shape,
                                                     const AttentionOptions& options,
                                                     double union_density);

}  // namespace eta
