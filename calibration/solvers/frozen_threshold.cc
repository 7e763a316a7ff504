#include "calibration/solvers/frozen_threshold.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <string>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

double Sigmoid(double x) {
  if (x >= 0.0) return 1.0 / (1.0 + std::exp(-x));
  const double e = std::exp(x);
  return e / (1.0 + e);
}

// Neumaier's sum: the rounding error of each addition is kept and added at the end.
class CompensatedSum {
 public:
  void Add(double value) {
    const double sum = sum_ + value;
    lost_ += std::abs(sum_) >= std::abs(value) ? (sum_ - sum) + value : (value - sum) + sum_;
    sum_ = sum;
  }
  double value() const { return sum_ + lost_; }

 private:
  double sum_ = 0.0;
  double lost_ = 0.0;
};

// The curve g(c) of one head.
class DensityCurve {
 public:
  DensityCurve(const HeadScores& scores, const ScoreBins& bins, double beta) : beta_(beta) {
    AddPoint(scores.outside.below_weight, bins.low);
    for (size_t b = 0; b < scores.weights.size(); ++b) {
      AddPoint(scores.weights[b], bins.centre(static_cast<int32_t>(b)));
    }
    AddPoint(scores.outside.above_weight, bins.high);
    CompensatedSum total;
    for (const Point& point : points_) total.Add(point.weight);
    total_ = total.value();
  }

  double total() const { return total_; }

  // g(c). It is exactly 1 if every sigma is 1, since the sum is then the total, term by term.
  double At(double c) const {
    if (points_.empty()) return 0.0;
    CompensatedSum sum;
    for (const Point& point : points_) sum.Add(point.weight * Sigmoid(beta_ * (point.score - c)));
    return sum.value() / total_;
  }

 private:
  struct Point {
    double weight;
    double score;
  };

  void AddPoint(double weight, double score) {
    if (weight > 0.0) points_.push_back({weight, score});
  }

  double beta_;
  std::vector<Point> points_;
  double total_ = 0.0;
};

// Bisects g(c) = target. In double precision sigma(x) is 1 from x = 37 on, and exp(x) is 0 below x
// = -746. So g is 1 at one end and 0 at the other for any head, and any target lies between.
double Bisect(const DensityCurve& curve, const ScoreBins& bins, double beta, double target) {
  double low = bins.low - 40.0 / beta;
  double high = bins.high + 750.0 / beta;
  while (true) {
    const double mid = std::midpoint(low, high);
    if (mid == low || mid == high) break;
    const double density = curve.At(mid);
    // On a plateau at the target the search goes towards the scores.
    const bool up = density == target ? target > 0.5 : density > target;
    (up ? low : high) = mid;
  }
  return std::abs(curve.At(low) - target) <= std::abs(curve.At(high) - target) ? low : high;
}

double OutsideBound(const OutsideScores& outside, const ScoreBins& bins, double beta, double c) {
  return outside.below_weight * Sigmoid(beta * (bins.low - c)) +
         outside.above_weight * Sigmoid(beta * (c - bins.high));
}

std::string Where(int32_t layer, int32_t head) {
  return absl::StrCat("layer ", layer, ", head ", head, ": ");
}

absl::Status Refuse(const char* reason, int32_t layer, int32_t head, const std::string& sentence) {
  return MakeError(absl::StatusCode::kFailedPrecondition, Where(layer, head) + sentence,
                   {.reason = reason,
                    .metadata = {{"layer", absl::StrCat(layer)}, {"head", absl::StrCat(head)}}});
}

absl::Status CheckOptions(const FrozenOptions& options) {
  if (!(options.beta >= kMinBeta && options.beta <= kMaxBeta)) {
    return InvalidField("beta", absl::StrCat("must be in [", kMinBeta, ", ", kMaxBeta, "]"));
  }
  if (!std::isfinite(options.offset)) return InvalidField("offset", "must be finite");
  if (options.density && !(*options.density > 0.0 && *options.density <= 1.0)) {
    return InvalidField("target.head_density", "must be in (0, 1]");
  }
  return absl::OkStatus();
}

