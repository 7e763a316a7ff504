// The share of a row's keys that reach the threshold, per query head: the paper's active density
// d = 1/t * sum I(S >= tau_eff), of its figure of densities by layer and its ANOVA.
#pragma once

#include <cstdint>
#include <vector>

#include "calibration/evaluation/tables/measures/recorded_attention.h"

namespace eta {

// [HQ][rows], the row's own key counted as any other.
std::vector<std::vector<double>> ActiveDensities(const RecordedWindow& window,
                                                 const RecordedLayer& layer);

}  // namespace eta
