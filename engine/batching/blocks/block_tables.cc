#include "engine/batching/blocks/block_tables.h"

#include <algorithm>
#include <cassert>

#include "engine/batching/scheduler.h"

namespace eta {
namespace {

// The longest prefix of at most `most` blocks whose end a row sees through all `windows`:
// has(group, ordinal) tells of a window's block. Groups count from `first_group` on.
template <typename Has>
int32_t LongestSeen(int32_t most, std::span<const int32_t> windows, int32_t block_size,
                    const Has& has) {
  const auto first_seen = [&](int32_t blocks, int32_t window) {
    return FirstBlockSeen(int64_t{blocks} * block_size, window, block_size);
  };
  const int32_t widest = windows.empty() ? 1 : *std::ranges::max_element(windows);
  int32_t blocks = most;
  for (int32_t i = most - 1; i >= first_seen(blocks, widest); --i) {
    for (size_t group = 0; group < windows.size(); ++group) {
      if (i >= first_seen(blocks, windows[group]) && !has(group, i)) {
        blocks = i;
        break;
      }
    }
  }
  return blocks;
}

}  // namespace

BlockTables::BlockTables(const LayerGroups& groups, int32_t block_size)
    : windows_(groups.windows),
      num_full_(groups.num_full()),
      block_size_(block_size),
      tables_(windows_.size()),
      held_from_(windows_.size(), 0),
      more_(windows_.size() - 1) {}

void BlockTables::ApplyTo(SequenceRows& rows) const {
  rows.block_table = tables_.front();
  rows.more_tables = more_;
}

void BlockTables::SetLengths() {
  const auto length = [&](size_t group) { return static_cast<int32_t>(tables_[group].size()); };
  if (num_full_ > 0) lengths_.full = length(0);
  if (num_windows() > 0) lengths_.window = length(tables_.size() - 1);
  for (size_t i = 0; i < more_.size(); ++i) more_[i] = tables_[i + 1];
}

int32_t BlockTables::Lacking(int32_t tokens, int32_t rows_end) const {
  return num_full_ * std::max(0, BlocksFor(tokens, block_size_) - lengths_.full) +
         num_windows() * std::max(0, BlocksFor(rows_end, block_size_) - lengths_.window);
}

bool BlockTables::Grow(BlockPool& pool, int32_t tokens, int32_t rows_end) {
  const Lengths before = lengths_;
  bool grown = true;
  for (size_t group = 0; group < tables_.size() && grown; ++group) {
    const bool full = static_cast<int32_t>(group) < num_full_;
    const int32_t wanted = BlocksFor(full ? tokens : rows_end, block_size_);
    grown = Take(pool, wanted - LengthOf(group), tables_[group]);
  }
  if (!grown) ShrinkTo(pool, before);
  SetLengths();
  return grown;
}

bool BlockTables::Take(BlockPool& pool, int32_t count, std::vector<int32_t>& table) {
  for (; count > 0 && !kept_.empty(); --count) {
    table.push_back(kept_.back());
    kept_.pop_back();
  }
  return pool.Allocate(std::max(0, count), table);
}

void BlockTables::ShrinkTo(BlockPool& pool, const Lengths& lengths) {
  for (size_t group = tables_.size(); group-- > 0;) {
    const bool full = static_cast<int32_t>(group) < num_full_;
    const auto length = static_cast<int32_t>(tables_[group].size());
    pool.ReleaseLast(std::max(0, length - (full ? lengths.full : lengths.window)), tables_[group]);
  }
  SetLengths();
}

void BlockTables::ShrinkTo(BlockPool& pool, int32_t tokens) {
  const int32_t blocks = BlocksFor(tokens, block_size_);
  ShrinkTo(pool, {.full = blocks, .window = blocks});
}

BlockPool::Prefix BlockTables::FindPrefix(const BlockPool& pool,
                                          std::span<const PrefixKey> keys) const {
  if (tables_.size() == 1 && num_full_ == 1) return pool.FindPrefix(keys);
  const auto of_windows = std::span(windows_).subspan(static_cast<size_t>(num_full_));
  const auto longest = [&](bool used) {
    const auto has = [&](size_t group, int32_t ordinal) {
      const auto block = pool.Find(keys[static_cast<size_t>(ordinal)], static_cast<int32_t>(group));
      return block && (!used || pool.references()[*block] > 0);
    };
    int32_t most = 0;
    const auto whole = [&](int32_t ordinal) {
      for (size_t group = 0; group < static_cast<size_t>(num_full_); ++group) {
        if (!has(group, ordinal)) return false;
      }
      return true;
    };
    while (static_cast<size_t>(most) < keys.size() && whole(most)) ++most;
    return LongestSeen(most, of_windows, block_size_, [&](size_t window, int32_t ordinal) {
      return has(window + static_cast<size_t>(num_full_), ordinal);
    });
  };
  return {.num_blocks = longest(/*used=*/false), .num_held = longest(/*used=*/true)};
}

int32_t BlockTables::Share(BlockPool& pool, std::span<const PrefixKey> keys) {
  assert(empty());
  const int32_t blocks = FindPrefix(pool, keys).num_blocks;
  for (size_t group = 0; group < tables_.size(); ++group) {
    const int64_t first =
        FirstBlockSeen(int64_t{blocks} * block_size_, windows_[group], block_size_);
    held_from_[group] = static_cast<size_t>(std::min<int64_t>(first, blocks));
    tables_[group].assign(held_from_[group], kReleased);
    for (auto i = static_cast<int32_t>(held_from_[group]); i < blocks; ++i) {
      const auto block = pool.Acquire(keys[static_cast<size_t>(i)], static_cast<int32_t>(group));
      assert(block);
      tables_[group].push_back(*block);
    }
  }
  SetLengths();
  return blocks;
}

void BlockTables::Publish(BlockPool& pool, std::span<const PrefixKey> keys, size_t begin,
                          size_t end, std::span<const int32_t> tokens) const {
  const auto block_tokens = static_cast<size_t>(block_size_);
  for (size_t group = 0; group < tables_.size(); ++group) {
    for (size_t i = begin; i < end; ++i) {
      pool.Publish(tables_[group][i], keys[i], i > 0 ? &keys[i - 1] : nullptr,
                   tokens.subspan(i * block_tokens, block_tokens), static_cast<int32_t>(group));
    }
  }
}

void BlockTables::CutBehind(int32_t position, BlockPool* pool) {
  for (size_t group = static_cast<size_t>(num_full_); group < tables_.size(); ++group) {
    std::vector<int32_t>& table = tables_[group];
    const auto seen = static_cast<size_t>(FirstBlockSeen(position, windows_[group], block_size_));
    for (size_t& i = held_from_[group]; i < std::min(seen, table.size()); ++i) {
      if (pool != nullptr) {
        pool->Release(table[i]);
      } else {
        kept_.push_back(table[i]);
      }
      table[i] = kReleased;
    }
  }
}

void BlockTables::ReleaseBehind(BlockPool& pool, int32_t position) {
  CutBehind(position, &pool);
}

void BlockTables::KeepBehind(int32_t position) {
  CutBehind(position, nullptr);
}

void BlockTables::Release(BlockPool& pool) {
  size_t longest = 0;
  for (const std::vector<int32_t>& table : tables_) longest = std::max(longest, table.size());
  for (size_t i = longest; i-- > 0;) {
    for (size_t group = 0; group < tables_.size(); ++group) {
      if (i >= held_from_[group] && i < tables_[group].size()) pool.Release(tables_[group][i]);
    }
  }
  for (const int32_t block : kept_) pool.Release(block);
  kept_.clear();
  for (std::vector<int32_t>& table : tables_) table.clear();
  std::ranges::fill(held_from_, 0);
  lengths_ = {};
  SetLengths();
}

}  // namespace eta
