// ListBlocks of backends in host memory: the reference and the CPU have the same plain loops, since
// the op is for evaluation.
#pragma once

#include "kernels/batch.h"
#include "kernels/params.h"

namespace eta {

void ListBlocks(const BatchView& batch, const ListBlocksParams& params);

}  // namespace eta
