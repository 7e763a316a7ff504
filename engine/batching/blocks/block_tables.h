// The blocks that a sequence holds: a table for each group of layers (engine/model/layer_groups.h).
//
// Tables of full layers hold all blocks of the sequence's tokens. Those of a window hold the blocks
// that a row to come may see; behind them stands kReleased, and the blocks before it have been
// given back, cached under their keys. All tables of full layers are of one length, and so are all
// of windows.
//
// Not thread-safe. It does not give back its blocks when it goes.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/batching/blocks/block_pool.h"
#include "engine/batching/prefix_key.h"
#include "engine/model/layer_groups.h"
#include "kernels/batch.h"

namespace eta {

class BlockTables {
 public:
  static constexpr int32_t kReleased = -1;

  // Entries of the tables, held or released.
  struct Lengths {
    int32_t full = 0;    // 0 too where no layer is full
    int32_t window = 0;  // 0 too where no layer has a window
  };

  BlockTables(const LayerGroups& groups, int32_t block_size);
  BlockTables(const BlockTables&) = delete;
  BlockTables& operator=(const BlockTables&) = delete;

  bool empty() const { return lengths_.full == 0 && lengths_.window == 0 && kept_.empty(); }
  const Lengths& lengths() const { return lengths_; }
  int32_t num_full() const { return num_full_; }
  int32_t num_windows() const { return static_cast<int32_t>(tables_.size()) - num_full_; }
  // [groups]: the blocks of each, those released among them.
  std::span<const std::vector<int32_t>> tables() const { return tables_; }
  // Gives `rows` the tables. They stay those of this object, as it grows.
  void ApplyTo(SequenceRows& rows) const;

  // How many blocks Grow takes.
  int32_t Lacking(int32_t tokens, int32_t rows_end) const;
  // Takes from the pool what the tables lack to hold `tokens` tokens in full layers and those
  // before `rows_end` in windows. False, and nothing changed, if the pool has fewer.
  [[nodiscard]] bool Grow(BlockPool& pool, int32_t tokens, int32_t rows_end);
  // Undoes Grow, but for what ReleaseBehind did since: the pool is as it was.
  void ShrinkTo(BlockPool& pool, const Lengths& lengths);
  // Gives back, the last first, those that hold no token before `tokens`.
  void ShrinkTo(BlockPool& pool, int32_t tokens);

  // The leading blocks of a prompt with these keys whose keys and values are all there for a row
  // behind them: all for full layers, those that the row sees for windows. As BlockPool's.
  BlockPool::Prefix FindPrefix(const BlockPool& pool, std::span<const PrefixKey> keys) const;
  // Shares that prefix. Returns its number of blocks. REQUIRES: empty.
  int32_t Share(BlockPool& pool, std::span<const PrefixKey> keys);
  // Names the blocks from `begin` to before `end` of every table, none of them released. `tokens`:
  // of the prompt with these keys.
  void Publish(BlockPool& pool, std::span<const PrefixKey> keys, size_t begin, size_t end,
               std::span<const int32_t> tokens) const;

  // Gives back what no row from `position` on sees.
  void ReleaseBehind(BlockPool& pool, int32_t position);

  // Of a pass, which holds all that it will need: takes `count` blocks for Grow, which takes these
  // before the pool's. False, and nothing changed, if the pool has fewer.
  [[nodiscard]] bool Reserve(BlockPool& pool, int32_t count) { return pool.Allocate(count, kept_); }
  // As ReleaseBehind, but the blocks are kept for Grow.
  void KeepBehind(int32_t position);

  // Gives back all, the last block first: of a cached prefix the end is evicted before the
  // beginning. Nothing is kept.
  void Release(BlockPool& pool);

 private:
  int32_t LengthOf(size_t group) const {
    return static_cast<int32_t>(group) < num_full_ ? lengths_.full : lengths_.window;
  }
  bool Take(BlockPool& pool, int32_t count, std::vector<int32_t>& table);
  void CutBehind(int32_t position, BlockPool* pool);
  void SetLengths();

  const std::vector<int32_t> windows_;  // [groups], full ones first
  const int32_t num_full_;
  const int32_t block_size_;
  Lengths lengths_;
  std::vector<std::vector<int32_t>> tables_;    // [groups]
  std::vector<size_t> held_from_;               // [groups]: the first that is not released
  std::vector<std::span<const int32_t>> more_;  // of tables_, from the second on
  std::vector<int32_t> kept_;                   // of Reserve and KeepBehind
};

}  // namespace eta
