// The launch of prefill attention at d = 256, a source of its own for its many instances.
#pragma once

#include <cstdint>

#include "kernels/cuda/host/ops.h"

namespace eta::cuda {

struct PrefillParams;

// One CTA of `blocks` takes a part of a tile and KV head.
void LaunchWidePrefill(Context& context, const PrefillParams& params, uint32_t blocks);

}  // namespace eta::cuda
