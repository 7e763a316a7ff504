// Finds a CTA's piece of the step's sequences, from the CTA's number.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/host/step_view.h"

namespace eta::cuda {

// Piece `index` of sequence `sequence`.
struct Piece {
  int32_t sequence;  // -1: there is no such piece
  int32_t index;
};

// Returns piece `index` of all sequences, one after the other; pieces_of(sequence) says how many
// one has. One whole warp calls it.
template <typename PiecesOf>
__device__ __forceinline__ Piece FindPiece(const StepSequence* sequences, int32_t num_sequences,
                                           int32_t index, const PiecesOf& pieces_of) {
  const int32_t lane = threadIdx.x % 32;
  for (int32_t begin = 0; begin < num_sequences; begin += 32) {
    const int32_t pieces = begin + lane < num_sequences ? pieces_of(sequences[begin + lane]) : 0;
    int32_t end = pieces;
    for (int32_t step = 1; step < 32; step *= 2) {
      const int32_t before = __shfl_up_sync(~0u, end, step);
      if (lane >= step) end += before;
    }
    const uint32_t mine = __ballot_sync(~0u, index >= end - pieces && index < end);
    if (mine == 0) {
      index -= __shfl_sync(~0u, end, 31);
      continue;
    }
    const int32_t owner = __ffs(mine) - 1;
    return {begin + owner, index - __shfl_sync(~0u, end - pieces, owner)};
  }
  return {-1, 0};
}

}  // namespace eta::cuda
