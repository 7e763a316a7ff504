// Measures how far the values of pruned keys cancel (the paper's proposition on the uniform floor,
// its assumption A2, and the table that verifies it). The measure is the distance of their mean
// from the mean of all values of the row, |v_P - mu| / sqrt(tr Sigma). It is 1 / sqrt(m) for m
// uncorrelated values.
//
// P of a row and head: the keys s < t with S < tau_eff. mu and Sigma, the covariance, are those of
// the values of keys 0 .. t.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "calibration/evaluation/tables/measures/recorded_attention.h"

namespace eta {

// m, of the paper's table and beyond.
inline constexpr std::array<int32_t, 9> kTailSizes = {16, 32, 64, 128, 256, 384, 512, 1024, 2048};

enum class TailNorm {
  // The root of the mean square over all subsets of m of the pruned keys, in closed form. Rows that
  // prune at least m.
  kSubset,
  // The same rows, with subsets of m of all T keys, drawn without replacement: the root of (T - m)
  // / (m * (T - 1)).
  kFinite,
  // The distance of all that a row prunes, for rows that prune [m / sqrt(2), m * sqrt(2)) keys.
  kWhole,
  // Likewise, and the mean weighs values as full attention's softmax does.
  kWeighted
};
inline constexpr std::array kTailNorms = {TailNorm::kSubset, TailNorm::kFinite, TailNorm::kWhole,
                                          TailNorm::kWeighted};

// Where the sum of a norm and the number of its terms stand in TailNormSums; `size` indexes
// kTailSizes.
constexpr size_t TailNormSum(size_t size, TailNorm norm) {
  return size * (kTailNorms.size() + 2) + static_cast<size_t>(norm);
}
constexpr size_t TailNormTerms(size_t size, TailNorm norm) {
  const bool subset = norm == TailNorm::kSubset || norm == TailNorm::kFinite;
  return size * (kTailNorms.size() + 2) + kTailNorms.size() + (subset ? 0 : 1);
}
// The share of full attention's softmax that lies on keys that are not pruned, and its terms: the
// paper's alpha_train.
inline constexpr size_t kActiveShareSum = kTailSizes.size() * (kTailNorms.size() + 2);
inline constexpr size_t kActiveShareTerms = kActiveShareSum + 1;
inline constexpr size_t kTailNormSums = kActiveShareSum + 2;

// Sums over the recorded rows and query heads of a layer, [kTailNormSums]. Rows whose values are
// all the same have no norm.
std::vector<double> TailNormSums(const RecordedWindow& window, const RecordedLayer& layer);

}  // namespace eta
