// RunRowProduct computes out [R, N] = x [R, K] * weight [N, K]^T for one or two rows, with RmsNorm
// in front and AddBias, the sum with out or SwiGlu behind (eta-semantics.md, "Model").
//
// Memory binds: weights are read once, and all else is small. A thread block takes tiles of 16
// channels in turns, and its 8 warps share K. Weights go from memory into registers, kDepth loads
// of 128 elements ahead of the tensor cores; the first of them are on their way before the kernel
// waits for its predecessor. Then the warps' sums are added in their order.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/packed/packed_product.h"
#include "kernels/cuda/rows/row_norm.cuh"
#include "kernels/cuda/rows/row_product.h"
#include "kernels/cuda/rows/tile_sums.cuh"

namespace eta::cuda {
namespace product {
namespace {

constexpr int kMostCtasPerSm = 2;
static_assert(kMostNormed >= kMostProductRows);

// What the lanes of a warp have in flight: a group of K of one tile.
using Group = uint4[2][kLoads];

// The groups of a warp in their order: those of a tile, then those of the thread block's next tile.
// All warps have equally many, and what is beyond K is zero.
template <bool kSwiGlu>
class Walk {
 public:
  __device__ explicit Walk(const Args& args)
      : tiles_(Tile<kSwiGlu>::Count(args)),
        groups_((args.k + kGroup * kWarps - 1) / (kGroup * kWarps)),
        tile_(static_cast<int32_t>(blockIdx.x)) {}

  __device__ bool done() const { return tile_ >= tiles_; }
  __device__ int32_t tile() const { return tile_; }
  __device__ bool ends_tile() const { return group_ == groups_ - 1; }
  // The first of the lane's elements.
  __device__ int32_t k() const {
    const auto thread = static_cast<int32_t>(threadIdx.x);
    return (group_ * kWarps + thread / 32) * kGroup + thread % 4 * 8;
  }
  __device__ void Advance() {
    if (++group_ < groups_) return;
    group_ = 0;
    tile_ += static_cast<int32_t>(gridDim.x);
  }

 private:
  int32_t tiles_;
  int32_t groups_;
  int32_t tile_;
  int32_t group_ = 0;
};

template <bool kSwiGlu>
__device__ __forceinline__ void Load(const Args& args, Walk<kSwiGlu>& walk, Group& to) {
  if (walk.done()) return;
  const Tile<kSwiGlu> tile(walk.tile());
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const std::byte* weights = tile.Weights(args, half);
#pragma unroll
    for (int j = 0; j < kLoads; ++j) {
      const int32_t k = walk.k() + 32 * j;
      to[half][j] = k < args.k ? LoadWeights(weights + int64_t{k} * 2) : uint4{};
    }
  }
  walk.Advance();
}

// Elements k .. k + 7 of the lane's row of x; zero where there are none. `shared`: the normalised
// rows.
template <typename T, bool kNorm>
__device__ __forceinline__ uint4 LoadX(const Args& args, const T* shared, int32_t k) {
  const auto row = static_cast<int32_t>(threadIdx.x % 32 / 4);
  if (row >= args.rows || k >= args.k) return {};
  return kNorm ? *reinterpret_cast<const uint4*>(shared + row * SharedStride(args.k) + k)
               : *reinterpret_cast<const uint4*>(args.x + (row * args.x_stride + k) * 2);
}

template <typename T, bool kNorm, bool kSwiGlu>
__global__ void __launch_bounds__(kThreads, kMostCtasPerSm)
    Kernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Sums shared_sums;
  const NormMemory<T> norm(args, memory);
  Group groups[kDepth];
  Walk<kSwiGlu> loading(args);
#pragma unroll
  for (int d = 0; d < kDepth; ++d) Load(args, loading, groups[d]);
  if constexpr (kNorm) norm.RequestFactors(args);
  WaitForPrevious();
  AllowNext();

  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  float old[4] = {};
  const auto load_old = [&](int32_t index, int32_t count) {
    if (!args.accumulate || warp != count % kWarps) return;
    Tile<kSwiGlu>(index).ForSums(args, [&](int i, int32_t row, int32_t channel) {
      old[i] = LoadOut<T>(args, row, channel);
    });
  };
  Walk<kSwiGlu> walk(args);
  int32_t count = 0;
  load_old(walk.tile(), count);
  if constexpr (kNorm) NormaliseRows<WholeBlock>(args, norm);
  float sums[1][4] = {};
  while (!walk.done()) {
#pragma unroll
    for (int d = 0; d < kDepth; ++d) {
      if (walk.done()) break;
      // Rows in shared memory are near, others are asked for together.
      constexpr int kTogether = kNorm ? 1 : kLoads;
#pragma unroll
      for (int first = 0; first < kLoads; first += kTogether) {
        uint4 x[kTogether][1];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          x[j][0] = LoadX<T, kNorm>(args, norm.rows, walk.k() + 32 * (first + j));
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          Multiply<T>(groups[d][0][first + j], groups[d][1][first + j], x[j], sums);
        }
      }
      Load(args, loading, groups[d]);
      if (walk.ends_tile()) {
        Finish<T>(args, Tile<kSwiGlu>(walk.tile()), count++, shared_sums, sums[0], old);
        load_old(walk.tile() + static_cast<int32_t>(gridDim.x), count);
      }
      walk.Advance();
    }
  }
  RequestAhead(args);
}

