// Other rules that choose the blocks of a decode row, to be compared with the product's. They exist
// in evaluation only, run on the host and may read every key: what they cost is not measured. What
// they read is counted as the product counts it.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "calibration/evaluation/rivals/kept_blocks.h"
#include "kernels/batch.h"

namespace eta {

// One query head of one row.
struct RivalHead {
  int32_t layer = 0;
  int32_t query_head = 0;
  std::span<const float> q = {};  // [d]
  float softmax_scale = 0.0f;
  const AttentionOptions& options;
  const RowBlocks& blocks;  // of its row and KV head
};

// Whether every head reads full block `ordinal` of `count`: a sink or one of the last.
inline bool AlwaysRead(const AttentionOptions& options, int32_t ordinal, int32_t count) {
  return ordinal < options.sink_blocks || ordinal >= count - options.pinned_blocks;
}

// Immutable; thread-safe.
class Rival {
 public:
  virtual ~Rival() = default;

  // What AppendKv's copies must hold.
  virtual KeptParts needs() const = 0;

  // Sets, of `admitted` [N], 1 at the blocks that the head admits. Those that are always read have
  // it already.
  virtual void Admit(const RivalHead& head, std::span<uint8_t> admitted) const = 0;
};

}  // namespace eta
