// The parts of row_product.cu and product_chain.cu: the arguments of a product, the tile of
// channels that a thread block takes, and the products of a warp.
//
// Fragments of a tensor core's product (mma.cuh) fix which products meet, not the order of K. So a
// lane takes 8 neighbours of K in one load of 16 bytes, and these are the pairs of two products:
// lane (r, c) has the elements 8c .. 8c + 7 of every 32, of channel r, of channel r + 8, and as B
// of row r of x.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/mma.cuh"

namespace eta::cuda {

class Device;
struct RowProduct;

namespace product {

inline constexpr int kWarps = 8;
inline constexpr int kThreads = 32 * kWarps;
inline constexpr int kLoads = 4;            // of a lane and channel in a group
inline constexpr int kGroup = 32 * kLoads;  // elements of K that a warp takes at once
inline constexpr int kDepth = 2;            // groups that a warp has in flight
inline constexpr int kAhead = 2;

struct Args {
  const std::byte* weight;  // [N, K], with SwiGLU [2N, K]: the gate's channels, then the others
  int32_t k;
  int32_t channels;    // N
  int32_t rows;        // R
  const std::byte* x;  // [R, K] of the weight's type; with a norm its result, written by the way
  int64_t x_stride;
  const float* normed;  // [.., K], what the norm takes
  int64_t normed_stride;
  const float* norm_weight;
  const int32_t* norm_rows;  // null: rows in order
  float eps;
  bool accumulate;
  bool float_out;
  std::byte* out;
  int64_t out_stride;
  const float* bias;     // null: none
  std::byte* activated;  // SwiGLU's result, of the weight's type
  int64_t activated_stride;
  Activation activation;
  const std::byte* ahead[kAhead];
  int64_t ahead_bytes[kAhead];
};

// `weight` is the product's `data`.
Args ArgsOf(const Device& device, const RowProduct& product);  // row_product.cu
// Whether there is a kernel for weights of 16 bits, unless rows of a norm do not fit into shared
// memory.
bool HasKernel(const RowProduct& product);  // row_product.cu

// The kThreads threads that multiply, if they are the thread block.
struct WholeBlock {
  static __device__ __forceinline__ void Sync() { __syncthreads(); }
};

// The stride of a row of x in shared memory, in elements of 16 bits: the rows that a quarter of a
// warp reads at once then lie in different banks.
__host__ __device__ constexpr int32_t SharedStride(int32_t k) {
  return (k + 63) / 64 * 64 + 32;
}

// Channels first .. first + 15, or with SwiGLU channels first .. first + 7 of both halves. Row r of
// a fragment is channel r, row r + 8 is channel r + 8 or the other half's channel r.
template <bool kSwiGlu>
struct Tile {
  static constexpr int kChannels = kSwiGlu ? 8 : 16;

  int32_t first;

  __device__ explicit Tile(int32_t index) : first(index * kChannels) {}
  static __device__ int32_t Count(const Args& args) {
    return (args.channels + kChannels - 1) / kChannels;
  }
  // The weights of fragment row r + 8 * half. Channels that do not exist read the last one.
  __device__ const std::byte* Weights(const Args& args, int half) const {
    const int32_t channel = first + static_cast<int32_t>(threadIdx.x % 32 / 4);
    const int64_t row = kSwiGlu ? min(channel, args.channels - 1) + int64_t{half} * args.channels
                                : min(channel + 8 * half, args.channels - 1);
    return args.weight + row * args.k * 2;
  }
  // Calls visit(i, row, channel) for the sums of a fragment that this lane holds and that exist.
  template <typename Visit>
  __device__ void ForSums(const Args& args, Visit&& visit) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const bool second = i >= 2;
      const int32_t channel = first + lane / 4 + (second && !kSwiGlu ? 8 : 0);
      const int32_t row = lane % 4 * 2 + i % 2;
      if (channel < args.channels && row < args.rows) {
        visit(i, row, channel + (second && kSwiGlu ? args.channels : 0));
      }
    }
  }
};

template <typename T>
__device__ __forceinline__ float LoadOut(const Args& args, int32_t row, int32_t channel) {
  const int64_t at = row * args.out_stride + channel;
  if (args.float_out) return reinterpret_cast<const float*>(args.out)[at];
  return ToFloat(reinterpret_cast<const T*>(args.out)[at]);
}
template <typename T>
__device__ __forceinline__ void StoreOut(const Args& args, int32_t row, int32_t channel,
                                         float value) {
  StoreProduct<T>(args.out, args.float_out, row * args.out_stride + channel, value);
}

// Adds the products of one load to the sums of 8 * kColumns rows.
template <typename T, int kColumns>
__device__ __forceinline__ void Multiply(const uint4& low, const uint4& high,
                                         const uint4 (&x)[kColumns], float (&sums)[kColumns][4]) {
  const uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const uint32_t second[4] = {low.z, high.z, low.w, high.w};
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    Mma<T>(sums[column], first, x[column].x, x[column].y);
    Mma<T>(sums[column], second, x[column].z, x[column].w);
  }
}

// Asks for the beginnings of later weights. Nobody waits for them.
__device__ __forceinline__ void RequestAhead([[maybe_unused]] const Args& args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  constexpr int64_t kPiece = 4096;
#pragma unroll
  for (int i = 0; i < kAhead; ++i) {
    const int64_t first = (int64_t{blockIdx.x} + int64_t{gridDim.x} * threadIdx.x) * kPiece;
    for (int64_t at = first; at < args.ahead_bytes[i];
         at += int64_t{gridDim.x} * kThreads * kPiece) {
      const auto bytes = static_cast<uint32_t>(min(kPiece, args.ahead_bytes[i] - at));
      asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(args.ahead[i] + at),
                   "r"(bytes)
                   : "memory");
    }
  }
#endif
}

}  // namespace product
}  // namespace eta::cuda
