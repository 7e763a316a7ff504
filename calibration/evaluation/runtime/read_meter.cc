#include "calibration/evaluation/runtime/read_meter.h"

namespace eta {

ReadMeter::ReadMeter(const SequenceRunner& runner, const AttentionOptions& options)
    : runner_(runner), options_(options) {
  const ModelConfig& config = runner.config();
  const size_t rows =
      static_cast<size_t>(config.num_layers) * static_cast<size_t>(runner.max_rows());
  attended_.resize(rows * static_cast<size_t>(config.num_query_heads));
  read_.resize(rows * static_cast<size_t>(config.num_kv_heads));
  values_.resize(read_.size());
}

RowCounts ReadMeter::CountsOf(size_t rows, size_t row) const {
  const auto kv = row * static_cast<size_t>(runner_.config().num_kv_heads);
  return {.tokens_attended =
              attended_.data() + row * static_cast<size_t>(runner_.config().num_query_heads),
          .tokens_read = read_.data() + kv,
          .values_read = values_.data() + kv,
          .stride = static_cast<int64_t>(rows)};
}

AttentionSums ReadMeter::DecodeRow(size_t rows, size_t row, size_t position) const {
  return CountDecodeRow(runner_.config(), runner_.geometry(), options_,
                        static_cast<int32_t>(position + row + 1), CountsOf(rows, row));
}

AttentionSums ReadMeter::PrefillRow(size_t rows, size_t row, size_t position) const {
  return CountPrefillRow(runner_.config(), static_cast<int32_t>(position + row + 1),
                         CountsOf(rows, row));
}

}  // namespace eta
