#include "calibration/evaluation/tables/comparisons/match_reads.h"

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>

#include "engine/base/status_macros.h"

namespace eta {
namespace {

constexpr int kMostOfFew = 8;
constexpr int kMostOfAll = 5;
constexpr int kMostCorrected = 3;  // few windows that mislead so often are left
constexpr double kNearEnough = 0.003;

// The parameters between which an arm reads what is wanted, and what it reads too much there.
struct Bracket {
  double low = 0.0;
  double high = 1.0;
  double low_gap = 0.0;
  double high_gap = 0.0;
  int side = 0;  // -1, 1: the end that came nearer last

  void Narrow(double at, double gap) {
    const int nearer = gap < 0.0 ? -1 : 1;
    if (at < low || at > high) return;
    (nearer < 0 ? low : high) = at;
    (nearer < 0 ? low_gap : high_gap) = gap;
    // The Illinois rule: an end that stays weighs half, so that the other does not creep.
    if (side == nearer) (nearer < 0 ? high_gap : low_gap) /= 2.0;
    side = nearer;
  }
  // Where the secant has it, off the ends.
  double Between() const {
    const double share = -low_gap / std::max(high_gap - low_gap, 1e-9);
    return low + (high - low) * std::clamp(share, 0.05, 0.95);
  }
};

// Straight between points, and level beyond them.
class Curve {
 public:
  void Set(double at, double value) { points_[at] = value; }
  double At(double at) const {
    const auto above = points_.lower_bound(at);
    if (points_.empty()) return 0.0;
    if (above == points_.begin()) return above->second;
    const auto below = std::prev(above);
    if (above == points_.end()) return below->second;
    const double share = (at - below->first) / (above->first - below->first);
    return std::lerp(below->second, above->second, share);
  }

 private:
  std::map<double, double> points_;
};

class ReadsSearch {
 public:
  explicit ReadsSearch(const ReadsWanted& wanted) : wanted_(wanted) {}

  TriedArms& tried() const { return wanted_.tried; }
  std::string NameAt(double at) const { return wanted_.family(at); }

  // The parameter to try next on the few windows; none where nothing nearer is to be found.
  std::optional<double> NextOfFew() {
    if (Met(tried().few, Portion::kFew) || of_few_ == kMostOfFew) return std::nullopt;
    const double at = Between(tried().few, Portion::kFew);
    if (IsAmong(tried().few, at)) return std::nullopt;
    ++of_few_;
    return at;
  }

  // Likewise on all windows.
  std::optional<double> NextOfAll() {
    if (Met(tried().all, Portion::kAll) || of_all_ == kMostOfAll) return std::nullopt;
    const double at = tried().all.empty()        ? Nearest(tried().few, Portion::kFew)
                      : of_all_ < kMostCorrected ? Corrected()
                                                 : Between(tried().all, Portion::kAll);
    if (IsAmong(tried().all, at)) return std::nullopt;
    ++of_all_;
    return at;
  }

  // REQUIRES: one was tried on all windows.
  MatchedArm Best() const {
    const double at = Nearest(tried().all, Portion::kAll);
    return {NameAt(at), at, Reads(at, Portion::kAll)};
  }

 private:
  double Reads(double at, Portion portion) const { return wanted_.of(NameAt(at), portion); }
  double Gap(double at, Portion portion) const {
    return std::abs(Reads(at, portion) - wanted_.reads);
  }

  double Nearest(const std::vector<double>& tried, Portion portion) const {
    return *std::ranges::min_element(tried, {}, [&](double at) { return Gap(at, portion); });
  }
  bool Met(const std::vector<double>& tried, Portion portion) const {
    return !tried.empty() && Gap(Nearest(tried, portion), portion) <= kNearEnough;
  }
  // Names have few digits: parameters of one name are one.
  bool IsAmong(const std::vector<double>& tried, double at) const {
    return std::ranges::any_of(tried, [&](double other) { return NameAt(other) == NameAt(at); });
  }

  double Between(const std::vector<double>& tried, Portion portion) const {
    Bracket bracket = {.low_gap = -wanted_.reads, .high_gap = 1.0 - wanted_.reads};
    for (const double at : tried) bracket.Narrow(at, Reads(at, portion) - wanted_.reads);
    return bracket.Between();
  }

  // Where all windows would read what is wanted: as the few do, but for what they were off where
  // both were tried.
  double Corrected() const {
    Curve few;
    few.Set(0.0, 0.0);
    few.Set(1.0, 1.0);
    for (const double at : tried().few) few.Set(at, Reads(at, Portion::kFew));
    Curve off;
    for (const double at : tried().all) off.Set(at, Reads(at, Portion::kAll) - few.At(at));
    double low = 0.0;
    double high = 1.0;
    for (int i = 0; i < 40; ++i) {
      const double middle = (low + high) / 2.0;
      (few.At(middle) + off.At(middle) < wanted_.reads ? low : high) = middle;
    }
    return high;
  }

  const ReadsWanted& wanted_;
  int of_few_ = 0;  // tried by this search
  int of_all_ = 0;
};

struct Trial {
  std::vector<double>& tried;
  double at;
  std::string name;
};

absl::Status MeasureTrials(const std::vector<Trial>& trials, Portion portion,
                           const MeasureArms& measure) {
  std::vector<std::string> names;
  for (const Trial& trial : trials) names.push_back(trial.name);
  RETURN_IF_ERROR(measure(names, portion));
  for (const Trial& trial : trials) trial.tried.push_back(trial.at);
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<std::vector<MatchedArm>> MatchReads(std::span<const ReadsWanted> wanted,
                                                   const MeasureArms& measure) {
  std::vector<ReadsSearch> searches(wanted.begin(), wanted.end());
  for (const Portion portion : {Portion::kFew, Portion::kAll}) {
    std::vector<std::string> names;
    for (const ReadsWanted& one : wanted) {
      const TriedArms& tried = one.tried;
      for (const double at : portion == Portion::kFew ? tried.few : tried.all) {
        names.push_back(one.family(at));
      }
    }
    if (!names.empty()) RETURN_IF_ERROR(measure(names, portion));
  }
  while (true) {
    std::vector<Trial> trials;
    for (ReadsSearch& search : searches) {
      const std::optional<double> at = search.NextOfFew();
      if (at) trials.push_back({search.tried().few, *at, search.NameAt(*at)});
    }
    if (trials.empty()) break;
    RETURN_IF_ERROR(MeasureTrials(trials, Portion::kFew, measure));
  }
  while (true) {
    std::vector<Trial> trials;
    for (ReadsSearch& search : searches) {
      std::vector<double>& tried = search.tried().all;
      // What it reads there may be what the next search of this family wants.
      if (std::ranges::any_of(trials, [&](const Trial& t) { return &t.tried == &tried; })) continue;
      const std::optional<double> at = search.NextOfAll();
      if (at) trials.push_back({tried, *at, search.NameAt(*at)});
    }
    if (trials.empty()) break;
    RETURN_IF_ERROR(MeasureTrials(trials, Portion::kAll, measure));
  }
  std::vector<MatchedArm> matched;
  for (const ReadsSearch& search : searches) matched.push_back(search.Best());
  return matched;
}

}  // namespace eta
