// The merging at the heart of byte-pair encoding: of all neighbours that make something, the two of
// the lowest rank become one, the leftmost first, until no two make anything.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "engine/tokenizer/pair_table.h"

namespace eta {

// A run of text that is a piece, or a single character. Symbols form a list; size 0: merged away.
struct Symbol {
  int32_t prev;
  int32_t next;  // -1: the last one
  uint32_t begin;
  uint32_t size;  // bytes; not 0 before merging
  int32_t id;     // negative: makes nothing with any other
};

// Symbols of one stretch of text, and what merging them needs: kept from stretch to stretch, so
// that its memory is allocated once. Not thread-safe.
class SymbolMerger {
 public:
  std::vector<Symbol>& symbols() { return symbols_; }
  const std::vector<Symbol>& symbols() const { return symbols_; }

  // Adds one behind the others.
  void Add(uint32_t begin, uint32_t size, int32_t id);
  // Merges all: what is left is the list from symbols()[0] on. Time n log n.
  // REQUIRES: at least one symbol.
  void Merge(const PairTable& merges);

 private:
  // What a symbol makes with the next one.
  PairTable::Made MadeAt(const PairTable& merges, int32_t left) const;
  // The next symbol becomes part of `left`, which is `piece` then.
  void Join(int32_t left, int32_t piece);
  // Both do the same: the first in a time that grows with the square of the symbols, but sooner.
  void MergeFew(const PairTable& merges);
  void MergeMany(const PairTable& merges);

  std::vector<Symbol> symbols_;
  std::vector<PairTable::Made> made_;  // by each symbol with the next one
};

}  // namespace eta
