#include "calibration/solvers/union_target.h"

#include <algorithm>
#include <cmath>
#include <functional>
#include <optional>

#include "absl/strings/str_cat.h"
#include "calibration/solvers/target_error.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr double kMaxIncreasePercent = 1000.0;

struct Point {
  double shift;
  double value;
};

// The goal of a search: `level`, of a value that falls (densities) or rises (perplexities) with the
// shift. The search ends early at a value within `tolerance` of the level.
struct Level {
  double level;
  bool falling;
  std::optional<double> tolerance;

  // Whether the shift may still grow.
  bool Below(double value) const { return falling ? value > level : value <= level; }
  bool Met(double value) const { return tolerance && std::abs(value - level) <= *tolerance; }
};

absl::Status CheckSearch(const ShiftSearch& search) {
  if (!(search.first_step > 0.0 && search.resolution > 0.0 && search.max_shift <= 1e4 &&
        search.first_step <= search.max_shift && search.max_measurements >= 1)) {
    return InvalidField("search", "steps must be above 0 and at most max_shift, 1e4 at most");
  }
  return absl::OkStatus();
}

class Search {
 public:
  Search(const ShiftSearch& options, const Level& level, const MeasureShift& measure)
      : options_(options), level_(level), measure_(measure) {}

  const std::vector<Point>& points() const { return points_; }

  absl::Status Run() {
    RETURN_IF_ERROR(Measure(0.0));
    const double direction = low_ ? 1.0 : -1.0;
    for (double step = options_.first_step; !Bracketed() && !Ended(); step *= 2.0) {
      const double reach = std::min(step, options_.max_shift);
      RETURN_IF_ERROR(Measure(direction * reach));
      if (reach == options_.max_shift) break;
    }
    if (!Bracketed()) return absl::OkStatus();
    bool interpolate = true;
    while (!Ended() && high_->shift - low_->shift > options_.resolution) {
      RETURN_IF_ERROR(Measure(Inside(interpolate)));
      interpolate = !interpolate;
    }
    return absl::OkStatus();
  }

 private:
  bool Bracketed() const { return low_ && high_; }
  bool Ended() const {
    return level_.Met(points_.back().value) ||
           static_cast<int>(points_.size()) >= options_.max_measurements;
  }

  // A point inside the bracket. The values at its ends are on two sides of the level, so they
  // differ.
  double Inside(bool interpolate) const {
    double share = 0.5;
    if (interpolate) {
      share = (level_.level - low_->value) / (high_->value - low_->value);
      share = std::clamp(share, 0.1, 0.9);
    }
    return low_->shift + share * (high_->shift - low_->shift);
  }

  absl::Status Measure(double shift) {
    ASSIGN_OR_RETURN(const double value, measure_(shift));
    points_.push_back({shift, value});
    (level_.Below(value) ? low_ : high_) = points_.back();
    return absl::OkStatus();
  }

  const ShiftSearch& options_;
  const Level level_;
  const MeasureShift& measure_;
  std::vector<Point> points_;
  std::optional<Point> low_;   // from here the shift may grow
  std::optional<Point> high_;  // from here the shift must not grow
};

ShiftResult AsResult(const Point& point, const Search& search) {
  return {.shift = point.shift,
          .value = point.value,
          .measurements = static_cast<int>(search.points().size())};
}

// The sparsest point whose value is fit, else TARGET_UNREACHABLE with the nearest one's.
template <typename Fits, typename Nearer>
absl::StatusOr<ShiftResult> Sparsest(const std::string& field, double target, const Search& search,
                                     const Fits& fits, const Nearer& nearer) {
  const std::vector<Point>& points = search.points();
  const Point* sparsest = nullptr;
  for (const Point& point : points) {
    if (!fits(point.value)) continue;
    if (sparsest == nullptr || point.shift > sparsest->shift) sparsest = &point;
  }
  if (sparsest != nullptr) return AsResult(*sparsest, search);
  const Point& nearest = *std::min_element(
      points.begin(), points.end(),
      [&nearer](const Point& a, const Point& b) { return nearer(a.value, b.value); });
  return TargetUnreachable(field, target, nearest.value, {{"shift", absl::StrCat(nearest.shift)}});
}

