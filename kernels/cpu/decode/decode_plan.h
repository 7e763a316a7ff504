// The work of DecodeAttention in one step: which keys each decode row reads for a KV head, cut into
// tasks.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/params/selection.h"

namespace eta::cpu {

// A segment is the part of a row's list that one task reads. Its size is a constant, so that the
// order of the sums depends on the row alone.
inline constexpr int32_t kSegmentTokens = 2048;

// One decode row and KV head, with its list of blocks. The tail follows the list. In a layer with a
// window the list is every full block from `first_block` on, with all heads, and not written down.
struct DecodeGroup {
  const SequenceRows* sequence;
  int32_t row;
  int32_t num_keys;  // T
  int32_t kv_head;
  std::span<const int32_t> table;
  const uint32_t* blocks;  // [count]; null: a window
  uint32_t* heads;         // [count]; null: a window
  int32_t first_block;     // of the window
  int32_t first_key;       // of the window
  int32_t count;
  uint32_t pruning_heads;  // bit g: head g did not admit every full block
  int32_t first_partial;
  int32_t num_tasks;
  const int32_t* rescued;  // [G]; null: reads are not confirmed
  int32_t* values_read;    // null likewise

  int32_t ordinal(int32_t i) const {
    return blocks != nullptr ? static_cast<int32_t>(blocks[i]) : first_block + i;
  }
};

struct DecodeTask {
  int32_t group;
  int32_t segment;
};

// The partial result of a task: base [G], l [G], sums [G, d].
inline size_t PartialFloats(size_t group, size_t d) {
  return group * (d + 2);
}

// The work of one step. The object is kept between calls for its memory.
struct DecodePlan {
  std::vector<DecodeGroup> groups;
  std::vector<DecodeTask> tasks;
  std::unique_ptr<std::atomic<int32_t>[]> unfinished;  // [groups], tasks that have not ended
  size_t capacity = 0;
  Scratch partials;
  Scratch scratch;

  void Build(const BatchView& batch, const AttentionParams& params);

 private:
  // Of the groups of one sequence.
  void AddTasks(size_t first_group, int32_t kv_heads);
};

// Tokens whose V was read, once the masks say who kept a block.
void CountValues(const DecodeGroup& group, int32_t block_size);

}  // namespace eta::cpu
