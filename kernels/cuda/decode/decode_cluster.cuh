// Decode attention of few lists, in one kernel. Start, end and latency bind. A cluster has one
// list, and its CTAs equal shares of the stages. So partial results stay in shared memory, the
// cluster merges them, and no second kernel is needed. If all blocks are read, copies of what
// earlier steps stored begin before this step's keys are there.
#pragma once

#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/decode/decode_cluster.h"
#include "kernels/cuda/decode/decode_cta.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace eta::cuda::decode {

// The joined state of a CTA's share.
template <int D, int HeadTiles, int Halves>
struct Joined {
  static constexpr int kColumns = 8 * HeadTiles * (Halves == 2 ? 2 : 1);
  float4 values[kColumns][D / 4];
  float max[kColumns];
  float sum[kColumns];
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
using Cluster = cooperative_groups::cluster_group;

// The stages that a CTA takes of its cluster's list, as a queue of one unit (UnitQueue). The unit
// is the CTA's index.
class ListShare {
 public:
  // `newest`: the last stages of a list that may have tokens of this step.
  __device__ ListShare(const Plan& plan, int32_t list, int32_t rank, int32_t ranks, int32_t newest)
      : unit_(list * ranks + rank) {
    const int32_t first = plan.begin[list];
    const int32_t stages = plan.begin[list + 1] - first;
    begin_ = first + stages * rank / ranks;
    end_ = first + stages * (rank + 1) / ranks;
    has_newest_ = end_ > plan.begin[list + 1] - newest;
  }
  __device__ bool empty() const { return begin_ == end_; }
  __device__ bool has_newest() const { return has_newest_; }
  __device__ int32_t unit() const { return done_ ? -1 : unit_; }
  __device__ int32_t Begin(int32_t unit) const { return unit == unit_ ? begin_ : end_; }
  __device__ void Advance() { done_ = true; }

