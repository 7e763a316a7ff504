#include "kernels/weights/activation_groups.h"

#include <algorithm>
#include <cmath>
#include <limits>

namespace eta {

ActivationGroup QuantizeActivations(std::span<const float> activations) {
  ActivationGroup group{};
  float largest = 0.0f;
  bool finite = true;
  for (const float x : activations) {
    finite = finite && std::isfinite(x);
    largest = std::max(largest, std::abs(x));
  }
  if (!finite) {
    group.scale = std::numeric_limits<float>::quiet_NaN();
    group.scaled_sum = group.scale;
    return group;
  }
  const float scale = largest / 127.0f;
  if (scale < kLeastActivationScale) return group;
  const float inverse = 1.0f / scale;
  for (size_t i = 0; i < activations.size(); ++i) {
    group.x[i] = static_cast<int8_t>(std::nearbyint(activations[i] * inverse));
    group.sum[i / (kGroupNumbers / 2)] += group.x[i];
  }
  group.scale = scale;
  group.scaled_sum = scale * static_cast<float>(group.sum[0] + group.sum[1]);
  return group;
}

}  // namespace eta
