// AddExperts: out [rows, D] += the weighed sum of a row's places, by rank. ExactProduct: a router's
// product, where rounding its weights would change choices. PlainMultiplyExperts: MultiplyExperts
// in float32, and for shapes that tensor cores' loads do not fit; a warp has one channel of one
// place, and of packed weights takes a number at a time. All sums run in an order that the row's
// length alone fixes.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/packed/chunk_numbers.cuh"
#include "kernels/cuda/rows/thresholds.cuh"

namespace eta::cuda {
namespace expert_sums {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / 32;

struct AddArgs {
  const std::byte* x;
  int64_t x_stride;
  float* out;
  int64_t out_stride;
  int64_t cols;
  ExpertChoice choice;
};

template <typename T, int width>
__global__ void __launch_bounds__(kThreads) AddPlaces(AddArgs args, StepView step) {
  WaitForPrevious();
  AllowNext();
  const auto row = static_cast<int32_t>(blockIdx.x);
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * width;
  if (row >= step.counts->num_rows || i >= args.cols) return;
  const int64_t first = int64_t{row} * args.choice.per_row;
  float sum[width] = {};
#pragma unroll 8
  for (int32_t rank = 0; rank < args.choice.per_row; ++rank) {
    const int64_t place = args.choice.places[first + rank];
    const float weight = args.choice.weights[first + rank];
    float x[width];
    LoadElements(reinterpret_cast<const T*>(args.x) + place * args.x_stride + i, x);
#pragma unroll
    for (int j = 0; j < width; ++j) sum[j] = fmaf(weight, x[j], sum[j]);
  }
  float* out = args.out + row * args.out_stride + i;
  float old[width];
  LoadElements(out, old);
#pragma unroll
  for (int j = 0; j < width; ++j) old[j] += sum[j];
  StoreElements(old, out);
}

constexpr int32_t kTileRows = 4;
constexpr int32_t kExactChannels = 8;
static_assert(kTileRows * kExactChannels == 32, "one sum per lane");

struct ExactArgs {
  const std::byte* x;
  int64_t x_stride;
  const float* weight;
  int64_t k;
  int32_t rows;
  int32_t channels;
  float* out;
  int64_t out_stride;
};

// A thread block has 4 rows of 8 channels; its threads share K.
template <typename T>
__global__ void __launch_bounds__(kThreads) ExactTile(ExactArgs args) {
  __shared__ float of_warps[kWarps][32];
  WaitForPrevious();
  AllowNext();
  const auto row = static_cast<int32_t>(blockIdx.x) * kTileRows;
  const auto channel = static_cast<int32_t>(blockIdx.y) * kExactChannels;
  const auto* all_x = reinterpret_cast<const T*>(args.x);
  float sums[32] = {};
#pragma unroll 2
  for (int64_t k = threadIdx.x; k < args.k; k += kThreads) {
    float x[kTileRows];
    float w[kExactChannels];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      x[r] = ToFloat(all_x[min(row + r, args.rows - 1) * args.x_stride + k]);
    }
#pragma unroll
    for (int c = 0; c < kExactChannels; ++c) {
      w[c] = args.weight[min(channel + c, args.channels - 1) * args.k + k];
    }
#pragma unroll
    for (int i = 0; i < 32; ++i) {
      sums[i] = fmaf(x[i / kExactChannels], w[i % kExactChannels], sums[i]);
    }
  }
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  of_warps[threadIdx.x / 32][lane] = FoldSums(sums);
  __syncthreads();
  const int32_t to_row = row + lane / kExactChannels;
  const int32_t to = channel + lane % kExactChannels;
  if (threadIdx.x >= 32 || to_row >= args.rows || to >= args.channels) return;
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp][lane];
  args.out[to_row * args.out_stride + to] = sum;
}

