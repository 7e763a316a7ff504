// H2O (Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
// Models", NeurIPS 2023), by blocks: sinks, a window, and of the other blocks those on which the
// attention of earlier rows has come to rest. A block that falls behind is evicted for good.
#pragma once

#include <memory>

#include "calibration/evaluation/rivals/rival.h"
#include "calibration/evaluation/rivals/window.h"

namespace eta {

struct H2oOptions {
  WindowLength window;
  double share = 0.1;  // [0, 1] of the row's full blocks outside sinks and window, rounded up
  bool silu = false;   // logits are gated as the model's are
  float beta = 1.0f;
};

// Each head adds up its own attention: prompt rows over all keys, decode rows over those that it
// attends to.
std::shared_ptr<const Rival> MakeH2o(const H2oOptions& options);

}  // namespace eta
