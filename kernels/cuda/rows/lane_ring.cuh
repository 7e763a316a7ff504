// The weights of a warp on their way to its registers, for products of few rows. Each lane copies
// into shared memory what it reads itself, so that nobody waits for another. Loads straight into
// registers would be waited for together, however many are on their way: a warp has few counters of
// loads, but counts groups of copies one by one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/rows/product_tile.cuh"

namespace eta::cuda::product {

inline constexpr int kUnitLoads = 2;                // of a lane and channel in a unit
inline constexpr int kUnitWidth = 32 * kUnitLoads;  // elements of K
inline constexpr int kUnitsOfGroup = kLoads / kUnitLoads;
inline constexpr int kUnitBytes = 2 * kUnitLoads * 512;  // of a warp

// A unit's weights in a lane: of channel r, and of channel r + 8 or the other half's channel r.
struct Unit {
  uint4 low[kUnitLoads];
  uint4 high[kUnitLoads];
};

// kUnits units are on their way. A unit is asked for in the place of the one that was taken last.
template <int kUnits>
class LaneRing {
 public:
  static constexpr int kBytes = kWarps * kUnits * kUnitBytes;

  __device__ explicit LaneRing(std::byte* memory)
      : own_(memory + threadIdx.x / 32 * (kUnits * kUnitBytes) + threadIdx.x % 32 * 16) {}

  // Asks for the next unit. `from(half, j)`: where the lane's 16 bytes of load j are; null: they
  // are zeros. Call it kUnits times, then once after each Take, or RequestNothing.
  template <typename From>
  __device__ __forceinline__ void Request(From&& from) {
    std::byte* to = own_ + Next(asked_) * kUnitBytes;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
#pragma unroll
      for (int j = 0; j < kUnitLoads; ++j) {
        std::byte* place = to + (half * kUnitLoads + j) * 512;
        if (const std::byte* weights = from(half, j); weights != nullptr) {
          CopyAsync<16>(place, weights);
        } else {
          *reinterpret_cast<uint4*>(place) = uint4{};
        }
      }
    }
    CommitGroup();
  }
  __device__ __forceinline__ void RequestNothing() {
    Next(asked_);
    CommitGroup();
  }
  // Waits for the next unit.
  __device__ __forceinline__ Unit Take() {
    WaitGroups<kUnits - 1>();
    const std::byte* from = own_ + Next(taken_) * kUnitBytes;
    Unit unit;
#pragma unroll
    for (int j = 0; j < kUnitLoads; ++j) {
      unit.low[j] = *reinterpret_cast<const uint4*>(from + j * 512);
      unit.high[j] = *reinterpret_cast<const uint4*>(from + (kUnitLoads + j) * 512);
    }
    return unit;
  }

 private:
  // Returns `at` and moves it on.
  static __device__ __forceinline__ int32_t Next(int32_t& at) {
    const int32_t now = at;
    at = now + 1 == kUnits ? 0 : now + 1;
    return now;
  }

  std::byte* own_;
  int32_t asked_ = 0;
  int32_t taken_ = 0;
};

}  // namespace eta::cuda::product
