#include "engine/tokenizer/symbol_merger.h"

#include <algorithm>

#include "engine/tokenizer/merge_queue.h"

namespace eta {
namespace {

// So many symbols at most are merged by looking through them all: no queue is as quick.
constexpr size_t kFewSymbols = 96;

}  // namespace

void SymbolMerger::Add(uint32_t begin, uint32_t size, int32_t id) {
  const auto index = static_cast<int32_t>(symbols_.size());
  if (index > 0) symbols_.back().next = index;
  symbols_.push_back({.prev = index - 1, .next = -1, .begin = begin, .size = size, .id = id});
}

void SymbolMerger::Merge(const PairTable& merges) {
  if (symbols_.size() <= kFewSymbols) {
    MergeFew(merges);
  } else {
    MergeMany(merges);
  }
}

PairTable::Made SymbolMerger::MadeAt(const PairTable& merges, int32_t left) const {
  const Symbol& symbol = symbols_[left];
  return symbol.next < 0 ? PairTable::Made() : merges.Find(symbol.id, symbols_[symbol.next].id);
}

void SymbolMerger::Join(int32_t left, int32_t piece) {
  Symbol& joined = symbols_[left];
  Symbol& right = symbols_[joined.next];
  joined.size += right.size;
  joined.id = piece;
  joined.next = right.next;
  right.size = 0;
  if (joined.next >= 0) symbols_[joined.next].prev = left;
}

void SymbolMerger::MergeFew(const PairTable& merges) {
  made_.clear();
  const auto count = static_cast<int32_t>(symbols_.size());
  for (int32_t i = 0; i + 1 < count; ++i) made_.push_back(MadeAt(merges, i));
  made_.emplace_back();
  for (;;) {
    const auto best = std::min_element(
        made_.begin(), made_.end(), [](const auto& a, const auto& b) { return a.rank < b.rank; });
    if (!*best) return;
    const auto left = static_cast<int32_t>(best - made_.begin());
    const Symbol& symbol = symbols_[left];
    made_[symbol.next] = {};
    Join(left, best->piece);
    *best = MadeAt(merges, left);
    if (symbol.prev >= 0) made_[symbol.prev] = MadeAt(merges, symbol.prev);
  }
}

void SymbolMerger::MergeMany(const PairTable& merges) {
  MergeQueue queue;
  const auto push = [&](int32_t left) {
    if (const auto made = MadeAt(merges, left)) queue.Push(made.rank, left);
  };
  for (int32_t i = 0; i < static_cast<int32_t>(symbols_.size()); ++i) push(i);

  while (const auto merge = queue.Pop()) {
    const Symbol& left = symbols_[merge->left];
    if (left.size == 0) continue;
    const auto made = MadeAt(merges, merge->left);
    if (!made || made.rank != merge->rank) continue;  // one of the two has changed since
    Join(merge->left, made.piece);
    if (left.prev >= 0) push(left.prev);
    push(merge->left);
  }
}

}  // namespace eta
