// BigBird (Zaheer et al., "Big Bird: Transformers for Longer Sequences", NeurIPS 2020) as the paper
// runs it: sinks, a window, and in the place of random blocks every so many.
#pragma once

#include <cstdint>
#include <memory>

#include "calibration/evaluation/rivals/rival.h"
#include "calibration/evaluation/rivals/window.h"

namespace eta {

// Each head admits the window and the blocks whose ordinals are multiples of `stride`, at least 1.
// Sinks are those of AttentionOptions.
std::shared_ptr<const Rival> MakeBigBird(WindowLength window, int32_t stride);

}  // namespace eta
