#include "calibration/calibrate/divergence_rows.h"

#include <algorithm>

#include "calibration/calibrate/perplexity_increase.h"
#include "calibration/solvers/even_sample.h"
#include "calibration/solvers/interval.h"

namespace eta {

DivergenceRows ChooseDivergenceRows(TokenSpans sequences, int32_t vocab_size) {
  const int64_t fit = kMaxPassLogitBytes / (int64_t{vocab_size} * int64_t{sizeof(float)});
  const auto most = static_cast<double>(std::min(kMaxDivergenceRows, fit));
  const auto rows = static_cast<double>(std::max<int64_t>(MeasuredTokens(sequences), 1));
  const double share = std::min(most / rows, 1.0);
  EvenSample sample(share);
  DivergenceRows chosen = {.of_sequence = {},
                           .block = std::max(1, static_cast<int>(kIntervalBlock * share))};
  for (const std::span<const int32_t> sequence : sequences) {
    std::vector<int32_t>& of_sequence = chosen.of_sequence.emplace_back();
    const auto end = static_cast<int32_t>(sequence.size()) - 1;
    for (int32_t row = DecodeFrom(sequence); row < end; ++row) {
      if (sample.TakesNext()) of_sequence.push_back(row);
    }
  }
  return chosen;
}

}  // namespace eta
