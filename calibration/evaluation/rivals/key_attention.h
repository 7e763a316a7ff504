// Attention of one query head over single keys of its row, on the host: gate, tempered keys,
// softmax and floor as backends have them (eta-semantics.md, "Gate", "Special keys" and
// "Selection", steps 6 and 7), whatever the size of a block.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "calibration/evaluation/rivals/rival.h"

namespace eta {

// The gate of a model.
struct KeyGate {
  bool silu = false;
  float beta = 1.0f;
};

// The logits of the keys of block `ordinal` that the row sees, into the first of `logits`.
void BlockLogits(const RivalHead& head, const KeyGate& gate, int32_t ordinal,
                 std::span<float> logits);

// The output [d] over the keys that `admitted` [T] has, at least one. With `floor` the others weigh
// exp(0). REQUIRES: keys and values of the row's blocks are kept.
std::vector<float> AttendToKeys(const RivalHead& head, const KeyGate& gate, bool floor,
                                std::span<const uint8_t> admitted);

}  // namespace eta