template <typename T, bool kPacked>
__global__ void __launch_bounds__(kThreads) PlainPlace(const __grid_constant__ ExpertArgs args) {
  WaitForPrevious();
  AllowNext();
  const auto place = static_cast<int32_t>(blockIdx.x);
  const auto channel = static_cast<int32_t>(blockIdx.y * kWarps + threadIdx.x / 32);
  if (channel >= args.channels || place >= args.place_end[args.num_experts - 1]) return;
  int32_t expert = 0;  // the first whose places end behind this one
  for (int32_t size = args.num_experts; size > 0;) {
    const int32_t half = size / 2;
    if (args.place_end[expert + half] <= place) {
      expert += half + 1;
      size -= half + 1;
    } else {
      size = half;
    }
  }
  const int32_t row = args.rows != nullptr ? args.rows[place] : place;
  const auto* x = reinterpret_cast<const T*>(args.x) + row * args.x_stride;
  const std::byte* of_expert = args.weights + expert * args.stride;
  const auto* numbers = reinterpret_cast<const T*>(args.weights) +
                        (int64_t{expert} * args.channels + channel) * args.k;
  const auto weight = [&](int32_t k) {
    if constexpr (kPacked) {
      const ExpertPart& part = args.parts[0];
      return packed::NumberAt(of_expert + part.tiles, part.type,
                              static_cast<int32_t>(Chunks(args.k)), channel, k);
    } else {
      return ToFloat(numbers[k]);
    }
  };
  float sum = 0.0f;
#pragma unroll 4
  for (auto k = static_cast<int32_t>(threadIdx.x % 32); k < args.k; k += 32) {
    sum = fmaf(ToFloat(x[k]), weight(k), sum);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);
  if (threadIdx.x % 32 != 0) return;
  if constexpr (kPacked) {
    sum *= reinterpret_cast<const float*>(of_expert + args.parts[0].units)[channel];
  }
  StoreProduct<T>(args, place, channel, WithBias(args, expert, channel, sum));
}

}  // namespace
}  // namespace expert_sums

void AddExperts(Context& context, const AddExpertsParams& params) {
  using namespace expert_sums;  // NOLINT(google-build-using-namespace)
  const AddArgs args = {reinterpret_cast<const std::byte*>(params.x.data),
                        params.x.stride,
                        params.out.data,
                        params.out.stride,
                        params.out.cols,
                        params.choice};
  WithElementType(params.x.dtype, [&](auto element) {
    using T = decltype(element);
    const auto launch = [&](auto width) {
      const auto columns = CeilDiv(args.cols, kThreads * width());
      Launch(
          context.device, "sum of experts",
          {.grid = {static_cast<unsigned>(context.step.num_rows), static_cast<unsigned>(columns)},
           .block = kThreads},
          AddPlaces<T, width()>, args, context.step);
    };
    if (args.cols % 4 == 0 && args.x_stride % 4 == 0 && args.out_stride % 4 == 0) {
      launch(std::integral_constant<int, 4>());
    } else {
      launch(std::integral_constant<int, 1>());
    }
  });
}

void ExactProduct(const Context& context, const TensorView& x, const Weight& weight,
                  const TensorView& out) {
  using namespace expert_sums;  // NOLINT(google-build-using-namespace)
  const ExactArgs args = {.x = reinterpret_cast<const std::byte*>(x.data),
                          .x_stride = x.stride,
                          .weight = static_cast<const float*>(weight.data),
                          .k = weight.cols,
                          .rows = static_cast<int32_t>(out.rows),
                          .channels = static_cast<int32_t>(weight.rows),
                          .out = out.data,
                          .out_stride = out.stride};
  WithElementType(x.dtype, [&](auto element) {
    Launch(context.device, "product of a router",
           {.grid = {static_cast<unsigned>(CeilDiv(args.rows, kTileRows)),
                     static_cast<unsigned>(CeilDiv(args.channels, kExactChannels))},
            .block = kThreads},
           ExactTile<decltype(element)>, args);
  });
}

void PlainMultiplyExperts(const Context& context, const ExpertProduct& product) {
  using namespace expert_sums;  // NOLINT(google-build-using-namespace)
  const ExpertArgs args = MakeExpertArgs(product);
  WithElementType(product.weights.dtype, [&](auto element) {
    using T = decltype(element);
    Launch(context.device, "plain product of experts",
           {.grid = {static_cast<unsigned>(product.out.rows),
                     static_cast<unsigned>(CeilDiv(args.channels, kWarps))},
            .block = kThreads},
           product.weights.packed() ? PlainPlace<T, true> : PlainPlace<T, false>, args);
  });
}

}  // namespace eta::cuda
