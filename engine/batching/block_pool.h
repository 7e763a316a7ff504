// Who holds which KV block. A block is free, used (referenced by one or more sequences), or cached:
// unreferenced, but kept because its contents are a full block of some prompt that may come again.
// Cached blocks are given away, least recently released first, when no free one is left.
//
// Not thread-safe. Invariant: free + used + cached = num_blocks.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/batching/prefix_key.h"

namespace eta {

class BlockPool {
 public:
  explicit BlockPool(int32_t num_blocks);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_cached() const { return static_cast<int32_t>(cached_.size()); }
  int32_t num_used() const { return num_blocks() - num_free() - num_cached(); }
  // Blocks that Allocate can give.
  int32_t num_available() const { return num_free() + num_cached(); }

  // A block with one reference and no identity; nothing if all are used.
  std::optional<int32_t> Allocate();
  // Drops one reference.
  void Release(int32_t block);
  // Of every block, by id.
  std::span<const int32_t> references() const { return references_; }

  // The block that holds `key`, if any, with one more reference.
  std::optional<int32_t> Acquire(const PrefixKey& key);
  // What Acquire would find of a prompt, whose keys these are, up to the first one that is missing.
  struct Prefix {
    int32_t num_blocks = 0;
    // Of these, how many take nothing from num_available(), whatever is allocated before they are
    // acquired: used ones, up to the first cached one. That one can be given away, and with it goes
    // the way to those behind it, used or not.
    int32_t num_held = 0;
  };
  Prefix FindPrefix(std::span<const PrefixKey> keys) const;
  // Names the contents of a used block, so that others may share it. Without effect if the key is
  // already held by another block.
  void Publish(int32_t block, const PrefixKey& key);

 private:
  struct Block {
    bool named = false;
    PrefixKey key;
    std::list<int32_t>::iterator cached;  // valid while unreferenced and named
  };

  std::vector<Block> blocks_;
  std::vector<int32_t> references_;  // sequences that hold each block
  std::vector<int32_t> free_;
  std::list<int32_t> cached_;  // least recently released first
  std::unordered_map<PrefixKey, int32_t, PrefixKey::Hash> by_key_;
};

}  // namespace eta
