// RouteRows: a row's k experts of E, their weights, and places (eta-semantics.md, "Experts").
//
// A warp chooses for one row: logits become integers of the same order, of which it takes the
// greatest k times. Places follow from counts of the choices in front, never from who comes first.
// Steps of few rows are one thread block, since a launch costs more than the work.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/choose_row.cuh"
#include "kernels/cuda/experts/experts.h"

namespace eta::cuda {
namespace {

constexpr int32_t kFewRows = 64;
constexpr int32_t kFewChoices = 1024;
constexpr int32_t kMostThreads = 1024;
constexpr int32_t kChooseThreads = 256;

// The sum over the threads below this one. All threads call it.
__device__ int32_t SumBelow(int32_t value) {
  __shared__ int32_t of_warps[kMostThreads / 32];
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  int32_t sum = value;
#pragma unroll
  for (int lanes = 1; lanes < 32; lanes *= 2) {
    const int32_t below = __shfl_up_sync(~0u, sum, lanes);
    if (lane >= lanes) sum += below;
  }
  if (lane == 31) of_warps[warp] = sum;
  __syncthreads();
  for (int32_t w = 0; w < warp; ++w) sum += of_warps[w];
  return sum - value;
}

// One thread block chooses for all rows and gives the places. An expert has a bit for each row.
template <int kPerLane>
__global__ void __launch_bounds__(kMostThreads) RouteFew(RouteArgs args, StepView step) {
  __shared__ int32_t choices[kFewChoices];
  __shared__ uint32_t low[32 * kPerLane];  // of each expert: rows 0 .. 31
  __shared__ uint32_t high[32 * kPerLane];
  __shared__ int32_t begin[32 * kPerLane];
  const auto thread = static_cast<int32_t>(threadIdx.x);
  for (int32_t i = thread; i < 32 * kPerLane; i += static_cast<int32_t>(blockDim.x)) {
    low[i] = high[i] = 0;
  }
  WaitForPrevious();
  AllowNext();
  const ExpertChoice& choice = args.choice;
  const int32_t rows = min(step.counts->num_rows, step.num_rows);
  __syncthreads();
  for (int32_t row = thread / 32; row < rows; row += static_cast<int32_t>(blockDim.x / 32)) {
    int32_t* of_row = choices + row * choice.per_row;
    ChooseRow<kPerLane>(args, row, of_row, /*stores=*/true);
    __syncwarp();
    for (int32_t rank = thread % 32; rank < choice.per_row; rank += 32) {
      atomicOr((row < 32 ? low : high) + of_row[rank], 1u << row % 32);
    }
  }
  __syncthreads();
  const bool has_expert = thread < choice.num_experts;
  const int32_t mine = has_expert ? __popc(low[thread]) + __popc(high[thread]) : 0;
  const int32_t first = SumBelow(mine);
  if (has_expert) {
    begin[thread] = first;
    choice.place_end[thread] = first + mine;
    if (args.counts != nullptr) args.counts[thread] = mine;
  }
  __syncthreads();
  for (int32_t i = thread; i < rows * choice.per_row; i += static_cast<int32_t>(blockDim.x)) {
    const int32_t expert = choices[i];
    const int32_t row = i / choice.per_row;
    const uint32_t before = (1u << row % 32) - 1;
    const int32_t place =
        begin[expert] + (row < 32 ? __popc(low[expert] & before)
                                  : __popc(low[expert]) + __popc(high[expert] & before));
    choice.rows[place] = row;
    choice.places[i] = place;
  }
}

template <int kPerLane>
__global__ void __launch_bounds__(kChooseThreads) ChooseRows(RouteArgs args, StepView step) {
  WaitForPrevious();
  AllowNext();
  const auto row = static_cast<int32_t>(blockIdx.x * (kChooseThreads / 32) + threadIdx.x / 32);
  if (row < min(step.counts->num_rows, step.num_rows)) {
    ChooseRow<kPerLane>(args, row, nullptr, /*stores=*/true);
  }
}

// A thread block has an expert, a warp a part of the choices.
__global__ void __launch_bounds__(kMostThreads) PlaceRows(RouteArgs args, StepView step) {
  __shared__ int32_t lower[kMostThreads / 32];
  __shared__ int32_t equal[kMostThreads / 32];
  WaitForPrevious();
  AllowNext();
  const ExpertChoice& choice = args.choice;
  const auto expert = static_cast<int32_t>(blockIdx.x);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  constexpr int32_t kWarps = kMostThreads / 32;
  const int32_t count = min(step.counts->num_rows, step.num_rows) * choice.per_row;
  const int32_t each = (count + 32 * kWarps - 1) / (32 * kWarps) * 32;
  const int32_t begin = min(count, warp * each);
  const int32_t end = min(count, begin + each);
  int32_t below = 0;
  int32_t mine = 0;
  for (int32_t i = begin + lane; i < end; i += 32) {
    const int32_t chosen = choice.experts[i];
    below += chosen < expert;
    mine += chosen == expert;
  }
  below = __reduce_add_sync(~0u, below);
  mine = __reduce_add_sync(~0u, mine);
  if (lane == 0) {
    lower[warp] = below;
    equal[warp] = mine;
  }
  __syncthreads();
  int32_t place = 0;
  int32_t all = 0;
  for (int32_t w = 0; w < kWarps; ++w) {
    place += lower[w] + (w < warp ? equal[w] : 0);
    all += lower[w] + equal[w];
  }
  if (threadIdx.x == 0) {
    choice.place_end[expert] = all;
    if (args.counts != nullptr) args.counts[expert] = all - place;
  }
  if (mine == 0) return;
  for (int32_t first = begin; first < end; first += 32) {
    const int32_t i = first + lane;
    const bool is_mine = i < end && choice.experts[i] == expert;
    const uint32_t lanes = __ballot_sync(~0u, is_mine);
    if (is_mine) {
      const int32_t to = place + __popc(lanes & ((1u << lane) - 1));
      choice.rows[to] = i / choice.per_row;
      choice.places[i] = to;
    }
    place += __popc(lanes);
  }
}

// Calls visit(integral_constant) with how many experts a lane holds.
template <typename Visit>
void WithPerLane(int32_t num_experts, Visit&& visit) {
  if (num_experts <= 128) return visit(std::integral_constant<int, 4>());
  if (num_experts <= 256) return visit(std::integral_constant<int, 8>());
  visit(std::integral_constant<int, kMostExperts / 32>());
}

}  // namespace

void RouteRows(Context& context, const RouteRowsParams& params, int32_t* counts) {
  const RouteArgs args = MakeRouteArgs(params, counts);
  const ExpertChoice& choice = params.choice;
  if (choice.num_experts > kMostExperts) {
    context.device.Fail(absl::InvalidArgumentError(
        absl::StrCat("experts: ", choice.num_experts, ", at most ", kMostExperts)));
    return;
  }
  const int32_t rows = context.step.num_rows;
  WithPerLane(choice.num_experts, [&](auto per_lane) {
    if (rows <= kFewRows && rows * choice.per_row <= kFewChoices) {
      const int32_t threads = std::max(32 * rows, (choice.num_experts + 31) / 32 * 32);
      Launch(context.device, "choice of experts",
             {.grid = 1, .block = static_cast<unsigned>(std::min(threads, kMostThreads))},
             RouteFew<per_lane()>, args, context.step);
      return;
    }
    constexpr int32_t kRows = kChooseThreads / 32;
    Launch(context.device, "choice of experts",
           {.grid = static_cast<unsigned>((rows + kRows - 1) / kRows), .block = kChooseThreads},
           ChooseRows<per_lane()>, args, context.step);
    Launch(context.device, "places of experts",
           {.grid = static_cast<unsigned>(choice.num_experts), .block = kMostThreads}, PlaceRows,
           args, context.step);
  });
}

}  // namespace eta::cuda
