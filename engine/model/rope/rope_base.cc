#include "engine/model/rope/rope_base.h"

#include <cmath>

namespace eta {
namespace {

// Every step is a number that float holds exactly.
double RoundUp(double wanted) {
  for (const double step : {1.0, 1.25, 1.5, 2.0, 2.5, 3.0}) {
    if (wanted <= step) return step;
  }
  double step = 4.0;
  while (step < wanted) {
    if (wanted <= 1.5 * step) return 1.5 * step;
    step *= 2.0;
  }
  return step;
}

}  // namespace

float RopeFactor(const ModelConfig& config, int64_t context) {
  return static_cast<float>(
      RoundUp(static_cast<double>(context) / static_cast<double>(config.max_context)));
}

float RopeTheta(const ModelConfig& config, int64_t context) {
  const double factor = RopeFactor(config, context);
  if (factor == 1.0) return config.rope_theta;
  const RopeScaling& scaling = config.rope_scaling;
  const double stretched = scaling.type == RopeScalingType::kDynamic
                               ? scaling.factor * factor - (scaling.factor - 1.0)
                               : factor;
  const double exponent = static_cast<double>(config.head_dim) / (config.head_dim - 2);
  return static_cast<float>(config.rope_theta * std::pow(stretched, exponent));
}

}  // namespace eta
