#include "calibration/decode_measurement.h"

#include <cmath>
#include <numeric>

namespace eta {

void DecodeMeter::Add(const PassOutcome& outcome) {
  for (const float loss : outcome.losses) loss_ += loss;
  losses_.insert(losses_.end(), outcome.losses.begin(), outcome.losses.end());
  const AttentionStatistics& attention = outcome.attention;
  const auto rows = static_cast<double>(attention.decode_rows);
  head_ += attention.head_density * rows;
  union_ += attention.union_density * rows;
  rows_ += attention.decode_rows;
  above_ = std::accumulate(outcome.above.begin(), outcome.above.end(), above_);
  above_admitted_ = std::accumulate(outcome.above_admitted.begin(), outcome.above_admitted.end(),
                                    above_admitted_);
  recall_ = recall_ || !outcome.above.empty();
}

DecodeMeasurement DecodeMeter::Measurement() const {
  const auto losses = static_cast<int64_t>(losses_.size());
  DecodeMeasurement measurement{.rows = losses > 0 ? losses : rows_, .losses = losses_};
  if (losses > 0) measurement.perplexity = std::exp(loss_ / static_cast<double>(losses));
  if (rows_ > 0) {
    measurement.head_density = head_ / static_cast<double>(rows_);
    measurement.union_density = union_ / static_cast<double>(rows_);
  }
  if (recall_) {
    measurement.recall =
        above_ == 0 ? 1.0 : static_cast<double>(above_admitted_) / static_cast<double>(above_);
  }
  return measurement;
}

}  // namespace eta
