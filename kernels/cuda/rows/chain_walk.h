// In which order the thread blocks of product_chain.cu take the weights of a chain of products.
// Those that ask for weights and those that multiply them walk by the same functions. Nothing here
// touches a device.
//
// A product is tiles of 16 rows of its weight, a tile is stages of 1024 numbers of K, and a thread
// block has whole tiles. Tiles are dealt out in turns through all products of the chain: the thread
// blocks that one product gives a tile less get the first ones of the next.
#pragma once

#include <cstdint>

namespace eta::cuda::product {

inline constexpr int kMostChained = 4;
inline constexpr int kStageRows = 16;
inline constexpr int kStageWidth = 1024;  // a group of 128 numbers for each of 8 warps
// Bytes of a row of a stage in shared memory: the 8 rows of which ldmatrix reads 16 bytes at once
// then lie in different banks.
inline constexpr int kStagePitch = 2 * kStageWidth + 16;
inline constexpr int kStageBytes = kStageRows * kStagePitch;
inline constexpr int kLeastStages = 2;
inline constexpr int kMostStages = 6;

// How one product of a chain is dealt out.
struct ChainPart {
  int32_t tiles = 0;
  int32_t stages = 0;       // of a tile
  int32_t first_block = 0;  // the one that takes tile 0

  // The first tile of a thread block. The next ones follow by `blocks`.
  constexpr int32_t FirstTile(int32_t block, int32_t blocks) const {
    return block - first_block + (block < first_block ? blocks : 0);
  }
  // The thread block that comes next after the last tile.
  constexpr int32_t NextBlock(int32_t blocks) const {
    return static_cast<int32_t>((int64_t{first_block} + tiles) % blocks);
  }
};

// `channels`: N, with SwiGLU of each half.
constexpr ChainPart DealOut(int32_t channels, int32_t k, bool swiglu, int32_t first_block) {
  const int32_t of_tile = swiglu ? kStageRows / 2 : kStageRows;
  return {.tiles = (channels - 1) / of_tile + 1,
          .stages = (k - 1) / kStageWidth + 1,
          .first_block = first_block};
}

// The row of the weight that is row `i` of a tile: with SwiGLU the tile has 8 channels of both
// halves. In place of channels that do not exist it has the last one.
constexpr int64_t WeightRow(int32_t channels, bool swiglu, int32_t tile, int32_t i) {
  constexpr int32_t kHalf = kStageRows / 2;
  const int64_t wanted =
      swiglu ? int64_t{tile} * kHalf + i % kHalf : int64_t{tile} * kStageRows + i;
  const int64_t channel = wanted < channels ? wanted : channels - 1;
  return swiglu && i >= kHalf ? channel + channels : channel;
}

// How many numbers of K a stage has. (std::min would take the address of a constant that a device
// has not, and the compiler makes a trap of that without a word.)
constexpr int32_t StageNumbers(int32_t k, int32_t stage) {
  const int32_t left = k - stage * kStageWidth;
  return left < kStageWidth ? left : kStageWidth;
}

// Where a walk is in a ring of `stages` stages. In a ring's first round the phase is 0.
struct ChainPlace {
  int32_t stage = 0;
  uint32_t phase = 0;

  constexpr void Advance(int32_t stages) {
    if (++stage < stages) return;
    stage = 0;
    phase ^= 1;
  }
};

}  // namespace eta::cuda::product
