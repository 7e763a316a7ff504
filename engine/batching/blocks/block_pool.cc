// lint: fuzz-covered
#include "engine/batching/blocks/block_pool.h"

#include <cassert>

#include "kernels/system/failpoint.h"

namespace eta {

BlockPool::BlockPool(int32_t num_blocks, KvEventRecorder* recorder)
    : recorder_(recorder), blocks_(static_cast<size_t>(num_blocks)), references_(blocks_.size()) {
  free_.reserve(blocks_.size());
  for (int32_t block = num_blocks - 1; block >= 0; --block) free_.push_back(block);
}

std::optional<int32_t> BlockPool::Allocate() {
  if (ETA_FAILPOINT(kEngineBlock)) return std::nullopt;
  int32_t block;
  if (!free_.empty()) {
    block = free_.back();
    free_.pop_back();
  } else if (!cached_.empty()) {
    block = cached_.front();
    cached_.pop_front();
    Unname(block);
  } else {
    return std::nullopt;
  }
  references_[block] = 1;
  return block;
}

bool BlockPool::Allocate(int32_t count, std::vector<int32_t>& held) {
  for (int32_t i = 0; i < count; ++i) {
    const std::optional<int32_t> block = Allocate();
    if (!block) {
      ReleaseLast(i, held);
      return false;
    }
    held.push_back(*block);
  }
  return true;
}

void BlockPool::ReleaseLast(int32_t count, std::vector<int32_t>& held) {
  for (int32_t i = 0; i < count; ++i) {
    Release(held.back());
    held.pop_back();
  }
}

void BlockPool::Release(int32_t block) {
  Block& entry = blocks_[block];
  assert(references_[block] > 0);
  if (--references_[block] > 0) return;
  if (entry.named) {
    entry.cached = cached_.insert(cached_.end(), block);
  } else {
    free_.push_back(block);
  }
}

std::optional<int32_t> BlockPool::Find(const PrefixKey& key, int32_t group) const {
  const auto found = by_name_.find({key, group});
  return found == by_name_.end() ? std::nullopt : std::optional(found->second);
}

std::optional<int32_t> BlockPool::Acquire(const PrefixKey& key, int32_t group) {
  const std::optional<int32_t> block = Find(key, group);
  if (block && references_[*block]++ == 0) cached_.erase(blocks_[*block].cached);
  return block;
}

BlockPool::Prefix BlockPool::FindPrefix(std::span<const PrefixKey> keys) const {
  Prefix prefix;
  for (const PrefixKey& key : keys) {
    const std::optional<int32_t> block = Find(key);
    if (!block) break;
    if (references_[*block] > 0 && prefix.num_held == prefix.num_blocks) ++prefix.num_held;
    ++prefix.num_blocks;
  }
  return prefix;
}

void BlockPool::Publish(int32_t block, const PrefixKey& key, const PrefixKey* parent,
                        std::span<const int32_t> tokens, int32_t group) {
  Block& entry = blocks_[block];
  assert(references_[block] > 0);
  if (entry.named || !by_name_.emplace(Name{key, group}, block).second) return;
  entry.named = true;
  entry.name = {key, group};
  if (recorder_ != nullptr) recorder_->Stored(key, parent, tokens, group);
}

void BlockPool::Unname(int32_t block) {
  const Name& name = blocks_[block].name;
  if (recorder_ != nullptr) recorder_->Removed(name.key, name.group);
  by_name_.erase(name);
  blocks_[block].named = false;
}

void BlockPool::Forget() {
  free_.insert(free_.end(), cached_.begin(), cached_.end());
  cached_.clear();
  for (int32_t block = 0; block < num_blocks(); ++block) {
    if (blocks_[block].named) Unname(block);
  }
  if (recorder_ != nullptr) recorder_->Cleared();
}

}  // namespace eta