// The share of L2 that weights asked for ahead may take. What the work in between reads and writes
// needs room beside them.
constexpr int64_t kAheadShare = 3;

void FillAhead(const Device& device, const RowProduct& product, Args& args) {
  int64_t left = static_cast<int64_t>(device.l2_bytes()) / kAheadShare;
  for (int i = 0; i < kAhead; ++i) {
    const Weight& weight = product.ahead[static_cast<size_t>(i)];
    if (weight.data == nullptr) break;
    args.ahead[i] = static_cast<const std::byte*>(weight.data);
    args.ahead_bytes[i] = std::min(left, weight.bytes()) / 16 * 16;
    left -= args.ahead_bytes[i];
  }
}

template <typename T, bool kNorm, bool kSwiGlu>
bool LaunchKernel(Device& device, const Args& args) {
  constexpr size_t kReserved = 1024;  // the system's part of each CTA
  const size_t bytes = kNorm ? NormMemory<T>::Bytes(args.rows, args.k) : 0;
  const size_t of_cta = bytes + sizeof(Sums) + 512;
  if (of_cta > device.shared_memory_per_block()) return false;
  const size_t fit = (device.shared_memory_per_block() + kReserved) / (of_cta + kReserved);
  const int32_t resident =
      device.num_sms() * static_cast<int32_t>(std::min<size_t>(fit, kMostCtasPerSm));
  const int32_t of_tile = kSwiGlu ? 8 : 16;
  const int32_t tiles = (args.channels + of_tile - 1) / of_tile;
  Launch(device, "product of few rows",
         {.grid = static_cast<unsigned>(std::min(tiles, resident)),
          .block = kThreads,
          .shared_bytes = bytes},
         Kernel<T, kNorm, kSwiGlu>, args);
  return true;
}

// Calls visit with `value` as a constant.
template <typename Visit>
bool WithFlag(bool value, Visit&& visit) {
  return value ? visit(std::true_type()) : visit(std::false_type());
}

template <typename T>
bool LaunchFor(Device& device, const Args& args) {
  return WithFlag(args.norm_weight != nullptr, [&](auto norm) {
    return WithFlag(args.activated != nullptr,
                    [&](auto swiglu) { return LaunchKernel<T, norm(), swiglu()>(device, args); });
  });
}

bool IsAligned(const void* data, int64_t stride, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * element_bytes % 16 == 0;
}

// Indices of K are 32-bit, those of the last group too.
constexpr int64_t kMostWidth = 1 << 30;

}  // namespace

bool HasKernel(const RowProduct& product) {
  const Weight& weight = product.weight;
  const bool halves = weight.dtype == DType::kFloat16 || weight.dtype == DType::kBFloat16;
  const bool fits = product.out.rows > 0 && product.out.rows <= kMostProductRows && halves &&
                    product.x.dtype == weight.dtype &&
                    (product.out.dtype == weight.dtype || product.out.dtype == DType::kFloat32) &&
                    weight.cols > 0 && weight.cols % 8 == 0 && weight.cols <= kMostWidth &&
                    weight.rows <= INT32_MAX && IsAligned(weight.data, weight.cols, 2) &&
                    IsAligned(product.x.data, product.x.stride, 2);
  if (!fits || product.norm.weight == nullptr) return fits;
  return IsAligned(product.norm.x.data, product.norm.x.stride, 4) &&
         IsAligned(product.norm.weight, 0, 4);
}

Args ArgsOf(const Device& device, const RowProduct& product) {
  const bool activates = product.activated.data != nullptr;
  const Weight& weight = product.weight;
  Args args = {.weight = static_cast<const std::byte*>(weight.data),
               .k = static_cast<int32_t>(weight.cols),
               .channels = static_cast<int32_t>(activates ? weight.rows / 2 : weight.rows),
               .rows = static_cast<int32_t>(product.out.rows),
               .x = reinterpret_cast<const std::byte*>(product.x.data),
               .x_stride = product.x.stride,
               .normed = product.norm.x.data,
               .normed_stride = product.norm.x.stride,
               .norm_weight = product.norm.weight,
               .norm_rows = product.norm.rows,
               .eps = product.norm.eps,
               .accumulate = product.accumulate,
               .float_out = product.out.dtype == DType::kFloat32,
               .out = reinterpret_cast<std::byte*>(product.out.data),
               .out_stride = product.out.stride,
               .bias = product.bias,
               .activated = reinterpret_cast<std::byte*>(product.activated.data),
               .activated_stride = product.activated.stride,
               .activation = product.activation,
               .ahead = {},
               .ahead_bytes = {}};
  FillAhead(device, product, args);
  return args;
}

}  // namespace product

bool RunRowProduct(Context& context, const RowProduct& product) {
  if (product.weight.packed()) return RunPackedProduct(context, product);
  if (!product::HasKernel(product)) return false;
  const product::Args args = product::ArgsOf(context.device, product);
  if (product.weight.dtype == DType::kFloat16) {
    return product::LaunchFor<Half>(context.device, args);
  }
  return product::LaunchFor<BFloat16>(context.device, args);
}

}  // namespace eta::cuda
