// The rings in shared memory of a product with packed weights: rows of x for the thread block, and
// for each warp its chunks.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/slot_ring.cuh"
#include "kernels/cuda/packed/packed_args.cuh"

namespace eta::cuda::packed {

inline constexpr int kStages = 3;  // of the ring of x
// Of x in a stage. Two thread blocks share a multiprocessor.
template <int kColumns>
inline constexpr int kStageChunks = kColumns <= 4 ? 4 : 2;

// Rows of x for the tensor cores: the thread block's slice comes by stages. Rows that do not exist
// are zero, so that reading needs no condition.
template <typename T, int kColumns>
class Ring {
 public:
  static constexpr int kRows = 8 * kColumns;
  static constexpr int kStageNumbers = kStageChunks<kColumns> * kChunk;
  static constexpr int kStageStride = product::SharedStride(kStageNumbers);
  static constexpr int kPieces = kStageNumbers / 8;
  static constexpr int kRowsTogether = kThreads / kPieces;
  static_assert(kThreads % kPieces == 0 && kRows % kRowsTogether == 0);
  static constexpr int kStageElements = kRows * kStageStride;
  static constexpr int kBytes = kStages * kStageElements * static_cast<int>(sizeof(T));

  __device__ Ring(const product::Args& args, std::byte* memory, int32_t first_k)
      : args_(args),
        memory_(reinterpret_cast<T*>(memory)),
        row_(static_cast<int32_t>(threadIdx.x) / kPieces),
        k_(first_k + static_cast<int32_t>(threadIdx.x) % kPieces * 8),
        place_(row_ * kStageStride + static_cast<int32_t>(threadIdx.x) % kPieces * 8),
        from_(args.x + (row_ * args.x_stride + k_) * 2) {}

  // Before the first Enter.
  __device__ __forceinline__ void ClearRest() {
    const int32_t pieces = (kRows - args_.rows) * (kStageStride / 8);
    for (auto i = static_cast<int32_t>(threadIdx.x); i < kStages * pieces; i += kThreads) {
      T* rest = memory_ + i / pieces * kStageElements + args_.rows * kStageStride;
      reinterpret_cast<uint4*>(rest)[i % pieces] = uint4{};
    }
  }
  // Starts to bring stage `stage` of the slice. A thread has one place of every kRowsTogether-th
  // row.
  __device__ __forceinline__ void Request(int32_t stage) {
    const bool exists = k_ + stage * kStageNumbers < args_.k;
    T* to = memory_ + stage % kStages * kStageElements + place_;
    const std::byte* from = from_ + int64_t{stage} * (kStageNumbers * 2);
#pragma unroll
    for (int n = 0; n < kRows / kRowsTogether; ++n) {
      if (row_ + n * kRowsTogether < args_.rows) {
        if (exists) {
          CopyAsync<16>(to + n * (kRowsTogether * kStageStride), from);
        } else {
          *reinterpret_cast<uint4*>(to + n * (kRowsTogether * kStageStride)) = uint4{};
        }
      }
      from += args_.x_stride * (kRowsTogether * 2);
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
  // The thread's part of the first stage.
  int32_t row_;
  int32_t k_;
  int32_t place_;
  const std::byte* from_;
};

// Bytes of chunks that a warp has on their way or at hand.
template <int kColumns>
inline constexpr int kWarpBytes = kColumns <= 2 ? 8704 : 6528;
inline constexpr int kMostSlots = 8;

// The chunks of one warp, which follow each other in memory, through a ring of at most kBytes. They
// come by the copy engine, since loads into registers that are on their way together are also
// waited for together: a warp has few counters of loads.
template <PackedType type, int kBytes>
class WeightRing {
 public:
  static constexpr int kSlotChunks = type == PackedType::kSixteen ? 1 : 2;
  static constexpr int kSlotBytes = kSlotChunks * static_cast<int>(ChunkBytes(type));
  static constexpr int kFit = kBytes / kSlotBytes;
  static constexpr int kSlots = kFit < kMostSlots ? kFit : kMostSlots;
  static_assert(kSlots >= 3);

  // `memory` and `arrived` are the warp's. Null `chunks`: it has none.
  __device__ WeightRing(std::byte* memory, Barrier* arrived, const std::byte* chunks,
                        int32_t num_chunks)
      : slots_(memory, arrived), chunks_(chunks), left_(chunks != nullptr ? num_chunks : 0) {}

  // Starts to bring the first chunks.
  __device__ __forceinline__ void Start() {
    slots_.Start([this](int32_t slot) { Request(slot); });
  }
  // Waits for the next kSlotChunks chunks.
  __device__ __forceinline__ const std::byte* Await() const { return slots_.Await(); }
  // Those that Await() has waited for.
  __device__ __forceinline__ const std::byte* Slot() const { return slots_.Slot(); }
  // Starts to bring others in their place.
  __device__ __forceinline__ void Release() {
    slots_.Release([this](int32_t slot) { Request(slot); });
  }

 private:
  __device__ __forceinline__ void Request(int32_t slot) {
    if (left_ <= 0) return;
    const auto bytes = static_cast<uint32_t>(min(kSlotChunks, left_) * ChunkBytes(type));
    slots_.Copy(slot, chunks_, bytes);
    chunks_ += kSlotBytes;
    left_ -= kSlotChunks;
  }

  SlotRing<kSlots, kSlotBytes> slots_;
  const std::byte* chunks_;  // the next to ask for
  int32_t left_;             // to ask for
};

}  // namespace eta::cuda::packed
