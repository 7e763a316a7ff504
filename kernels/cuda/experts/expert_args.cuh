// What the kernels of MultiplyExperts take, and how they store a result.
#pragma once

#include <cstdint>
#include <iterator>
#include <type_traits>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/packed/packed_layout.h"

namespace eta::cuda {

// A part of packed weights: where it is, in bytes from where an expert's begin.
struct ExpertPart {
  PackedType type;
  int64_t tiles;
  int64_t units;
};

struct ExpertArgs {
  const std::byte* weights;  // [E, N, K]
  int64_t stride;            // of packed ones: bytes from an expert to the next
  ExpertPart parts[2];       // of packed ones: one, with SwiGlu the gate and what it meets
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
  int64_t bias_stride;
  Activation activation;
};

inline ExpertArgs MakeExpertArgs(const ExpertProduct& product) {
  const bool activates = product.activated.data != nullptr;
  const ExpertWeights& weights = product.weights;
  ExpertArgs args = {.weights = weights.data,
                     .stride = weights.stride,
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
                     .bias_stride = product.bias_stride > 0 ? product.bias_stride : weights.rows,
                     .activation = product.activation};
  int64_t at = 0;
  for (size_t i = 0; i < std::size(args.parts); ++i) {
    const WeightPart& part = weights.parts[i];
    if (part.type == PackedType::kNone) break;
    args.parts[i] = {part.type, at, at + TilesBytes(part, weights.cols)};
    at += PartBytes(part, weights.cols);
  }
  return args;
}

// Calls visit(constant) with the type of a part. Experts have no others.
template <typename Visit>
__device__ __forceinline__ void WithPartType(PackedType type, Visit&& visit) {
  switch (type) {
    case PackedType::kInt8:
      return visit(std::integral_constant<PackedType, PackedType::kInt8>());
    case PackedType::kInt4:
      return visit(std::integral_constant<PackedType, PackedType::kInt4>());
    default:
      return visit(std::integral_constant<PackedType, PackedType::kE4M3>());
  }
}

// `sum` with the expert's bias of a channel.
__device__ __forceinline__ float WithBias(const ExpertArgs& args, int32_t expert, int32_t channel,
                                          float sum) {
  return args.bias == nullptr ? sum : sum + args.bias[expert * args.bias_stride + channel];
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
  sum = WithBias(args, expert, channel, sum);
  StoreProduct<T>(args, place, channel, sum);
  if constexpr (kSwiGlu) {
    const int32_t other = channel + args.channels;
    met = WithBias(args, expert, other, met);
    StoreProduct<T>(args, place, other, met);
    StoreActivated<T>(args.activated, place * args.activated_stride + channel, args.activation, sum,
                      met);
  }
}

}  // namespace eta::cuda
