// Top-k by the index: each head admits a fixed share of its row's blocks, those whose records
// promise most. With records of kOutlier that is the estimated mass which relative thresholds
// compare, else the bound.
#pragma once

#include <memory>
#include <span>

#include "calibration/evaluation/rivals/rival.h"

namespace eta {

// `share` [0, 1] of the full blocks that are not always read, rounded up.
std::shared_ptr<const Rival> MakeTopK(double share);

// Sets 1 at the ceil(share * M) blocks with the largest values, of the M that `admitted` does not
// have yet; of equal ones at the first. `values` and `admitted` are [N].
void AdmitLargest(std::span<const float> values, double share, std::span<uint8_t> admitted);

}  // namespace eta
