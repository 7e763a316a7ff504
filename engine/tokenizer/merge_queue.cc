#include "engine/tokenizer/merge_queue.h"

#include <algorithm>
#include <utility>

namespace eta {
namespace {

uint64_t Key(uint32_t rank, int32_t left) {
  return uint64_t{rank} << 32 | static_cast<uint32_t>(left);
}

}  // namespace

void MergeQueue::Push(uint32_t rank, int32_t left) {
  if (rank <= rank_) {
    early_.push(Key(rank, left));
    return;
  }
  const auto [list, first] = later_.try_emplace(rank);
  if (first) ranks_.push(rank);
  list->second.push_back(left);
}

bool MergeQueue::NextRank() {
  if (ranks_.empty()) return false;
  rank_ = ranks_.top();
  ranks_.pop();
  const auto list = later_.find(rank_);
  list_ = std::move(list->second);
  later_.erase(list);
  if (!std::is_sorted(list_.begin(), list_.end())) std::sort(list_.begin(), list_.end());
  next_ = 0;
  return true;
}

std::optional<MergeQueue::Merge> MergeQueue::Pop() {
  if (next_ == list_.size() && early_.empty() && !NextRank()) return std::nullopt;
  const bool in_turn =
      next_ < list_.size() && (early_.empty() || Key(rank_, list_[next_]) <= early_.top());
  if (in_turn) return Merge{rank_, list_[next_++]};
  const uint64_t key = early_.top();
  early_.pop();
  return Merge{static_cast<uint32_t>(key >> 32), static_cast<int32_t>(key & UINT32_MAX)};
}

}  // namespace eta