// `measure`, of values that must lie in [0, 1].
MeasureShift Shares(const std::string& field, const MeasureShift& measure) {
  return [&measure, field](double shift) -> absl::StatusOr<double> {
    absl::StatusOr<double> share = measure(shift);
    if (share.ok() && !(*share >= 0.0 && *share <= 1.0)) {
      return absl::InternalError(absl::StrCat(field, ": measured ", *share));
    }
    return share;
  };
}

}  // namespace

absl::StatusOr<ShiftResult> SolveDensityShift(const std::string& field, double target,
                                              double tolerance, const ShiftSearch& search,
                                              const MeasureShift& measure) {
  if (!(target > 0.0 && target <= 1.0)) return InvalidField(field, "must be in (0, 1]");
  if (!(tolerance >= 0.0 && tolerance <= 1.0))
    return InvalidField("tolerance", "must be in [0, 1]");
  RETURN_IF_ERROR(CheckSearch(search));
  const MeasureShift checked = Shares(field, measure);
  Search found(search, {.level = target, .falling = true, .tolerance = tolerance}, checked);
  RETURN_IF_ERROR(found.Run());
  const Point& nearest = *std::min_element(found.points().begin(), found.points().end(),
                                           [target](const Point& a, const Point& b) {
                                             const double to_a = std::abs(a.value - target);
                                             const double to_b = std::abs(b.value - target);
                                             return to_a != to_b ? to_a < to_b : a.shift > b.shift;
                                           });
  if (std::abs(nearest.value - target) > tolerance) {
    return TargetUnreachable(field, target, nearest.value,
                             {{"shift", absl::StrCat(nearest.shift)}});
  }
  return AsResult(nearest, found);
}

absl::StatusOr<ShiftResult> SolvePerplexityShift(double full_perplexity,
                                                 double max_increase_percent,
                                                 const ShiftSearch& search,
                                                 const MeasureShift& measure) {
  constexpr char kField[] = "target.max_perplexity_increase";
  if (!(max_increase_percent >= 0.0 && max_increase_percent <= kMaxIncreasePercent)) {
    return InvalidField(kField, absl::StrCat("must be in [0, ", kMaxIncreasePercent, "]"));
  }
  if (!(full_perplexity >= 1.0 && std::isfinite(full_perplexity))) {
    return absl::InternalError(absl::StrCat("perplexity of full attention: ", full_perplexity));
  }
  RETURN_IF_ERROR(CheckSearch(search));
  const MeasureShift increase = [&](double shift) -> absl::StatusOr<double> {
    ASSIGN_OR_RETURN(const double perplexity, measure(shift));
    if (!(perplexity >= 1.0)) {
      return absl::InternalError(absl::StrCat("perplexity: measured ", perplexity));
    }
    return (perplexity / full_perplexity - 1.0) * 100.0;
  };
  const Level level = {.level = max_increase_percent, .falling = false, .tolerance = {}};
  Search found(search, level, increase);
  RETURN_IF_ERROR(found.Run());
  return Sparsest(
      kField, max_increase_percent, found,
      [max_increase_percent](double value) { return value <= max_increase_percent; },
      std::less<>());
}

absl::StatusOr<ShiftResult> SolveMassShift(double least, const ShiftSearch& search,
                                           const MeasureShift& measure) {
  constexpr char kField[] = "target.retained_mass";
  if (!(least > 0.0 && least <= 1.0)) return InvalidField(kField, "must be in (0, 1]");
  RETURN_IF_ERROR(CheckSearch(search));
  const MeasureShift checked = Shares(kField, measure);
  // A mass that is just met may grow sparser: it lies above this level.
  const Level level = {.level = std::nextafter(least, 0.0), .falling = true, .tolerance = {}};
  Search found(search, level, checked);
  RETURN_IF_ERROR(found.Run());
  return Sparsest(
      kField, least, found, [least](double value) { return value >= least; }, std::greater<>());
}

std::vector<float> ShiftThresholds(std::span<const double> constants, double shift) {
  std::vector<float> shifted;
  shifted.reserve(constants.size());
  for (const double constant : constants) shifted.push_back(static_cast<float>(constant + shift));
  return shifted;
}

}  // namespace eta
