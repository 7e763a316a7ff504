// What the gate does to the keys below the threshold: their mass, entropy and evenness before and
// after it (the paper's table "Mechanistic and downstream comparison of masking formulations").
//
// The tail of a row and head: the keys s < t with S < tau_eff. The row's own key, which no gate
// tempers, is not in it.
#pragma once

#include <array>
#include <cstddef>
#include <vector>

#include "calibration/evaluation/tables/measures/recorded_attention.h"

namespace eta {

// The logits that the softmax sees.
enum class TailForm {
  kRaw,             // S: before the gate
  kMultiplicative,  // S * m: after ETA's gate
  kAdditive         // S + 100 * (m - 1): the paper's strict mode on the same scores
};
inline constexpr std::array kTailForms = {TailForm::kRaw, TailForm::kMultiplicative,
                                          TailForm::kAdditive};

enum class TailMetric {
  kMass,      // share of the row's softmax that lies on the tail
  kEntropy,   // H / log n of the softmax over the n keys of the tail, at least 2
  kMaxToMean  // largest weight of the tail over its mean one, likewise
};
inline constexpr std::array kTailMetrics = {TailMetric::kMass, TailMetric::kEntropy,
                                            TailMetric::kMaxToMean};

// Where the sum of a metric, and the number of its terms, stand in TailShapeSums.
constexpr size_t TailSum(TailForm form, TailMetric metric) {
  return static_cast<size_t>(form) * kTailMetrics.size() + static_cast<size_t>(metric);
}
constexpr size_t TailTerms(TailMetric metric) {
  return kTailForms.size() * kTailMetrics.size() + (metric == TailMetric::kMass ? 0 : 1);
}
inline constexpr size_t kTailSums = kTailForms.size() * kTailMetrics.size() + 2;

// Sums over the recorded rows and query heads of a layer, [kTailSums].
std::vector<double> TailShapeSums(const RecordedWindow& window, const RecordedLayer& layer);

}  // namespace eta
