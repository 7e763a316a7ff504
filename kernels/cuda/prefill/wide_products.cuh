// The products of prefill attention at d = 256 (prefill_wide.cuh), by mma.sync and by wgmma
// (sm_90a). The queries wait in shared memory, high and low operands, since registers hold sums. A
// form says where it wants the 16-byte chunks of a tile of keys or values, and multiplies them.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/prefill/prefill_mma.cuh"
#include "kernels/cuda/prefill/prefill_operands.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

struct WideShape {
  static constexpr int kSteps = kWideHeadDim / 16;
  static constexpr int kTileBytes = kTileKeys * kWideHeadDim * 2;  // of K, and of V
  static constexpr int kQueryBytes = kTileQueries * kWideHeadDim * 2;
  // Keys twice, then values, then the queries' high and low operands; and room to align them.
  static constexpr int kQueries = 3 * kTileBytes;
  static constexpr int kSharedBytes = kQueries + 2 * kQueryBytes + 1024;
  static_assert(kSharedBytes <= kWideHeadMemory);
};

// Operands lie as each lane needs them: [step][thread] of 16 bytes each.
template <typename ElementType>
class WideMma {
 public:
  using Element = ElementType;

  // `shared`: of the CTA, as WideShape has it.
  __device__ __forceinline__ explicit WideMma(std::byte* shared)
      : high_(reinterpret_cast<uint4*>(shared + WideShape::kQueries) + threadIdx.x),
        low_(high_ + WideShape::kSteps * kMmaThreads) {}

  // Where chunk `chunk` of a token's row in the cache goes in a tile.
  __device__ __forceinline__ static uint32_t Place(int32_t token, int32_t chunk) {
    return token * (kWideHeadDim * 2) + chunk * 16;
  }
  // Makes what the thread copied ready for products, before a barrier.
  __device__ __forceinline__ static void Publish() {}

  __device__ __forceinline__ void ShareQueries(const PrefillParams& params, const PrefillTile& tile,
                                               int32_t kv_head, int32_t query) {
    uint32_t of_high[WideShape::kSteps][4];
    uint32_t of_low[WideShape::kSteps][4];
    LoadQueries<Element, kWideHeadDim>(params, tile, kv_head, query, of_high, of_low);
#pragma unroll
    for (int k = 0; k < WideShape::kSteps; ++k) {
      high_[k * kMmaThreads] =
          make_uint4(of_high[k][0], of_high[k][1], of_high[k][2], of_high[k][3]);
      low_[k * kMmaThreads] = make_uint4(of_low[k][0], of_low[k][1], of_low[k][2], of_low[k][3]);
    }
  }

  // scores = products of the lane's queries with the 64 keys of a tile.
  __device__ __forceinline__ void MultiplyKeys(uint32_t keys, float (&scores)[8][4]) const {
#pragma unroll
    for (int n = 0; n < 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) scores[n][e] = 0.0f;
    }
#pragma unroll 2
    for (int k = 0; k < WideShape::kSteps; ++k) {
      const uint4 first = high_[k * kMmaThreads];
      const uint4 second = low_[k * kMmaThreads];
      const uint32_t a[4] = {first.x, first.y, first.z, first.w};
      const uint32_t rest[4] = {second.x, second.y, second.z, second.w};
      MultiplyKeyStep<Element, kWideHeadDim>(scores, keys, k, a, rest);
    }
  }

  // As of prefill_mma.cuh.
  template <typename... Operands>
  __device__ __forceinline__ void MultiplyValues(uint32_t values,
                                                 float (&sums)[kWideHeadDim / 8][4],
                                                 const Operands&... weights) const {
    cuda::MultiplyValues<Element, kWideHeadDim>(sums, values, weights...);
  }

 private:
  uint4* high_;
  uint4* low_;
};

// Tiles and operands are cut into four parts of 64 coordinates, since products take rows of 128
// bytes. Within a part chunks are swizzled as in the cache. All warps of a warpgroup multiply
// together.
template <typename ElementType>
class WideWgmma {
 public:
  using Element = ElementType;

