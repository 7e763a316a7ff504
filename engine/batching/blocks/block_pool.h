// Who holds which KV block. A block is free, used or cached. A used block is referenced by one or
// more sequences. A cached block is referenced by none; it is kept because it holds a full block of
// a prompt, and that prompt may come again. When no free block is left, the cached block that was
// released longest ago is evicted.
//
// A key names a block in each group of layers (engine/model/layer_groups.h), for each is a page of
// its own.
//
// Not thread-safe: the step thread's. Invariant: free + used + cached = num_blocks.
#pragma once

#include <cstdint>
#include <list>
#include <optional>
#include <span>
#include <unordered_map>
#include <vector>

#include "engine/batching/kv_events/kv_event_recorder.h"
#include "engine/batching/prefix_key.h"

namespace eta {

class BlockPool {
 public:
  // `recorder` is told which keys can be found; null: nobody is. It must outlive the pool.
  explicit BlockPool(int32_t num_blocks, KvEventRecorder* recorder = nullptr);

  int32_t num_blocks() const { return static_cast<int32_t>(blocks_.size()); }
  int32_t num_free() const { return static_cast<int32_t>(free_.size()); }
  int32_t num_cached() const { return static_cast<int32_t>(cached_.size()); }
  int32_t num_used() const { return num_blocks() - num_free() - num_cached(); }
  // Blocks that Allocate can give.
  int32_t num_available() const { return num_free() + num_cached(); }

  // A block with one reference and no identity; nothing if all are used.
  std::optional<int32_t> Allocate();
  // Appends `count` blocks to those that somebody holds. False, and nothing changed, if the pool
  // has fewer: then whoever planned them has miscounted.
  [[nodiscard]] bool Allocate(int32_t count, std::vector<int32_t>& held);
  // Drops one reference.
  void Release(int32_t block);
  // Drops one reference of each of the last `count` of these blocks, the last one first, so that
  // the pool is as it was before they were allocated.
  void ReleaseLast(int32_t count, std::vector<int32_t>& held);
  // How many sequences hold each block, by id.
  std::span<const int32_t> references() const { return references_; }

  // The block that holds `key` for the layers of a group, if any.
  std::optional<int32_t> Find(const PrefixKey& key, int32_t group = 0) const;
  // The same, with one more reference.
  std::optional<int32_t> Acquire(const PrefixKey& key, int32_t group = 0);
  // The leading blocks of a prompt with these keys that Acquire would find, of group 0.
  struct Prefix {
    int32_t num_blocks = 0;
    // Of these, the used ones before the first cached one. Whatever is allocated before they are
    // acquired, they take nothing from num_available(). The first cached one may be evicted; then
    // those behind it cannot be found any more, used or not.
    int32_t num_held = 0;
  };
  Prefix FindPrefix(std::span<const PrefixKey> keys) const;
  // Names the contents of a used block, so that others may share it. Does nothing if another block
  // has the key already. `parent`, null of a prompt's first block, and `tokens` are for the
  // recorder.
  void Publish(int32_t block, const PrefixKey& key, const PrefixKey* parent = nullptr,
               std::span<const int32_t> tokens = {}, int32_t group = 0);
  // No block is found by a key any more: the cached ones are free, the used ones stay used.
  void Forget();

 private:
  struct Name {
    PrefixKey key;
    int32_t group = 0;
    bool operator==(const Name&) const = default;

    struct Hash {
      size_t operator()(const Name& name) const {
        return PrefixKey::Hash()(name.key) + static_cast<size_t>(name.group);
      }
    };
  };
  struct Block {
    bool named = false;
    Name name;
    std::list<int32_t>::iterator cached;  // valid while unreferenced and named
  };

  void Unname(int32_t block);

  KvEventRecorder* const recorder_;
  std::vector<Block> blocks_;
  std::vector<int32_t> references_;  // sequences that hold each block
  std::vector<int32_t> free_;
  std::list<int32_t> cached_;  // least recently released first
  std::unordered_map<Name, int32_t, Name::Hash> by_name_;
};

}  // namespace eta
