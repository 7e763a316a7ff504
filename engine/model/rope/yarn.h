// YaRN ("YaRN: Efficient Context Window Extension of Large Language Models", Peng et al.), with the
// numbers of Hugging Face's transformers.
#pragma once

#include <cstdint>

#include "kernels/rope_scaling.h"

namespace eta {

struct YarnOptions {
  double factor = 1.0;           // at least 1
  int32_t original_context = 0;  // tokens, at least 1
  // Turns in original_context tokens from which on a pair keeps its speed, and up to which it turns
  // `factor` times slower. Above 0, beta_fast >= beta_slow.
  double beta_fast = 32.0;
  double beta_slow = 1.0;
  double mscale = 0.0;  // both, or 0: the attention factor follows from `factor` alone
  double mscale_all_dim = 0.0;
  double attention_factor = 0.0;  // 0: from the two above
  bool truncate = true;           // both ends of the ramp are whole pairs
};

// REQUIRES: rope_theta > 1.
RopeScaling YarnScaling(const YarnOptions& options, int32_t head_dim, double rope_theta);

}  // namespace eta
