// How a thread block of 8 warps multiplies a stage of many_places.cu: kM rows of x by kN rows of
// weights, kStep elements of each. WarpTile has mma.sync, for any device; GroupTile has wgmma. Both
// have the same members, and both give an element the same products in the same order of K.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/wgmma.cuh"

namespace eta::cuda::places {

inline constexpr int kN = 128;     // rows of weights in a stage
inline constexpr int kStep = 64;   // elements of K
inline constexpr int kChunks = 8;  // of 16 bytes in a row
inline constexpr int kRowBytes = 16 * kChunks;

// Rows of a stage: kM of x, then kN of weights. Chunks are swizzled by the row's low bits, so that
// the 8 rows of a load of matrices lie in different banks; wgmma wants them so.
template <int kM>
inline constexpr int32_t kStageBytes = (kM + kN) * kRowBytes;

__device__ __forceinline__ int32_t ChunkAt(int32_t row, int32_t chunk) {
  return row * kRowBytes + (chunk ^ (row & 7)) * 16;
}

// Rows of weights of which the first half are the gate's channels, the others those that they meet.
template <int kRows>
struct GateRows {
  static __device__ __forceinline__ int32_t Channel(int32_t row) {
    return row / kRows * (kRows / 2) + row % (kRows / 2);
  }
  static __device__ __forceinline__ bool IsGate(int32_t row) { return row % kRows < kRows / 2; }
};

// The channel of a task's row of weights, with SwiGlu the gate's.
template <typename Tile, bool kSwiGlu>
__device__ __forceinline__ int32_t ChannelOf(int32_t tile, int32_t row) {
  return kSwiGlu ? tile * (kN / 2) + Tile::Gates::Channel(row) : tile * kN + row;
}

// A warp has kM / 2 rows of x by 32 of weights.
template <typename T, int kM>
class WarpTile {
 public:
  static constexpr bool kRunsBeside = false;
  using Gates = GateRows<32>;

  // Whether any of the first `count` rows of x is the warp's.
  static __device__ __forceinline__ bool Has(int32_t count) { return FirstX() < count; }

  __device__ __forceinline__ void Multiply(const std::byte* stage) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t x_row = FirstX() + lane % 8 + lane / 8 % 2 * 8;
    const int32_t weights_row = kM + FirstWeights() + lane % 8 + lane / 16 * 8;
    const uint32_t from = SharedAddress(stage);
#pragma unroll
    for (int inner = 0; inner < kStep / 16; ++inner) {
      uint32_t weights[2][4];
#pragma unroll
      for (int n = 0; n < 2; ++n) {
        LoadMatrices(weights[n], from + ChunkAt(weights_row + 16 * n, 2 * inner + lane / 8 % 2));
      }
#pragma unroll
      for (int m = 0; m < kM / 32; ++m) {
        uint32_t x[4];
        LoadMatrices(x, from + ChunkAt(x_row + 16 * m, 2 * inner + lane / 16));
#pragma unroll
        for (int n = 0; n < 4; ++n) {
          Mma<T>(sums_[m][n], x, weights[n / 2][n % 2 * 2], weights[n / 2][n % 2 * 2 + 1]);
        }
      }
    }
  }
  __device__ __forceinline__ void Await() {}

  // Calls visit(row of x, row of weights, sum, met) for the thread's sums; with SwiGlu for the
  // gate's alone, and `met` is the sum of the channel that it meets.
  template <bool kSwiGlu, typename Visit>
  __device__ __forceinline__ void ForSums(Visit&& visit) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int m = 0; m < kM / 32; ++m) {
#pragma unroll
      for (int n = 0; n < (kSwiGlu ? 2 : 4); ++n) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          visit(FirstX() + m * 16 + i / 2 * 8 + lane / 4,
                FirstWeights() + n * 8 + lane % 4 * 2 + i % 2, sums_[m][n][i],
                sums_[m][(n + 2) % 4][i]);
        }
      }
    }
  }

 private:
  static __device__ __forceinline__ int32_t FirstX() {
    return static_cast<int32_t>(threadIdx.x / 32 % 2) * (kM / 2);
  }
  static __device__ __forceinline__ int32_t FirstWeights() {
    return static_cast<int32_t>(threadIdx.x / 64) * 32;
  }

  float sums_[kM / 32][4][4] = {};
};

// A warpgroup has 64 rows of x by kM of weights.
template <typename T, int kM>
class GroupTile {
 public:
  static constexpr bool kRunsBeside = true;
  using Gates = GateRows<kM>;

  static __device__ __forceinline__ bool Has(int32_t count) { return FirstX() < count; }

  // Starts the products. They run until Await().
  __device__ __forceinline__ void Multiply(const std::byte* stage) {
    const uint32_t from = SharedAddress(stage);
    const uint64_t x = wgmma::Describe(from + FirstX() * kRowBytes);
    const uint32_t weights = from + (kM + FirstWeights()) * kRowBytes;
    wgmma::Fence();
#pragma unroll
    for (int inner = 0; inner < kStep / 16; ++inner) {
#pragma unroll
      for (int part = 0; part < kParts; ++part) {
        const uint64_t of_part = wgmma::Describe(weights + part * 64 * kRowBytes);
        wgmma::MultiplyShared<T, true>(sums_[part], x + inner * wgmma::kInnerStep,
                                       of_part + inner * wgmma::kInnerStep);
      }
    }
    wgmma::Commit();
  }
  __device__ __forceinline__ void Await() {
    wgmma::Wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma::Pin(sums_[part]);
  }

  template <bool kSwiGlu, typename Visit>
  __device__ __forceinline__ void ForSums(Visit&& visit) const {
    constexpr int kAll = 8 * kParts;  // pieces of 8 rows of weights
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const int32_t x_row = FirstX() + static_cast<int32_t>(threadIdx.x % 128 / 32) * 16 + lane / 4;
#pragma unroll
    for (int n = 0; n < (kSwiGlu ? kAll / 2 : kAll); ++n) {
      const int met = (n + kAll / 2) % kAll;
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        visit(x_row + i / 2 * 8, FirstWeights() + n * 8 + lane % 4 * 2 + i % 2,
              sums_[n / 8][n % 8][i], sums_[met / 8][met % 8][i]);
      }
    }
  }

 private:
  static constexpr int kParts = kM / 64;

  static __device__ __forceinline__ int32_t FirstX() {
    return kM == 64 ? 0 : static_cast<int32_t>(threadIdx.x / 128) * 64;
  }
  static __device__ __forceinline__ int32_t FirstWeights() {
    return kM == 64 ? static_cast<int32_t>(threadIdx.x / 128) * 64 : 0;
  }

  float sums_[kParts][8][4] = {};
};

}  // namespace eta::cuda::places
