// A layer's experts for steps of up to kMostRows rows, as two kernels: RouteAndMultiply does
// RouteRows, MultiplyExperts and SwiGlu, MultiplyAndAdd does MultiplyExperts and AddExperts.
//
// Weights stream from memory (expert_stream.cuh, packed_stream.cuh), and ends of kernels would
// leave it idle. So each thread block chooses for all rows itself, which costs what a kernel for
// the choice would, less its end. The second kernel chooses again while the first one ends, and
// asks for its weights. A row's experts are tasks of its own, few of which share weights; in the
// second kernel a thread block has all of a row's experts for its channels, so their sum is near.
// Every sum runs in the order in which the separate ops add.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/experts/choose_row.cuh"
#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/experts.h"
#include "kernels/cuda/experts/packed_stream.cuh"
#include "kernels/cuda/experts/stream_tasks.cuh"

namespace eta::cuda {
namespace few_rows {
namespace {

using stream::kCtasPerSm;
using stream::kThreads;

constexpr int32_t kMostRows = 4;
constexpr int32_t kMostChoices = 64;

struct Args {
  ExpertArgs product;
  RouteArgs route;  // logits null: choose nothing, the choice is there
  float* out;       // of AddExperts
  int64_t out_stride;
};

// What the thread block knows of the choice.
struct Choices {
  int32_t experts[kMostChoices];  // [rows, k], by rank
  int32_t places[kMostChoices];
  float weights[kMostChoices];
};

// The tasks of a thread block. Of kSums a row's experts follow each other in order of ranks.
template <bool kSwiGlu, bool kPacked, bool kSums>
class ChoiceTasks {
 public:
  __device__ ChoiceTasks(const Choices& choices, const Args& args, int32_t rows)
      : choices_(choices),
        per_row_(args.route.choice.per_row),
        tiles_(stream::NumTiles<kSwiGlu, kPacked>(args.product.channels)),
        end_((kSums ? rows : rows * per_row_) * tiles_),
        task_(static_cast<int32_t>(blockIdx.x)) {}

  __device__ bool done() const { return task_ >= end_; }
  __device__ void Advance() {
    if (kSums && ++rank_ < per_row_) return;
    rank_ = 0;
    task_ += static_cast<int32_t>(gridDim.x);
  }
  __device__ int32_t tile() const { return task_ % tiles_; }
  __device__ int32_t choice() const {
    return kSums ? task_ / tiles_ * per_row_ + rank_ : task_ / tiles_;
  }
  __device__ int32_t expert() const { return choices_.experts[choice()]; }
  __device__ int32_t place() const { return choices_.places[choice()]; }
  __device__ int32_t count() const { return 1; }
  __device__ int64_t row(const ExpertArgs& /*args*/, int32_t /*i*/) const {
    return kSums ? place() : choice() / per_row_;
  }
  __device__ bool begins_sum() const { return rank_ == 0; }
  __device__ bool ends_sum() const { return !kSums || rank_ == per_row_ - 1; }

 private:
  const Choices& choices_;
  int32_t per_row_;
  int32_t tiles_;
  int32_t end_;
  int32_t task_;
  int32_t rank_ = 0;
};

// Chooses for all rows. `stores`: the choice's experts and weights are written.
template <int kPerLane>
__device__ __forceinline__ void Choose(const RouteArgs& route, int32_t rows, bool stores,
                                       Choices& choices) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t per_row = route.choice.per_row;
  if (thread / 32 < rows) {
    ChooseRow<kPerLane>(route, thread / 32, choices.experts + thread / 32 * per_row, stores);
  }
  __syncthreads();
  const int32_t count = rows * per_row;
  if (thread < count) {
    const int32_t expert = choices.experts[thread];
    int32_t place = 0;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t other = choices.experts[i];
      place += other < expert || (other == expert && i < thread);
    }
    choices.places[thread] = place;
  }
  __syncthreads();
}

// Writes what Choose leaves out of the choice.
__device__ __forceinline__ void StorePlaces(const RouteArgs& route, int32_t rows,
                                            const Choices& choices) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const ExpertChoice& choice = route.choice;
  const int32_t count = rows * choice.per_row;
  if (thread < count) {
    choice.places[thread] = choices.places[thread];
    choice.rows[choices.places[thread]] = thread / choice.per_row;
  }
  for (int32_t expert = thread; expert < choice.num_experts; expert += kThreads) {
    int32_t below = 0;
    int32_t equal = 0;
    for (int32_t i = 0; i < count; ++i) {
      below += choices.experts[i] < expert;
      equal += choices.experts[i] == expert;
    }
    choice.place_end[expert] = below + equal;
    if (route.counts != nullptr) route.counts[expert] = equal;
  }
}

template <typename T, int kPerLane, bool kPacked>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    RouteKernel(const __grid_constant__ Args args, StepView step) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Choices choices;
  __shared__ stream::Sums<1> sums;
  WaitForPrevious();
  AllowNext();
  const bool stores = blockIdx.x == 0;
  const int32_t rows = min(step.counts->num_rows, step.num_rows);
  Choose<kPerLane>(args.route, rows, stores, choices);
  using Tasks = ChoiceTasks<true, kPacked, false>;
  const auto begin = [&] {
    if (stores) StorePlaces(args.route, rows, choices);
  };
  const auto finish = [&](const Tasks& task, int part, int column, const float(&totals)[4]) {
    stream::StoreTotals<T, true, kPacked>(args.product, task, part, column, totals);
  };
  stream::MultiplyTasks<T, true, kPacked, 1>(args.product, Tasks(choices, args, rows), memory, sums,
                                             begin, finish);
}

