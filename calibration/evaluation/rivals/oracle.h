// The oracle of relative thresholds: a head admits the blocks whose true mass, against the row's
// true log-sum-exp, reaches a constant. It reads every key to choose: the best that an estimate of
// these masses could do.
#pragma once

#include <memory>

#include "calibration/evaluation/rivals/rival.h"

namespace eta {

// Admits block j iff log-sum-exp of its scores - log-sum-exp of all the row's scores >= c. Scores
// are not gated: for models without a gate.
std::shared_ptr<const Rival> MakeOracle(float c);

}  // namespace eta
