// Sums over rows, as gradients of biases and norms are: partial sums of runs of rows, one float32
// row each, and then their sum in double, in the order of the runs.
#pragma once

#include <algorithm>
#include <cstdint>

#include "training/cpu/ops.h"

namespace eta::training::cpu {

inline constexpr int64_t kRowsPerSum = 64;

// Calls add(begin, end, sums) for runs of rows, sums [cols] being 0 at first; then adds all sums to
// `out` [cols], unless it is null.
template <class Add>
void SumColumns(const Context& context, int64_t rows, int64_t cols, float* out, const Add& add) {
  const int64_t runs = (rows + kRowsPerSum - 1) / kRowsPerSum;
  auto* sums = context.shared.Reserve<float>(static_cast<size_t>(runs * cols));
  ForRanges(context, rows, kRowsPerSum, [&](int64_t begin, int64_t end, int) {
    float* row = sums + begin / kRowsPerSum * cols;
    std::fill_n(row, cols, 0.0f);
    add(begin, end, row);
  });
  if (out == nullptr) return;
  constexpr int64_t kCols = 256;
  ForRanges(context, cols, kCols, [&](int64_t begin, int64_t end, int) {
    for (int64_t i = begin; i < end; ++i) {
      double sum = 0.0;
      for (int64_t run = 0; run < runs; ++run) sum += sums[run * cols + i];
      out[i] += static_cast<float>(sum);
    }
  });
}

}  // namespace eta::training::cpu
