// An estimate from groups of measurements that are independent of one another, documents say, with
// its 95 % confidence interval. What lies inside a group may depend on itself as it likes.
//
// The interval is the jackknife's: the statistic without each group in turn gives a variance,
// (n - 1) / n * sum (theta_i - mean theta)^2, and Student's t with n - 1 degrees of freedom a
// width. Of the mean of groups of equal size it is Student's own (Efron and Tibshirani, An
// Introduction to the Bootstrap, chapter 11).
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <vector>

namespace eta {

inline constexpr size_t kMinJackknifeGroups = 4;

struct Estimate {
  std::optional<double> value = std::nullopt;       // nothing: undefined, 0 / 0 say
  std::optional<double> half_width = std::nullopt;  // absent with fewer than kMinJackknifeGroups
};

// The statistic of all groups but one, or of all; nothing where it is undefined. No interval if it
// is undefined without some group.
Estimate Jackknife(
    size_t groups,
    const std::function<std::optional<double>(std::optional<size_t> without)>& statistic);

// A statistic of sums: `groups` hold equally many sums each, which add up over the groups.
Estimate JackknifeOfSums(
    std::span<const std::vector<double>> groups,
    const std::function<std::optional<double>(std::span<const double> sums)>& statistic);

// sums[numerator] / sums[denominator]; nothing where that is 0 / 0 or not finite.
Estimate JackknifeRatio(std::span<const std::vector<double>> groups, size_t numerator,
                        size_t denominator);

}  // namespace eta
