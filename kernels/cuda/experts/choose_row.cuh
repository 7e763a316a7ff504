// The choice of one row: its k experts of E by their logits, and their weights.
#pragma once

#include <cstdint>

#include "kernels/cuda/experts/experts.h"

namespace eta::cuda {

struct RouteArgs {
  const float* logits;
  int64_t stride;
  bool normalise;
  ExpertChoice choice;
  int32_t* counts;  // [E]; null: nobody asks
};

inline RouteArgs MakeRouteArgs(const RouteRowsParams& params, int32_t* counts) {
  return {params.logits.data, params.logits.stride, params.normalise, params.choice, counts};
}

// A logit as an integer of ExpertOrder's order: equal ones are equal, a NaN is below every number,
// and 0 is below a NaN.
__device__ __forceinline__ uint32_t KeyOf(float logit) {
  constexpr uint32_t kSign = 0x80000000u;
  if (logit != logit) return 1;
  const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
  return (bits & kSign) != 0 ? ~bits : bits | kSign;
}

__device__ __forceinline__ float LogitOf(uint32_t key) {
  constexpr uint32_t kSign = 0x80000000u;
  if (key == 1) return __uint_as_float(0x7fc00000u);
  return __uint_as_float((key & kSign) != 0 ? key & ~kSign : ~key);
}

// By one warp: writes the row's experts and their weights by rank, if it `stores`, and the experts
// to `shared` unless that is null.
template <int kPerLane>
__device__ __forceinline__ void ChooseRow(const RouteArgs& args, int32_t row, int32_t* shared,
                                          bool stores) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t per_row = args.choice.per_row;
  const float* logits = args.logits + row * args.stride;
  uint32_t keys[kPerLane];
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    const int32_t expert = lane + 32 * i;
    keys[i] = expert < args.choice.num_experts ? KeyOf(logits[expert]) : 0;
  }
  uint32_t best = 0;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) best = max(best, keys[i]);
  const float largest = LogitOf(__reduce_max_sync(~0u, best));
  float sum = 0.0f;
#pragma unroll
  for (int i = 0; i < kPerLane; ++i) {
    if (keys[i] != 0) sum += expf(LogitOf(keys[i]) - largest);
  }
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) sum += __shfl_xor_sync(~0u, sum, lanes);

  int32_t* experts = args.choice.experts + int64_t{row} * per_row;
  float* weights = args.choice.weights + int64_t{row} * per_row;
  float chosen = 0.0f;
  for (int32_t rank = 0; rank < per_row; ++rank) {
    best = 0;
    int32_t at = 0;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (keys[i] > best) {
        best = keys[i];
        at = i;
      }
    }
    const uint32_t greatest = __reduce_max_sync(~0u, best);
    const uint32_t candidate = best == greatest ? static_cast<uint32_t>(lane + 32 * at) : ~0u;
    const auto expert = static_cast<int32_t>(__reduce_min_sync(~0u, candidate));
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      if (lane + 32 * i == expert) keys[i] = 0;
    }
    const float weight = expf(LogitOf(greatest) - largest) / sum;
    chosen += weight;
    if (lane != 0) continue;
    if (shared != nullptr) shared[rank] = expert;
    if (!stores) continue;
    experts[rank] = expert;
    weights[rank] = weight;
  }
  if (!args.normalise || !stores) return;
  __syncwarp();
  for (int32_t rank = lane; rank < per_row; rank += 32) weights[rank] /= chosen;
}

}  // namespace eta::cuda
