// Which row-layers of a request with min_mass are measured: kLayers layers of every kPeriod-th
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
  // Of a row that is measured; may be twice the same.
  static std::array<int32_t, kLayers> Layers(int32_t row, int32_t num_layers) {
    constexpr uint64_t kSeed = 0x9a55;  // any
    std::array<int32_t, kLayers> layers{};
    for (int32_t i = 0; i < kLayers; ++i) {
      const auto index = static_cast<uint64_t>(row) * kLayers + static_cast<uint64_t>(i);
      const auto layer = static_cast<int32_t>(UniformDraw(kSeed, index) * num_layers);
      layers[static_cast<size_t>(i)] = std::min(layer, num_layers - 1);
    }
    return layers;
  }
};

}  // namespace eta
