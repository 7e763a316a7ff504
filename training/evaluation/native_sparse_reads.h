// What a row of native sparse attention reads of its caches, and what they hold, beside those of
// full attention: keys and values alike, of one KV head.
#pragma once

#include <cstdint>

#include "training/native_sparse_params.h"

namespace eta::training {

// Keys that row t reads, as the rule of each branch has it.
struct NativeSparseReads {
  int32_t compressed = 0;
  int32_t selected = 0;
  int32_t window = 0;

  int32_t total() const { return compressed + selected + window; }
};

NativeSparseReads NativeSparseReadsOf(int32_t t);

struct CacheShares {
  double reads = 1.0;  // of the keys that full attention reads: mean over rows
  double holds = 1.0;  // of the keys that full attention keeps, after the last row
};

// Of rows [first, end). REQUIRES: there are some.
CacheShares NativeSparseShares(int32_t first, int32_t end);

}  // namespace eta::training
