#include "training/evaluation/native_sparse_reads.h"

#include <algorithm>

namespace eta::training {

NativeSparseReads NativeSparseReadsOf(int32_t t) {
  const int32_t own = t % kRegulariserBlock + 1;
  const int32_t others = std::min(kSelectedBlocks - 1, t / kRegulariserBlock);
  return {.compressed = CompressedCountAt(t),
          .selected = others * kRegulariserBlock + own,
          .window = std::min(kSlidingWindow, t + 1)};
}

CacheShares NativeSparseShares(int32_t first, int32_t end) {
  double sum = 0.0;
  for (int32_t t = first; t < end; ++t) {
    sum += static_cast<double>(NativeSparseReadsOf(t).total()) / (t + 1);
  }
  // Selection and window keep all keys, each its own.
  const int64_t held = 2 * int64_t{end} + CompressedCount(end);
  return {.reads = sum / (end - first), .holds = static_cast<double>(held) / end};
}

}  // namespace eta::training
