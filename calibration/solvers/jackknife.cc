#include "calibration/solvers/jackknife.h"

#include <cmath>
#include <numeric>

#include "calibration/solvers/interval.h"

namespace eta {
namespace {

std::vector<double> Added(std::span<const std::vector<double>> groups) {
  std::vector<double> sums(groups.empty() ? 0 : groups.front().size());
  for (const std::vector<double>& group : groups) {
    for (size_t i = 0; i < sums.size(); ++i) sums[i] += group[i];
  }
  return sums;
}

std::optional<double> Finite(double value) {
  return std::isfinite(value) ? std::optional(value) : std::nullopt;
}

}  // namespace

Estimate Jackknife(
    size_t groups,
    const std::function<std::optional<double>(std::optional<size_t> without)>& statistic) {
  Estimate estimate = {.value = statistic(std::nullopt)};
  if (!estimate.value || groups < kMinJackknifeGroups) return estimate;
  std::vector<double> without(groups);
  for (size_t i = 0; i < groups; ++i) {
    const std::optional<double> value = statistic(i);
    if (!value) return estimate;
    without[i] = *value;
  }
  const auto n = static_cast<double>(groups);
  const double mean = std::accumulate(without.begin(), without.end(), 0.0) / n;
  double squares = 0.0;
  for (const double value : without) squares += (value - mean) * (value - mean);
  estimate.half_width = Finite(StudentQuantile(n - 1) * std::sqrt((n - 1) / n * squares));
  return estimate;
}

Estimate JackknifeOfSums(
    std::span<const std::vector<double>> groups,
    const std::function<std::optional<double>(std::span<const double> sums)>& statistic) {
  if (groups.empty()) return {};
  // Added anew without each group: a difference of sums would lose digits where one group weighs
  // more than all others.
  return Jackknife(groups.size(), [&](std::optional<size_t> without) {
    if (!without) return statistic(Added(groups));
    std::vector<double> sums = Added(groups.first(*without));
    const std::vector<double> behind = Added(groups.subspan(*without + 1));
    sums.resize(groups.front().size());
    for (size_t i = 0; i < behind.size(); ++i) sums[i] += behind[i];
    return statistic(sums);
  });
}

Estimate JackknifeRatio(std::span<const std::vector<double>> groups, size_t numerator,
                        size_t denominator) {
  return JackknifeOfSums(groups, [&](std::span<const double> sums) {
    return Finite(sums[numerator] / sums[denominator]);
  });
}

}  // namespace eta