template <typename T, int kPerLane, bool kPacked>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    AddKernel(const __grid_constant__ Args args, StepView step) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Choices choices;
  __shared__ stream::Sums<1> sums;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const ExpertChoice& choice = args.route.choice;
  const bool chooses = args.route.logits != nullptr;
  const bool waits_late = chooses || args.product.choice_is_old;
  if (!waits_late) WaitForPrevious();
  const int32_t rows = min(step.counts->num_rows, step.num_rows);
  const int32_t count = rows * choice.per_row;
  if (chooses) {
    Choose<kPerLane>(args.route, rows, /*stores=*/false, choices);
  } else {
    if (thread < count) {
      choices.experts[thread] = choice.experts[thread];
      choices.places[thread] = choice.places[thread];
    }
    __syncthreads();
  }
  const auto begin = [&] {
    if (waits_late) WaitForPrevious();
    AllowNext();
    if (thread < count) choices.weights[thread] = choice.weights[thread];
  };
  using Tasks = ChoiceTasks<false, kPacked, true>;
  constexpr int kParts = stream::kParts<kPacked>;
  float old[kParts][4] = {};
  float sum[kParts][4] = {};
  const auto finish = [&](const Tasks& task, int part, int column, const float(&totals)[4]) {
    const int32_t row = task.choice() / choice.per_row;
    const float weight = choices.weights[task.choice()];
    const auto add = [&](int i, int32_t, int32_t channel) {
      float* out = args.out + row * args.out_stride + channel;
      if (task.begins_sum()) {
        old[part][i] = *out;
        sum[part][i] = 0.0f;
      }
      const float total = WithBias(args.product, task.expert(), channel, totals[i]);
      StoreProduct<T>(args.product, task.place(), channel, total);
      sum[part][i] = fmaf(weight, total, sum[part][i]);
      if (task.ends_sum()) *out = old[part][i] + sum[part][i];
    };
    stream::ForSums<false, kPacked>(args.product, task, part, column, add);
  };
  stream::MultiplyTasks<T, false, kPacked, 1>(args.product, Tasks(choices, args, rows), memory,
                                              sums, begin, finish);
}

bool Fits(const Context& context, const ExpertProduct& product) {
  const int64_t rows = context.step.num_rows;
  const ExpertChoice& choice = product.choice;
  return HasStreams(product) && rows <= kMostRows && rows * choice.per_row <= kMostChoices &&
         product.out.rows == rows * choice.per_row && choice.num_experts <= 256;
}

// `tiles`: of the tasks, for every one of `count` rows or places.
template <bool kPacked, typename Kernel>
void LaunchKernel(const Context& context, const Args& args, int64_t count, int32_t tiles,
                  Kernel* kernel) {
  const int64_t resident = int64_t{context.device.num_sms()} * kCtasPerSm;
  Launch(context.device, "experts of few rows",
         {.grid = static_cast<unsigned>(std::min(count * tiles, resident)),
          .block = kThreads,
          .shared_bytes = stream::kRingBytes<kPacked>},
         kernel, args, context.step);
}

// Calls visit(T, integral_constant, bool_constant) with the type of products, the experts of a
// lane, and whether weights are packed.
template <typename Visit>
void WithTypes(const ExpertProduct& product, Visit&& visit) {
  const auto with_packing = [&](auto element, auto per_lane) {
    if (product.weights.packed()) {
      visit(element, per_lane, std::true_type());
    } else {
      visit(element, per_lane, std::false_type());
    }
  };
  const auto with_lanes = [&](auto element) {
    if (product.choice.num_experts <= 128) {
      with_packing(element, std::integral_constant<int, 4>());
    } else {
      with_packing(element, std::integral_constant<int, 8>());
    }
  };
  if (product.weights.dtype == DType::kFloat16) {
    with_lanes(Half{});
  } else {
    with_lanes(BFloat16{});
  }
}

}  // namespace
}  // namespace few_rows

bool RouteAndMultiply(const Context& context, const RouteRowsParams& route, int32_t* counts,
                      const ExpertProduct& product) {
  using namespace few_rows;  // NOLINT(google-build-using-namespace)
  if (!Fits(context, product) || !product.by_rows || product.activated.data == nullptr ||
      product.choice != route.choice) {
    return false;
  }
  const Args args = {MakeExpertArgs(product), MakeRouteArgs(route, counts), nullptr, 0};
  WithTypes(product, [&](auto element, auto per_lane, auto packed) {
    LaunchKernel<packed()>(context, args, product.out.rows,
                           stream::NumTiles<true, packed()>(args.product.channels),
                           RouteKernel<decltype(element), per_lane(), packed()>);
  });
  return true;
}

bool MultiplyAndAdd(const Context& context, const RouteRowsParams* route,
                    const ExpertProduct& product, const AddExpertsParams& add) {
  using namespace few_rows;  // NOLINT(google-build-using-namespace)
  if (!Fits(context, product) || product.by_rows || product.activated.data != nullptr ||
      product.out.dtype != DType::kFloat32) {
    return false;
  }
  Args args = {MakeExpertArgs(product), {}, add.out.data, add.out.stride};
  if (route != nullptr) args.route = MakeRouteArgs(*route, nullptr);
  args.route.choice = product.choice;
  WithTypes(product, [&](auto element, auto per_lane, auto packed) {
    LaunchKernel<packed()>(context, args, context.step.num_rows,
                           stream::NumTiles<false, packed()>(args.product.channels),
                           AddKernel<decltype(element), per_lane(), packed()>);
  });
  return true;
}

}  // namespace eta::cuda
