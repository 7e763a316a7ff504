// What the kernels of MultiplyExperts take, and how they store a result.
#pragma once

#include <cstdint>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/experts/experts.h"

namespace eta::cuda {

struct ExpertArgs {
  const std::byte* weights;  // [E, N, K]
  const int32_t* place_end;
  const int32_t* rows;  // null: a place's x is at the place
  int32_t num_experts;
  int32_t k;
  int32_t channels;  // N; with SwiGlu N / 2
  bool choice_is_old;
  const std::byte* x;  // of the weights' type
  int64_t x_stride;
  std::byte* out;
  int64_t out_stride;
  bool float_out;
  std::byte* activated;  // of the weights' type; null: no SwiGlu
  int64_t activated_stride;
  const float* bias;  // [E, N]; null: none
  Activation activation;
};

inline ExpertArgs MakeExpertArgs(const ExpertProduct& product) {
  const bool activates = product.activated.data != nullptr;
  const ExpertWeights& weights = product.weights;
  return {.weights = weights.data,
          .place_end = product.choice.place_end,
          .rows = product.by_rows ? product.choice.rows : nullptr,
          .num_experts = weights.num_experts,
          .k = static_cast<int32_t>(weights.cols),
          .channels = static_cast<int32_t>(activates ? weights.rows / 2 : weights.rows),
          .choice_is_old = product.choice_is_old,
          .x = reinterpret_cast<const std::byte*>(product.x.data),
          .x_stride = product.x.stride,
          .out = reinterpret_cast<std::byte*>(product.out.data),
          .out_stride = product.out.stride,
          .float_out = product.out.dtype == DType::kFloat32,
          .activated = reinterpret_cast<std::byte*>(product.activated.data),
          .activated_stride = product.activated.stride,
          .bias = product.bias,
          .activation = product.activation};
}

// `sum` with the expert's bias of a channel of `all`.
__device__ __forceinline__ float WithBias(const ExpertArgs& args, int32_t expert, int32_t all,
                                          int32_t channel, float sum) {
  return args.bias == nullptr ? sum : sum + args.bias[int64_t{expert} * all + channel];
}

// Stores a product at `channel` of the row of `out`, of N channels.
template <typename T>
__device__ __forceinline__ void StoreProduct(const ExpertArgs& args, int64_t place, int32_t channel,
                                             float value) {
  StoreProduct<T>(args.out, args.float_out, place * args.out_stride + channel, value);
}

// Stores the sum of a channel, and with SwiGlu also that of the channel that it meets, `met`, and
// what the gate does with it.
template <typename T, bool kSwiGlu>
__device__ __forceinline__ void StoreSums(const ExpertArgs& args, int32_t expert, int64_t place,
                                          int32_t channel, float sum, float met) {
  const int32_t all = kSwiGlu ? 2 * args.channels : args.channels;
  sum = WithBias(args, expert, all, channel, sum);
  StoreProduct<T>(args, place, channel, sum);
  if constexpr (kSwiGlu) {
    const int32_t other = channel + args.channels;
    met = WithBias(args, expert, all, other, met);
    StoreProduct<T>(args, place, other, met);
    StoreActivated<T>(args.activated, place * args.activated_stride + channel, args.activation, sum,
                      met);
  }
}

}  // namespace eta::cuda
