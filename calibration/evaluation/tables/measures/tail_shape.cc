#include "calibration/evaluation/tables/measures/tail_shape.h"

#include <algorithm>
#include <cmath>

#include "calibration/evaluation/perplexity/alignment.h"

namespace eta {
namespace {

constexpr double kStrictPenalty = 100.0;  // the paper's

std::vector<double> Logits(TailForm form, const RecordedWindow& window,
                           std::span<const double> scores, float threshold) {
  if (form == TailForm::kMultiplicative) return GatedLogits(window, scores, threshold);
  std::vector<double> logits(scores.begin(), scores.end());
  if (form == TailForm::kRaw) return logits;
  for (size_t s = 0; s + 1 < logits.size(); ++s) {
    const double gate = 1.0 / (1.0 + std::exp(-window.beta * (logits[s] - threshold)));
    logits[s] += kStrictPenalty * (gate - 1.0);
  }
  return logits;
}

// Adds a row's metrics of one form.
void Add(TailForm form, const std::vector<double>& logits, std::span<const size_t> tail,
         std::vector<double>& sums) {
  if (tail.empty()) return;
  std::vector<double> of_tail(tail.size());
  std::ranges::transform(tail, of_tail.begin(), [&](size_t s) { return logits[s]; });
  sums[TailSum(form, TailMetric::kMass)] += std::exp(LogSumExp(of_tail) - LogSumExp(logits));
  if (tail.size() < 2) return;
  const std::vector<double> weights = Softmax(of_tail);
  double entropy = 0.0;
  for (const double weight : weights) {
    if (weight > 0.0) entropy -= weight * std::log(weight);
  }
  const auto n = static_cast<double>(tail.size());
  sums[TailSum(form, TailMetric::kEntropy)] += entropy / std::log(n);
  sums[TailSum(form, TailMetric::kMaxToMean)] += *std::ranges::max_element(weights) * n;
}

}  // namespace

std::vector<double> TailShapeSums(const RecordedWindow& window, const RecordedLayer& layer) {
  std::vector<double> sums(kTailSums);
  std::vector<size_t> tail;
  for (const RecordedRow& row : layer.rows) {
    for (int32_t h = 0; h < window.num_query_heads; ++h) {
      const float threshold = row.thresholds[static_cast<size_t>(h)];
      const std::vector<double> scores = RowScores(window, layer, row, h);
      tail.clear();
      for (size_t s = 0; s + 1 < scores.size(); ++s) {
        if (scores[s] < threshold) tail.push_back(s);
      }
      for (const TailForm form : kTailForms) {
        Add(form, Logits(form, window, scores, threshold), tail, sums);
      }
      sums[TailTerms(TailMetric::kMass)] += 1.0;
      if (tail.size() >= 2) sums[TailTerms(TailMetric::kEntropy)] += 1.0;
    }
  }
  return sums;
}

}  // namespace eta