  __device__ __forceinline__ explicit WideWgmma(std::byte* shared)
      : queries_(shared + WideShape::kQueries),
        // The shuffle makes the warp's number uniform for the compiler as well.
        warp_(__shfl_sync(~0u, static_cast<int32_t>(threadIdx.x / 32), 0)) {}

  __device__ __forceinline__ static uint32_t Place(int32_t token, int32_t chunk) {
    return chunk / 8 * kPartBytes + token * 128 + chunk % 8 * 16;
  }
  __device__ __forceinline__ static void Publish() { wgmma::PublishWrites(); }

  __device__ __forceinline__ void ShareQueries(const PrefillParams& params, const PrefillTile& tile,
                                               int32_t kv_head, int32_t query) {
    uint32_t high[kParts][4][4];
    uint32_t low[kParts][4][4];
    auto& all_high = *reinterpret_cast<uint32_t(*)[WideShape::kSteps][4]>(&high);
    auto& all_low = *reinterpret_cast<uint32_t(*)[WideShape::kSteps][4]>(&low);
    LoadQueries<Element, kWideHeadDim>(params, tile, kv_head, query, all_high, all_low);
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      std::byte* rows = queries_ + part * kQueryPartBytes;
      wgmma::WriteRows(rows, warp_ * 16, high[part]);
      wgmma::WriteRows(rows + WideShape::kQueryBytes, warp_ * 16, low[part]);
    }
  }

  __device__ __forceinline__ void MultiplyKeys(uint32_t keys, float (&scores)[8][4]) const {
    const uint64_t to_keys = wgmma::Describe(keys);
    const uint64_t high = wgmma::Describe(SharedAddress(queries_) + warp_ / 4 * kPartBytes);
    const uint64_t low = high + (WideShape::kQueryBytes >> 4);
    wgmma::Fence();
    wgmma::MultiplyShared<Element, false>(scores, high, to_keys);
#pragma unroll
    for (int k = 1; k < WideShape::kSteps; ++k) {
      wgmma::MultiplyShared<Element, true>(scores, high + Step(k, kQueryPartBytes),
                                           to_keys + Step(k, kPartBytes));
    }
#pragma unroll
    for (int k = 0; k < WideShape::kSteps; ++k) {
      wgmma::MultiplyShared<Element, true>(scores, low + Step(k, kQueryPartBytes),
                                           to_keys + Step(k, kPartBytes));
    }
    wgmma::Commit();
    wgmma::Wait<0>();
    wgmma::Pin(scores);
  }

  template <typename... Operands>
  __device__ __forceinline__ void MultiplyValues(uint32_t values,
                                                 float (&sums)[kWideHeadDim / 8][4],
                                                 const Operands&... weights) const {
    const uint64_t to_values = wgmma::Describe(values);
    const auto part_of = [&](int part) -> float(&)[8][4] {
      return *reinterpret_cast<float(*)[8][4]>(&sums[8 * part]);
    };
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma::Pin(part_of(part));
    wgmma::Fence();
#pragma unroll
    for (int part = 0; part < kParts; ++part) {
      const uint64_t own = to_values + (part * kPartBytes >> 4);
#pragma unroll
      for (int k = 0; k < 4; ++k) {
        (wgmma::Multiply<Element, true, true>(part_of(part), weights[k],
                                              own + k * wgmma::kInnerStepTransposed),
         ...);
      }
    }
    wgmma::Commit();
    wgmma::Wait<0>();
#pragma unroll
    for (int part = 0; part < kParts; ++part) wgmma::Pin(part_of(part));
  }

 private:
  static constexpr int kParts = kWideHeadDim / 64;
  static constexpr int kPartBytes = 64 * 128;  // of 64 rows
  static constexpr int kQueryPartBytes = kTileQueries * 128;

  // From the first 16 coordinates to those of step k.
  __device__ __forceinline__ static constexpr uint64_t Step(int k, int part_bytes) {
    return static_cast<uint64_t>(k / 4 * part_bytes >> 4) + k % 4 * wgmma::kInnerStep;
  }

  std::byte* queries_;
  int32_t warp_;
};

}  // namespace eta::cuda
