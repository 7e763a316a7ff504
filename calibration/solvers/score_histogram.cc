#include "calibration/solvers/score_histogram.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int32_t kMaxHeads = 1 << 16;  // of layers and of heads: the product cannot overflow

bool IsSum(double value) {
  return std::isfinite(value) && value >= 0.0;
}

absl::Status CheckIncrement(const HeadScores& scores, const ScoreBins& bins) {
  const OutsideScores& outside = scores.outside;
  if (scores.weights.size() != static_cast<size_t>(bins.count)) {
    return InvalidField("weights", absl::StrCat("must be ", bins.count, ", one per bin, not ",
                                                scores.weights.size()));
  }
  if (!std::all_of(scores.weights.begin(), scores.weights.end(), IsSum)) {
    return InvalidField("weights", "must be finite and not negative");
  }
  if (!IsSum(outside.below_weight) || !IsSum(outside.above_weight) || outside.below < 0 ||
      outside.above < 0 || outside.not_finite < 0) {
    return InvalidField("outside", "must be finite and not negative");
  }
  if (scores.rows < 0) return InvalidField("rows", "must not be negative");
  if (!IsSum(scores.gate_sum)) return InvalidField("gate_sum", "must be finite and not negative");
  return absl::OkStatus();
}

}  // namespace

absl::Status CheckScoreBins(const ScoreBins& bins) {
  if (bins.count < kMinScoreBins || bins.count > kMaxScoreBins) {
    return InvalidField("bins", absl::StrCat("must be in [", kMinScoreBins, ", ", kMaxScoreBins,
                                             "], not ", bins.count));
  }
  if (!(std::abs(bins.low) <= kMaxScoreRange && std::abs(bins.high) <= kMaxScoreRange &&
        bins.high - bins.low >= 1e-6)) {
    return InvalidField("range", absl::StrCat("[", bins.low, ", ", bins.high,
                                              ") must be at least 1e-6 wide, within [",
                                              -kMaxScoreRange, ", ", kMaxScoreRange, "]"));
  }
  return absl::OkStatus();
}

absl::StatusOr<ScoreHistogram> ScoreHistogram::Create(int32_t num_layers, int32_t num_query_heads,
                                                      const ScoreBins& bins) {
  RETURN_IF_ERROR(CheckScoreBins(bins));
  if (num_layers < 1 || num_layers > kMaxHeads) {
    return InvalidField("num_layers", absl::StrCat("must be in [1, ", kMaxHeads, "]"));
  }
  if (num_query_heads < 1 || num_query_heads > kMaxHeads) {
    return InvalidField("num_query_heads", absl::StrCat("must be in [1, ", kMaxHeads, "]"));
  }
  const int64_t heads = int64_t{num_layers} * num_query_heads;
  if (heads > kMaxScoreCells / bins.count) {
    return InvalidField("bins", absl::StrCat(bins.count, " for each of ", heads, " heads: at most ",
                                             kMaxScoreCells, " together"));
  }
  return ScoreHistogram(num_layers, num_query_heads, bins);
}

ScoreHistogram::ScoreHistogram(int32_t num_layers, int32_t num_query_heads, const ScoreBins& bins)
    : num_layers_(num_layers),
      num_query_heads_(num_query_heads),
      bins_(bins),
      sums_(static_cast<size_t>(num_layers) * static_cast<size_t>(num_query_heads)) {
  weights_.resize(sums_.size() * static_cast<size_t>(bins.count));
}

size_t ScoreHistogram::Index(int32_t layer, int32_t head) const {
  return static_cast<size_t>(layer) * static_cast<size_t>(num_query_heads_) +
         static_cast<size_t>(head);
}

std::span<double> ScoreHistogram::Weights(int32_t layer, int32_t head) {
  const auto count = static_cast<size_t>(bins_.count);
  return std::span(weights_).subspan(Index(layer, head) * count, count);
}

void ScoreHistogram::AddKeys(int32_t layer, int32_t head, int64_t row_keys,
                             std::span<const float> scores) {
  const double weight = 1.0 / static_cast<double>(row_keys);
  const double width = bins_.width();
  const std::span<double> weights = Weights(layer, head);
  OutsideScores& outside = sums_[Index(layer, head)].outside;
  for (const float score : scores) {
    if (!std::isfinite(score)) {
      ++outside.not_finite;
    } else if (score < bins_.low) {
      ++outside.below;
      outside.below_weight += weight;
    } else if (score >= bins_.high) {
      ++outside.above;
      outside.above_weight += weight;
    } else {
      const auto bin = static_cast<size_t>((score - bins_.low) / width);
      weights[std::min(bin, weights.size() - 1)] += weight;
    }
  }
}

void ScoreHistogram::AddGate(int32_t layer, int32_t head, int64_t row_keys, double gate_sum) {
  Sums& sums = sums_[Index(layer, head)];
  sums.gate_sum += gate_sum / static_cast<double>(row_keys);
  ++sums.rows;
}

void ScoreHistogram::Accumulate(int32_t layer, int32_t head, const HeadScores& increment) {
  const std::span<double> weights = Weights(layer, head);
  for (size_t b = 0; b < weights.size(); ++b) weights[b] += increment.weights[b];
  Sums& sums = sums_[Index(layer, head)];
  sums.outside.below += increment.outside.below;
  sums.outside.above += increment.outside.above;
  sums.outside.below_weight += increment.outside.below_weight;
  sums.outside.above_weight += increment.outside.above_weight;
  sums.outside.not_finite += increment.outside.not_finite;
  sums.gate_sum += increment.gate_sum;
  sums.rows += increment.rows;
}

absl::Status ScoreHistogram::Add(int32_t layer, int32_t head, const HeadScores& increment) {
  if (layer < 0 || layer >= num_layers_ || head < 0 || head >= num_query_heads_) {
    return InvalidField("head", absl::StrCat("layer ", layer, ", head ", head, " of ", num_layers_,
                                             " layers of ", num_query_heads_, " heads"));
  }
  if (absl::Status status = CheckIncrement(increment, bins_); !status.ok()) {
    return InvalidField(absl::StrCat("scores[", layer, "][", head, "]"),
                        std::string(status.message()));
  }
  Accumulate(layer, head, increment);
  return absl::OkStatus();
}

absl::Status ScoreHistogram::Merge(const ScoreHistogram& other) {
  if (other.num_layers_ != num_layers_ || other.num_query_heads_ != num_query_heads_ ||
      other.bins_ != bins_) {
    return InvalidField("histogram", "must have the same layers, heads and bins");
  }
  for (int32_t layer = 0; layer < num_layers_; ++layer) {
    for (int32_t h = 0; h < num_query_heads_; ++h) Accumulate(layer, h, other.head(layer, h));
  }
  return absl::OkStatus();
}

HeadScores ScoreHistogram::head(int32_t layer, int32_t head) const& {
  const auto count = static_cast<size_t>(bins_.count);
  const size_t index = Index(layer, head);
  const Sums& sums = sums_[index];
  return {.weights = std::span(weights_).subspan(index * count, count),
          .outside = sums.outside,
          .gate_sum = sums.gate_sum,
          .rows = sums.rows};
}

}  // namespace eta
