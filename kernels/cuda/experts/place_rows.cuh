// The rows of 16 bits that a thread block of many_places.cu copies into a stage: of x, each from
// where it is, and of weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/hit_list.cuh"
#include "kernels/cuda/experts/place_tiles.cuh"

namespace eta::cuda::places {

inline constexpr int kThreads = 256;
inline constexpr int kRowsAtOnce = kThreads / kChunks;

// Copies 16 bytes, or fills with zeros.
__device__ __forceinline__ void CopyOrZero(uint32_t shared, const std::byte* global, bool copies) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(shared), "l"(global),
               "r"(copies ? 16 : 0)
               : "memory");
}

// The 16 bytes of a row that a thread copies.
__device__ __forceinline__ int32_t OwnChunk() {
  return static_cast<int32_t>(threadIdx.x) % kChunks;
}
// The first of the thread's rows, every kRowsAtOnce-th of a stage.
__device__ __forceinline__ int32_t OwnRow() {
  return static_cast<int32_t>(threadIdx.x) / kChunks;
}

// The places' rows of x.
template <int kM>
class PlaceRows {
 public:
  __device__ PlaceRows(const ExpertArgs& args, const TaskWalk& task) : k_(args.k) {
#pragma unroll
    for (int i = 0; i < kM / kRowsAtOnce; ++i) {
      const int32_t index = OwnRow() + i * kRowsAtOnce;
      x_[i] = nullptr;
      if (index >= task.count()) continue;
      const int32_t place = task.place() + index;
      const int32_t row = args.rows != nullptr ? args.rows[place] : place;
      x_[i] = args.x + row * args.x_stride * 2;
    }
  }

  // Starts the copies of elements kStep * step .. of K. Rows of places that do not exist stay as
  // they are: nothing that is stored comes of them.
  __device__ void Copy(int32_t step, std::byte* stage) const {
    const int32_t k = step * kStep + OwnChunk() * 8;
    const bool exists = k < k_;
    const int64_t from = exists ? int64_t{k} * 2 : 0;
#pragma unroll
    for (int i = 0; i < kM / kRowsAtOnce; ++i) {
      if (x_[i] == nullptr) continue;
      CopyOrZero(SharedAddress(stage) + ChunkAt(OwnRow() + i * kRowsAtOnce, OwnChunk()),
                 x_[i] + from, exists);
    }
  }

 private:
  int32_t k_;
  const std::byte* x_[kM / kRowsAtOnce];
};

// Rows of weights of 16 bits.
template <typename Tile, int kM, bool kSwiGlu>
class WeightRows {
 public:
  __device__ WeightRows(const ExpertArgs& args, const TaskWalk& task) : k_(args.k) {
    const int64_t all = kSwiGlu ? 2 * args.channels : args.channels;
    const std::byte* expert = args.weights + task.expert() * all * args.k * 2;
#pragma unroll
    for (int i = 0; i < kN / kRowsAtOnce; ++i) {
      const int32_t row = OwnRow() + i * kRowsAtOnce;
      // Channels that do not exist read the last one.
      const int32_t channel = min(ChannelOf<Tile, kSwiGlu>(task.tile(), row), args.channels - 1);
      const int64_t from =
          kSwiGlu && !Tile::Gates::IsGate(row) ? int64_t{channel} + args.channels : channel;
      weights_[i] = expert + from * args.k * 2;
    }
  }

  // Starts the copies of a step. Steps come in order.
  __device__ void Copy(int32_t step, std::byte* stage) {
    const int32_t k = step * kStep + OwnChunk() * 8;
    const bool exists = k < k_;
    const int64_t from = exists ? int64_t{k} * 2 : 0;
#pragma unroll
    for (int i = 0; i < kN / kRowsAtOnce; ++i) {
      CopyOrZero(SharedAddress(stage) + ChunkAt(kM + OwnRow() + i * kRowsAtOnce, OwnChunk()),
                 weights_[i] + from, exists);
    }
  }

 private:
  int32_t k_;
  const std::byte* weights_[kN / kRowsAtOnce];
};

}  // namespace eta::cuda::places
