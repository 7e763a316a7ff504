// Quest (Tang et al., "Quest: Query-Aware Sparsity for Efficient Long-Context LLM Inference", ICML
// 2024): each head admits a fixed share of its row's blocks, those whose keys' box, coordinate by
// coordinate, allows the largest score. The first layers stay dense: two in the authors' code.
#pragma once

#include <cstdint>
#include <memory>

#include "calibration/evaluation/rivals/rival.h"

namespace eta {

// `share` [0, 1] of the full blocks that are not always read, rounded up.
std::shared_ptr<const Rival> MakeQuest(double share, int32_t dense_layers = 0);

}  // namespace eta
