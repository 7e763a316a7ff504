// Estimates the scores of a block's keys from its record, for one query head (eta-semantics.md,
// "Selection", step 1, and "Relative thresholds"), from the record as a backend gives it back.
#pragma once

#include <cstdint>
#include <span>

#include "kernels/backend.h"

namespace eta {

// The bound on the scores.
float ScoreBound(const KvGeometry& geometry, const BlockRecord& record, std::span<const float> q,
                 float softmax_scale, float z);

// l_j, the estimated log-sum-exp of the scores. REQUIRES: a record of kOutlier.
float EstimatedLogMass(const KvGeometry& geometry, const BlockRecord& record,
                       std::span<const float> q, float softmax_scale);

// log(exp(a) + exp(b)); also of minus infinity.
double LogAdd(double a, double b);

}  // namespace eta
