// What parameters start with: a function of seed and name, so that what else a model has, or
// trains, changes no value.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "training/model/parameter_layout.h"

namespace eta::training {

// What values start with, where no checkpoint gives them.
struct InitOptions {
  uint64_t seed = 0;
  double deviation = 0.02;  // of matrices, normal; of o_proj and down_proj divided by sqrt(2 L)
  float threshold_bias = -8.0f;  // start-dense, as in the paper; weights of predictors are 0
};

// The matrices of a compressor (native sparse attention) have deviation 1 / sqrt(columns) instead:
// neither a norm nor a residual stands behind them, and what they give is to be of a key's size.
std::vector<float> InitialValues(const Parameter& parameter, const InitOptions& options,
                                 int32_t num_layers);

bool IsPredictor(std::string_view name);

}  // namespace eta::training
