// H2O (Zhang et al., "H2O: Heavy-Hitter Oracle for Efficient Generative Inference of Large Language
// Models", NeurIPS 2023): sinks, a window, and of the other keys those on which the attention of
// earlier rows has come to rest. What falls behind is evicted for good.
#pragma once

#include <memory>

#include "calibration/evaluation/rivals/key_attention.h"
#include "calibration/evaluation/rivals/window.h"

namespace eta {

struct H2oOptions {
  WindowLength window;
  double share = 0.1;  // [0, 1] of what is outside sinks and window, rounded up
  KeyGate gate;        // logits are gated as the model's are
  bool by_key = true;  // as published; false: by blocks, whose sums are those of their keys
};

// Each head adds up its own attention: prompt rows over all keys, decode rows over those that it
// attends to.
std::shared_ptr<const Rival> MakeH2o(const H2oOptions& options);

}  // namespace eta