 private:
  int32_t unit_;
  int32_t begin_;
  int32_t end_;
  bool has_newest_;
  bool done_ = false;
};

// Merges the shares of a list in the order of their ranks. The CTAs of the cluster take its
// elements in turns.
template <int D, int HeadTiles, int Halves>
__device__ __forceinline__ void MergeShares(const DecodeArgs& args,
                                            const Result<D, (Halves > 0)>& result, bool has_stages,
                                            Joined<D, HeadTiles, Halves>& joined) {
  if (args.step.rows[result.row].role != RowRole::kDecode) return;
  const auto ranks = static_cast<int32_t>(Cluster::num_blocks());
  constexpr int32_t kThreadsOfAll = Halves == 2 ? 2 * kComputeThreads : kComputeThreads;
  const uint32_t thread = threadIdx.x + (Halves == 2 ? OwnHalf() * kComputeThreads : 0);
  const auto first = static_cast<int32_t>(Cluster::block_rank() + ranks * thread);
  for (int32_t quad = first; quad < result.columns * (D / 4); quad += ranks * kThreadsOfAll) {
    const int32_t head = quad / (D / 4);
    const int32_t place = quad % (D / 4);
    float maxima[kMostRanks];
    float sums[kMostRanks];
    float4 values[kMostRanks];
#pragma unroll
    for (int32_t rank = 0; rank < kMostRanks; ++rank) {
      if (rank >= ranks) continue;
      const Joined<D, HeadTiles, Halves>& of_rank =
          *cooperative_groups::this_cluster().map_shared_rank(&joined, rank);
      maxima[rank] = of_rank.max[head];
      sums[rank] = of_rank.sum[head];
      values[rank] = of_rank.values[head][place];
    }
    float max = has_stages ? kNoScore : 0.0f;
#pragma unroll
    for (int32_t rank = 0; rank < kMostRanks; ++rank) {
      if (rank < ranks) max = fmaxf(max, maxima[rank]);
    }
    float sum = 0.0f;
    float4 value = {};
#pragma unroll
    for (int32_t rank = 0; rank < kMostRanks; ++rank) {
      if (rank >= ranks) continue;
      const float weight = Exp2(maxima[rank] - max);
      sum += weight * sums[rank];
      AddScaled(value, weight, values[rank]);
    }
    result.Store(args, head, place * 4, max, sum, value, result.FloorOf(args, head, place * 4));
  }
}

// The computing warps' part before the merge.
template <typename Element, int D, int HeadTiles, int Halves>
__device__ __forceinline__ void ComputeShare(const DecodeArgs& args, const ListShare& share,
                                             const ListRows& rows,
                                             const Result<D, (Halves > 0)>& result,
                                             CtaMemory<Element, D, HeadTiles, Halves>& memory,
                                             Joined<D, HeadTiles, Halves>& joined) {
  if (!share.empty()) {
    WarpState<Element, D, HeadTiles, Halves> state;
    RingCursor cursor;
    state.Start(args, rows);
    AddList(args, memory, cursor, state);
    state.Leave(memory.sums, memory.fixed);
  }
  SyncCompute<Halves>();
  const int first_column = Halves == 2 ? OwnHalf() * 8 * HeadTiles : 0;
  const int columns =
      Halves == 2 ? std::min(result.columns - first_column, 8 * HeadTiles) : result.columns;
  for (int quad = threadIdx.x; quad < columns * (D / 4); quad += kComputeThreads) {
    const int head = quad / (D / 4);
    const int place = quad % (D / 4);
    float max = kNoScore;
    float sum = 0.0f;
    float4 value = {};
    if (!share.empty()) JoinWarps(memory, head, place * 4, max, sum, value);
    joined.values[first_column + head][place] = value;
    if (place == 0) {
      joined.max[first_column + head] = max;
      joined.sum[first_column + head] = sum;
    }
  }
}
#endif

template <typename Element, int D, int HeadTiles, int Halves>
__global__ void __launch_bounds__(kCtaThreads<Halves>,
                                  kMostCtasPerSm<Element, D, HeadTiles, Halves>)
    ClusterKernel([[maybe_unused]] const __grid_constant__ DecodeArgs args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  // Up to kBundleRows tokens, which two stages hold.
  constexpr int32_t kNewest = Halves > 0 ? 2 : 1;
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Joined<D, HeadTiles, Halves> joined;
  CtaMemory<Element, D, HeadTiles, Halves> memory(args, shared);
  const auto ranks = static_cast<int32_t>(Cluster::num_blocks());
  const auto rank = static_cast<int32_t>(Cluster::block_rank());
  const int32_t list = static_cast<int32_t>(blockIdx.x) / ranks;
  if (IsCopying<Halves>()) {
    if constexpr (kMovesRegisters<D, HeadTiles, Halves>) GiveRegisters<kCopyRegisters>();
    if (Halves == 2 && threadIdx.x >= 32) {
      Cluster::sync();
      Cluster::sync();
      return;
    }
    memory.InitRing(args.num_stages);
    memory.plan.Make<(Halves > 0)>(args);
    AnnouncePlan<Halves>();
    const ListShare share(memory.plan, list, rank, ranks, kNewest);
    if (args.early && share.has_newest()) WaitForPrevious();
    if (!share.empty()) {
      CopyStages<Element, D, HeadTiles, Halves>(args, memory.plan, share, memory.stages,
                                                memory.fixed);
    }
    __syncwarp();
    Cluster::sync();
    Cluster::sync();
    return;
  }
  if constexpr (kMovesRegisters<D, HeadTiles, Halves>) TakeRegisters<kComputeRegisters>();
  AwaitPlan<Halves>();
  WaitForPrevious();
  if (args.early) AllowNext();
  const int32_t count_lists = Halves > 0 ? args.num_count_lists : args.num_lists;
  if (Halves != 2 || OwnHalf() == 0) {
    if (args.all && blockIdx.x == 0) CountAll(args, count_lists);
    ClearPadding<D>(args, count_lists / args.tile.num_kv_heads);
  }
  const ListShare share(memory.plan, list, rank, ranks, kNewest);
  const ListRows rows = RowsOf<(Halves > 0)>(args, list);
  const Result<D, (Halves > 0)> result(args, rows);
  ComputeShare(args, share, rows, result, memory, joined);
  __syncwarp();
  Cluster::sync();
  MergeShares(args, result, memory.plan.begin[list] < memory.plan.begin[list + 1], joined);
  __syncwarp();
  Cluster::sync();  // a CTA's memory stays until the others have read it
#endif
}

// `cut` and `united`: of the bundles in `lists`, if Halves is not 0. Returns as
// ClusterDecodeAttention does.
template <typename Element, int D, int HeadTiles, int Halves>
bool LaunchClusters(Context& context, const AttentionParams& params, const DeviceCounts& counts,
                    const DecodeLists& lists, const BundleCut& cut, const UnitedLists& united) {
  constexpr int32_t kMostCtas = kMostCtasPerSm<Element, D, HeadTiles, Halves>;
  const int32_t num_kv_heads = params.geometry.num_kv_heads;
  const int32_t num_lists = (Halves > 0 ? lists.num_bundles : context.step.num_rows) *
                            num_kv_heads * cut.lists_per_bundle;
  const int32_t sms = context.device.num_sms();
  int32_t ranks = kMostRanks;
  while (ranks > 1 && num_lists * ranks > sms * kMostCtas) ranks /= 2;
  if (num_lists == 0 || ranks < 2) return false;
  const int32_t ctas_per_sm = std::min((num_lists * ranks + sms - 1) / sms, kMostCtas);
  const int32_t num_stages = RingStages<Element, D, HeadTiles, Halves>(
      context.device, ctas_per_sm, num_lists, sizeof(Joined<D, HeadTiles, Halves>));
  if (num_stages < 2) return false;
  DecodeArgs args = MakeDecodeArgs(context, params, counts, 0, num_lists, num_stages);
  if (args.pool_blocks == nullptr && args.window == 0) {
    return true;  // no memory; the device's status says so
  }
  args.all = lists.all;
  const bool all_new_at_end =
      Halves > 0 ? lists.few_rows && cut.lists_per_bundle == 1 : lists.single_rows;
  args.early = (lists.all || args.window > 0) && all_new_at_end;
  if constexpr (Halves > 0) {
    TakeBundles(lists, cut, united, 0, args);
    args.num_count_lists = context.step.num_rows * num_kv_heads;
  }
  Launch(context.device, "decode attention in clusters",
         {.grid = dim3(static_cast<unsigned>(num_lists * ranks)),
          .block = CtaShape<Halves>(),
          .shared_bytes = SharedLayout<Element, D, HeadTiles, Halves>::Bytes(num_stages, num_lists),
          .cluster = static_cast<unsigned>(ranks)},
         ClusterKernel<Element, D, HeadTiles, Halves>, args);
  return true;
}

}  // namespace eta::cuda::decode
