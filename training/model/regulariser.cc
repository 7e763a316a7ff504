#include "training/model/regulariser.h"

#include <algorithm>

namespace eta::training {
namespace {

// Positions from which on a row has whole blocks.
int64_t RowsWithBlocks(int32_t length) {
  return std::max(0, length - kRegulariserBlock + 1);
}

RegulariserWeights Weights(int32_t length, double gate, double block) {
  RegulariserWeights weights;
  for (int32_t t = 0; t < length; ++t) {
    weights.gate.push_back(static_cast<float>(gate / (t + 1)));
    const int32_t blocks = WholeBlocks(t);
    weights.block.push_back(blocks == 0 ? 0.0f : static_cast<float>(block / blocks));
  }
  return weights;
}

}  // namespace

RegulariserWeights DensityWeights(int32_t length, int64_t sequences_in_step) {
  const auto sequences = static_cast<double>(sequences_in_step);
  return Weights(
      length, 1.0 / (sequences * length),
      1.0 / (sequences * static_cast<double>(std::max<int64_t>(1, RowsWithBlocks(length)))));
}

RegulariserWeights RegulariserGradients(const RegulariserOptions& options,
                                        const AttentionShape& shape, int32_t num_layers,
                                        int64_t sequences_in_step) {
  const double rows = static_cast<double>(sequences_in_step) * shape.length;
  const double with_blocks =
      static_cast<double>(sequences_in_step) *
      static_cast<double>(std::max<int64_t>(1, RowsWithBlocks(shape.length)));
  const int32_t block_heads = options.group_blocks ? shape.num_kv_heads : shape.num_query_heads;
  return Weights(
      shape.length,
      options.weight * (1.0 - options.block_share) / (rows * num_layers * shape.num_query_heads),
      options.weight * options.block_share / (with_blocks * num_layers * block_heads));
}

}  // namespace eta::training
