// MultiplyExperts for decode steps: out [R k, N] = x [R k, K] * weight of the place's expert
// [N, K]^T, with SwiGlu behind.
//
// Weights stream from memory (expert_stream.cuh, packed_stream.cuh). Those of an expert with more
// than 16 places come from memory for the first, for the others from L2.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/hit_list.cuh"
#include "kernels/cuda/experts/packed_stream.cuh"
#include "kernels/cuda/experts/stream_tasks.cuh"

namespace eta::cuda {
namespace few_places {
namespace {

using stream::kCtasPerSm;
using stream::kThreads;

constexpr int kColumns = 2;  // of 8 places each
constexpr int32_t kPlaces = 8 * kColumns;

template <bool kSwiGlu, bool kPacked>
__host__ __device__ constexpr TaskCut CutOf(int32_t channels) {
  return {stream::NumTiles<kSwiGlu, kPacked>(channels), kPlaces};
}

template <typename T, bool kSwiGlu, bool kPacked>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    Kernel(const __grid_constant__ ExpertArgs args) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ stream::Sums<kColumns> sums;
  auto* hits = reinterpret_cast<HitExpert*>(memory + stream::kRingBytes<kPacked>);
  if (!args.choice_is_old) WaitForPrevious();
  const TaskCut cut = CutOf<kSwiGlu, kPacked>(args.channels);
  const int32_t num_hits = ListHits(args.place_end, args.num_experts, cut, hits);
  const auto begin = [&] {
    if (args.choice_is_old) WaitForPrevious();
    AllowNext();
  };
  const auto finish = [&](const TaskWalk& task, int part, int column, const float(&totals)[4]) {
    stream::StoreTotals<T, kSwiGlu, kPacked>(args, task, part, column, totals);
  };
  stream::MultiplyTasks<T, kSwiGlu, kPacked, kColumns>(args, TaskWalk(hits, num_hits, cut), memory,
                                                       sums, begin, finish);
}

template <typename T, bool kSwiGlu, bool kPacked>
void LaunchKernel(Device& device, const ExpertArgs& args, int64_t most_chunks) {
  const int64_t most_tasks = most_chunks * CutOf<kSwiGlu, kPacked>(args.channels).tiles;
  const int64_t resident = int64_t{device.num_sms()} * kCtasPerSm;
  Launch(device, "product of experts",
         {.grid = static_cast<unsigned>(std::min(most_tasks, resident)),
          .block = kThreads,
          .shared_bytes = stream::kRingBytes<kPacked> + HitListBytes(args.num_experts)},
         Kernel<T, kSwiGlu, kPacked>, args);
}

// Steps with more places to an expert, and more rows, are tiles of tensor cores' full width.
constexpr int64_t kFewRows = 64;
constexpr int64_t kFewPlacesOfExpert = 16;

}  // namespace
}  // namespace few_places

bool MultiplyFewPlaces(const Context& context, const ExpertProduct& product) {
  using namespace few_places;  // NOLINT(google-build-using-namespace)
  const int64_t places = product.out.rows;
  const int64_t experts = product.weights.num_experts;
  if (places > kFewRows * product.choice.per_row && places > kFewPlacesOfExpert * experts) {
    return false;
  }
  const ExpertArgs args = MakeExpertArgs(product);
  const int64_t chunks = std::min(places, places / kPlaces + experts);
  const auto launch = [&](auto element, auto swiglu) {
    using T = decltype(element);
    if (product.weights.packed()) {
      LaunchKernel<T, swiglu(), true>(context.device, args, chunks);
    } else {
      LaunchKernel<T, swiglu(), false>(context.device, args, chunks);
    }
  };
  const auto launch_for = [&](auto element) {
    if (args.activated != nullptr) return launch(element, std::true_type());
    launch(element, std::false_type());
  };
  if (product.weights.dtype == DType::kFloat16) {
    launch_for(Half{});
  } else {
    launch_for(BFloat16{});
  }
  return true;
}

}  // namespace eta::cuda
