// How much of a threshold's variance eight simple statistics of its row explain (the paper's table
// "Proportion of variance (R^2) in learned thresholds"): ordinary least squares per layer and head
// over rows, each statistic by itself and all together.
#pragma once

#include <array>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "calibration/evaluation/tables/measures/recorded_attention.h"

namespace eta {

// Of the row's scores S over keys 0 .. t, before the gate; std with 1/T, entropy in nats, t from 1.
inline constexpr size_t kRowStatistics = 8;
inline constexpr std::array<const char*, kRowStatistics> kRowStatisticNames = {
    "|q|", "lse", "max S", "std S", "entropy", "log t", "mean S", "|x|"};

// In the order of the names.
std::array<double, kRowStatistics> RowStatistics(const RecordedWindow& window,
                                                 const RecordedLayer& layer, const RecordedRow& row,
                                                 int32_t head);

// Second moments of (1, the statistics, tau_eff) over the recorded rows of one head: what a
// regression needs, and adds up over windows. The upper triangle, row by row.
inline constexpr size_t kMomentSize = kRowStatistics + 2;
inline constexpr size_t kRegressionSums = kMomentSize * (kMomentSize + 1) / 2;
std::vector<double> RegressionSums(const RecordedWindow& window, const RecordedLayer& layer,
                                   int32_t head);

// R^2 of the regression with an intercept on one statistic, or on all. A statistic that is constant
// or follows from others adds nothing. Nothing if thresholds do not vary.
std::optional<double> ExplainedShare(std::span<const double> sums, std::optional<size_t> statistic);

}  // namespace eta
