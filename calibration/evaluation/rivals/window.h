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

  // The first key of the window of `num_keys` keys.
  int32_t FirstKey(int32_t num_keys) const;
};

// Sets 1 at the full blocks that hold a key of the window.
void AdmitWindow(WindowLength window, const RowBlocks& blocks, std::span<uint8_t> admitted);
// By key: at the keys of the window and at the first 4, StreamingLLM's sinks.
void AdmitLastKeys(WindowLength window, std::span<uint8_t> admitted);

// Sliding window attention (Child et al., "Generating Long Sequences with Sparse Transformers",
// 2019), and with sink blocks StreamingLLM (Xiao et al., "Efficient Streaming Language Models with
// Attention Sinks", ICLR 2024): each head admits the window and nothing else. Sinks are those of
// AttentionOptions.
std::shared_ptr<const Rival> MakeWindow(WindowLength window);

// BigBird (Zaheer et al., "Big Bird: Transformers for Longer Sequences", NeurIPS 2020) as the paper
// runs it, by key: the first 4 keys, the window, and in the place of random keys those whose
// positions are multiples of `stride`, at least 1. By blocks that hold such a key it would read all
// where a block is as long as the stride.
std::shared_ptr<const Rival> MakeBigBird(WindowLength window, int32_t stride);

}  // namespace eta
