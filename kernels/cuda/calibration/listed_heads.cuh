// Looking a block up in a selection, for ops that visit every key.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/params/selection.h"

namespace eta::cuda {

// The heads of the group that attend to full block `ordinal`, from the ascending list `list` of a
// selection.
__device__ inline uint32_t ListedHeads(const BlockSelection& selection, int64_t list,
                                       int32_t ordinal) {
  const uint32_t* blocks = selection.blocks + list * selection.capacity;
  const int32_t count = selection.counts[list];
  int32_t low = 0;
  int32_t high = count;
  while (low < high) {
    const int32_t middle = (low + high) / 2;
    if (static_cast<int32_t>(blocks[middle]) < ordinal) {
      low = middle + 1;
    } else {
      high = middle;
    }
  }
  const bool found = low < count && static_cast<int32_t>(blocks[low]) == ordinal;
  return found ? selection.heads[list * selection.capacity + low] : 0;
}

}  // namespace eta::cuda
