// What the rows of a runner's steps attend to and read (engine/request/attention_sums.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "calibration/evaluation/runtime/runner.h"
#include "engine/request/attention_sums.h"

namespace eta {

// The runner must outlive it.
class ReadMeter {
 public:
  ReadMeter(const SequenceRunner& runner, const AttentionOptions& options);

  // Where a step's counts go.
  ForwardOutputs Outputs() {
    return {.tokens_attended = attended_.data(),
            .tokens_read = read_.data(),
            .values_read = values_.data()};
  }

  // Of row `row` of the last step, which had `rows` decode rows, the first of them at `position`.
  AttentionSums DecodeRow(size_t rows, size_t row, size_t position) const;
  // Likewise of sparse prefill.
  AttentionSums PrefillRow(size_t rows, size_t row, size_t position) const;

 private:
  RowCounts CountsOf(size_t rows, size_t row) const;

  const SequenceRunner& runner_;
  AttentionOptions options_;
  std::vector<int32_t> attended_;  // [L, R, HQ]
  std::vector<int32_t> read_;      // [L, R, HKV]
  std::vector<int32_t> values_;    // [L, R, HKV]
};

}  // namespace eta
