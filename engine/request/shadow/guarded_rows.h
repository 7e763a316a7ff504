// Which row-layers of a request with min_mass are measured: kLayers full layers of every kPeriod-th
// decode row, drawn by the row's number in the answer alone. So when such a request goes over to
// full attention depends on its own tokens, not on what else runs, and not on how often it was
// preempted. Of L layers that is 1 row-layer in kPeriod * L / kLayers.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>

#include "engine/base/random.h"

namespace eta {

class GuardedRows {
 public:
  static constexpr int32_t kPeriod = 16;
  static constexpr int32_t kLayers = 2;

  // `row` counts the decode rows of the answer from 0.
  static bool Measures(int32_t row) { return row % kPeriod == kPeriod / 2; }
  // Of a row that is measured; two different ones if the model has two.
  static std::array<int32_t, kLayers> Layers(int32_t row, int32_t num_layers) {
    constexpr uint64_t kSeed = 0x9a55;  // any
    const auto below = [row](int32_t count, uint64_t draw) {
      const double drawn = UniformDraw(kSeed, static_cast<uint64_t>(row) * kLayers + draw);
      return std::clamp(static_cast<int32_t>(drawn * count), 0, std::max(0, count - 1));
    };
    const int32_t first = below(num_layers, 0);
    return {first, (first + 1 + below(num_layers - 1, 1)) % num_layers};
  }
};

}  // namespace eta
