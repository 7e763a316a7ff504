// Rows of x in shared memory, for products with packed weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/packed/packed_args.cuh"

namespace eta::cuda::packed {

inline constexpr int kStages = 3;       // of the ring
inline constexpr int kStageChunks = 4;  // of x in a stage
inline constexpr int kStageNumbers = kStageChunks * kChunk;
inline constexpr int kStageStride = product::SharedStride(kStageNumbers);

// Rows of x for the tensor cores: the thread block's slice comes by stages. Rows that do not exist
// are zero, so that reading needs no condition.
template <typename T, int kColumns>
class Ring {
 public:
  static constexpr int kRows = 8 * kColumns;
  static constexpr int kStageElements = kRows * kStageStride;
  static constexpr int kBytes = kStages * kStageElements * static_cast<int>(sizeof(T));

  __device__ Ring(const product::Args& args, std::byte* memory, int32_t first_k)
      : args_(args), memory_(reinterpret_cast<T*>(memory)), first_k_(first_k) {}

  // Before the first Enter.
  __device__ __forceinline__ void ClearRest() {
    const int32_t pieces = (kRows - args_.rows) * (kStageStride / 8);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kStages * pieces; i += kThreads) {
      T* rest = memory_ + i / pieces * kStageElements + args_.rows * kStageStride;
      reinterpret_cast<uint4*>(rest)[i % pieces] = uint4{};
    }
  }
  // Starts to bring stage `stage` of the slice.
  __device__ __forceinline__ void Request(int32_t stage) {
    constexpr int kPieces = kStageNumbers / 8;
    const int32_t begin = first_k_ + stage * kStageNumbers;
    T* to = memory_ + stage % kStages * kStageElements;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < args_.rows * kPieces; i += kThreads) {
      const int32_t row = i / kPieces;
      const int32_t piece = i % kPieces * 8;
      const int32_t k = begin + piece;
      T* shared = to + row * kStageStride + piece;
      if (k < args_.k) {
        CopyAsync<16>(shared, args_.x + (row * args_.x_stride + k) * 2);
      } else {
        *reinterpret_cast<uint4*>(shared) = uint4{};
      }
    }
  }
  // Waits for stage `stage` and starts to bring a later one in the place of the one before it.
  __device__ __forceinline__ void Enter(int32_t stage, int32_t num_stages) {
    WaitGroups<kStages - 2>();
    __syncthreads();
    if (stage + kStages - 1 < num_stages) Request(stage + kStages - 1);
    CommitGroup();
  }
  // Numbers from `k` of the stage on, of row `row`.
  __device__ __forceinline__ const T* At(int32_t stage, int32_t row, int32_t k) const {
    return memory_ + stage % kStages * kStageElements + row * kStageStride + k;
  }

 private:
  const product::Args& args_;
  T* memory_;
  int32_t first_k_;
};

}  // namespace eta::cuda::packed
