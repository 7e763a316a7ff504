// The last keys of a row, which rules of locality read whatever the query is.
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "calibration/evaluation/rivals/rival.h"

namespace eta {

// A window of the last keys, the row's own included.
struct WindowLength {
  // Keys, at least 1; or below 1 a share of the row's keys, rounded up.
  double length = 0.0;

  // The first full block of `num_keys` keys that holds a key of the window.
  int32_t FirstBlock(int32_t num_keys, int32_t block_size) const;
};

// Sets 1 at the blocks that hold a key of the window.
void AdmitWindow(WindowLength window, const RowBlocks& blocks, std::span<uint8_t> admitted);

// Sliding window attention (Child et al., "Generating Long Sequences with Sparse Transformers",
// 2019), and with sink blocks StreamingLLM (Xiao et al., "Efficient Streaming Language Models with
// Attention Sinks", ICLR 2024): each head admits the window and nothing else. With a `stride` above
// 0 BigBird (Zaheer et al., "Big Bird: Transformers for Longer Sequences", NeurIPS 2020) as the
// paper runs it: in the place of random blocks those whose ordinals are multiples of the stride.
// Sinks are those of AttentionOptions.
std::shared_ptr<const Rival> MakeWindow(WindowLength window, int32_t stride = 0);

}  // namespace eta
