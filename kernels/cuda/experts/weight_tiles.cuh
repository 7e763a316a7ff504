// Packed weights of a stage of many_places.cu. A stage has a chunk of K of 8 tiles of channels
// (packed_layout.h), one for each warp. The warp rounds its chunk's numbers to the type of
// products, as UnpackWeight does, and puts them where copies would put rows of 16 bits. It asks for
// a chunk when it has stored the one before.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/hit_list.cuh"
#include "kernels/cuda/experts/place_tiles.cuh"
#include "kernels/cuda/packed/chunk_numbers.cuh"
#include "kernels/cuda/packed/packed_layout.h"

namespace eta::cuda::places {

// A lane's share of a chunk, whose type is known when it is there. Lanes of odd channels have its
// two groups in turned order, so that the stores of neighbouring rows lie in different banks.
struct LoadedChunk {
  uint4 numbers[2];
  uint4 scales;

  // The first of the numbers of the lane's first group, of a chunk's 64.
  static __device__ __forceinline__ int32_t Turned() {
    return static_cast<int32_t>(threadIdx.x % 32 / 4 % 2) * 32;
  }

  __device__ __forceinline__ void Load(const std::byte* chunk, PackedType type) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t turned = Turned();
    const std::byte* at = chunk + ScalesAt(type);
    if (type == PackedType::kInt4) {
      numbers[0] = LoadPairs(chunk + lane * 16, turned / 4);
      scales = LoadPairs(at + lane / 4 * 16, turned / 4);
      return;
    }
    numbers[0] = LoadWeights(chunk + lane * 16 + turned * 16);
    numbers[1] = LoadWeights(chunk + lane * 16 + (turned ^ 32) * 16);
    if (type == PackedType::kInt8) {
      scales.x = LoadWord(at + lane / 4 * 8 + turned / 8);
      scales.y = LoadWord(at + lane / 4 * 8 + (turned / 8 ^ 4));
    } else {
      scales.x = LoadWord(at);
    }
  }

  template <PackedType type>
  __device__ __forceinline__ packed::Chunk<type> As() const {
    packed::Chunk<type> chunk;
    if constexpr (type == PackedType::kInt4) {
      chunk.numbers = numbers[0];
      chunk.scales = scales;
    } else {
      chunk.numbers.of_group[0] = numbers[0];
      chunk.numbers.of_group[1] = numbers[1];
      if constexpr (type == PackedType::kInt8) {
        chunk.scales = {scales.x, scales.y};
      } else {
        chunk.scale = __uint_as_float(scales.x);
      }
    }
    return chunk;
  }

 private:
  static __device__ __forceinline__ uint32_t LoadWord(const std::byte* from) {
    return __ldg(reinterpret_cast<const uint32_t*>(from));
  }
  // 16 bytes, the halves in turned order if `first` is 8.
  static __device__ __forceinline__ uint4 LoadPairs(const std::byte* from, int32_t first) {
    const uint2 low = __ldg(reinterpret_cast<const uint2*>(from + first));
    const uint2 high = __ldg(reinterpret_cast<const uint2*>(from + (first ^ 8)));
    return {low.x, low.y, high.x, high.y};
  }
};

template <typename T, typename Tile, int kM, bool kSwiGlu>
class WeightTiles {
 public:
  __device__ WeightTiles(const ExpertArgs& args, const TaskWalk& task)
      : part_(args.parts[kSwiGlu && !Tile::Gates::IsGate(FirstRow()) ? 1 : 0]),
        chunks_(static_cast<int32_t>(Chunks(args.k))) {
    static_assert(kN == 8 * kTileChannels && kStep == kChunk);
    // Tiles that do not exist read the last one.
    const int32_t tile = min(ChannelOf<Tile, kSwiGlu>(task.tile(), FirstRow()) / kTileChannels,
                             static_cast<int32_t>(Tiles(args.channels)) - 1);
    const std::byte* expert = args.weights + task.expert() * args.stride;
    units_ = packed::UnitsOf(reinterpret_cast<const float*>(expert + part_.units), tile);
    next_ = expert + part_.tiles + int64_t{tile} * chunks_ * ChunkBytes(part_.type);
    LoadNext();
  }

  // Stores the numbers of a step. Steps come in order.
  __device__ __forceinline__ void Copy(int32_t step, std::byte* stage) {
    const int32_t row = kM + FirstRow() + static_cast<int32_t>(threadIdx.x % 32 / 4);
    WithPartType(part_.type, [&](auto type) {
      const auto store = [&](int half, int32_t k, const float(&numbers)[8]) {
        std::byte* to = stage + ChunkAt(row + 8 * half, (k ^ LoadedChunk::Turned()) / 8);
        StoreElements(numbers, reinterpret_cast<T*>(to));
      };
      packed::ForNumbers<T>(loaded_.As<type()>(), units_, store);
    });
    if (step + 1 < chunks_) LoadNext();
  }

 private:
  // Of the warp's tile, of the stage's rows of weights.
  static __device__ __forceinline__ int32_t FirstRow() {
    return static_cast<int32_t>(threadIdx.x / 32) * kTileChannels;
  }
  __device__ __forceinline__ void LoadNext() {
    loaded_.Load(next_, part_.type);
    next_ += ChunkBytes(part_.type);
  }

  const ExpertPart& part_;
  int32_t chunks_;  // of a tile
  packed::LaneUnits units_;
  const std::byte* next_;
  LoadedChunk loaded_;
};

}  // namespace eta::cuda::places