// Checks the mean gate: it comes from the same rows as the weights, and a gate is a share.
absl::Status CheckGate(const HeadScores& scores, double total, int32_t layer, int32_t head) {
  constexpr double kSlack = 1e-6;  // float32 gates, fixed-point weights
  const auto rows = static_cast<double>(scores.rows);
  if (std::abs(total - rows) > kSlack * rows || scores.gate_sum > rows * (1.0 + kSlack)) {
    return absl::InternalError(absl::StrCat(Where(layer, head), "weights of ", total,
                                            " and gates of ", scores.gate_sum, " in ", scores.rows,
                                            " rows"));
  }
  return absl::OkStatus();
}

}  // namespace

double SoftDensity(const HeadScores& scores, const ScoreBins& bins, double beta, double c) {
  return DensityCurve(scores, bins, beta).At(c);
}

double MeanSoftDensity(const ScoreHistogram& histogram, std::span<const float> thresholds,
                       double beta, double offset) {
  double sum = 0.0;
  size_t counted = 0;
  for (size_t i = 0; i < thresholds.size(); ++i) {
    const auto heads = static_cast<size_t>(histogram.num_query_heads());
    const HeadScores& scores =
        histogram.head(static_cast<int32_t>(i / heads), static_cast<int32_t>(i % heads));
    const DensityCurve curve(scores, histogram.bins(), beta);
    if (!(curve.total() > 0.0)) continue;  // of a layer with a window
    sum += curve.At(static_cast<double>(thresholds[i]) - offset);
    ++counted;
  }
  return counted == 0 ? 0.0 : std::clamp(sum / static_cast<double>(counted), 0.0, 1.0);
}

absl::StatusOr<FrozenThreshold> SolveFrozenThreshold(const HeadScores& scores,
                                                     const ScoreBins& bins,
                                                     const FrozenOptions& options, int32_t layer,
                                                     int32_t head) {
  RETURN_IF_ERROR(CheckOptions(options));
  const OutsideScores& outside = scores.outside;
  if (outside.not_finite > 0) {
    return Refuse("SCORES_NOT_FINITE", layer, head,
                  absl::StrCat(outside.not_finite, " scores are not finite"));
  }
  const DensityCurve curve(scores, bins, options.beta);
  if (!(curve.total() > 0.0) || (!options.density && scores.rows == 0)) {
    return Refuse("NO_SCORES", layer, head, "no row was collected");
  }
  if (!options.density) {
    RETURN_IF_ERROR(CheckGate(scores, curve.total(), layer, head));
  }
  const double target = options.density.value_or(std::min(scores.mean_gate(), 1.0));
  const double root = Bisect(curve, bins, options.beta, target);
  if (OutsideBound(outside, bins, options.beta, root) > kMaxOutsideDensity * curve.total()) {
    return Refuse("SCORES_OUT_OF_RANGE", layer, head,
                  absl::StrCat(outside.below, " scores below and ", outside.above,
                               " above the histogram's range [", bins.low, ", ", bins.high,
                               "), too near the threshold ", root));
  }
  return FrozenThreshold{
      .threshold = root + options.offset, .target = target, .reached = curve.At(root)};
}

absl::StatusOr<std::vector<FrozenThreshold>> SolveFrozenThresholds(const ScoreHistogram& histogram,
                                                                   const FrozenOptions& options) {
  std::vector<FrozenThreshold> thresholds;
  for (int32_t layer = 0; layer < histogram.num_layers(); ++layer) {
    for (int32_t head = 0; head < histogram.num_query_heads(); ++head) {
      ASSIGN_OR_RETURN(const FrozenThreshold solved,
                       SolveFrozenThreshold(histogram.head(layer, head), histogram.bins(), options,
                                            layer, head));
      thresholds.push_back(solved);
    }
  }
  return thresholds;
}

}  // namespace eta
