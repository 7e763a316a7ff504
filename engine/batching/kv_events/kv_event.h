// What changes in the prefix cache, for whoever routes requests to where their prompts are cached.
//
// A block's hash stands for all that its keys and values depend on: the tokens before it and in it,
// and what a PrefixKey holds beside them, and the model with its number formats. Equal hashes of
// two servers mean equal blocks. A hash is 8 bytes of SHA-256, which readers may take for unique.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

namespace eta {

// Of which group of layers a block is. A prompt's block has one hash, and a page in each group.
struct KvGroup {
  uint32_t index = 0;
  uint32_t window = 0;  // 0: full layers
  bool operator==(const KvGroup&) const = default;
};

// As vLLM and its routers call it.
constexpr const char* SpecKind(const KvGroup& group) {
  return group.window > 0 ? "sliding_window" : "full_attention";
}

struct KvBlock {
  int64_t hash = 0;
  std::optional<int64_t> parent;  // the block before it; absent: it begins a prompt
  std::vector<int32_t> tokens;    // [block_size]
  std::optional<KvGroup> group;   // absent: the model has one group
};
using KvBlockPtr = std::shared_ptr<const KvBlock>;

struct KvEvent {
  enum class Kind { kStored, kRemoved, kCleared };
  Kind kind = Kind::kStored;
  KvBlockPtr block;  // null of kCleared: nothing is cached any more
};

// Behind the last event that one message may tell together with events[first]: blocks that were
// stored one after the other in a prompt, or removed; all of one group.
inline size_t EndOfRun(const std::vector<KvEvent>& events, size_t first) {
  size_t end = first + 1;
  for (; end < events.size(); ++end) {
    const KvEvent& last = events[end - 1];
    const KvEvent& next = events[end];
    if (next.kind != last.kind || next.kind == KvEvent::Kind::kCleared) break;
    if (next.block->group != last.block->group) break;
    if (next.kind == KvEvent::Kind::kStored && next.block->parent != last.block->hash) break;
  }
  return end;
}

// The changes of one step, in their order; or a part of a snapshot.
struct KvEventBatch {
  // All blocks as they were after the batch `sequence`, as stored ones: parents first, but for
  // those that are not cached any more. Parts of one snapshot follow each other.
  struct SnapshotPart {
    uint32_t index = 0;
    uint32_t count = 1;   // parts
    uint64_t blocks = 0;  // of all parts
  };

  uint64_t sequence = 0;  // from 1, without gaps; the parts of a snapshot have that of its batch
  std::chrono::system_clock::time_point time;
  std::vector<KvEvent> events;
  std::optional<SnapshotPart> snapshot;
};
using KvEventBatchPtr = std::shared_ptr<const KvEventBatch>;

}  // namespace eta
