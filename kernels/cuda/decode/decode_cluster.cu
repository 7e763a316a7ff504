// ClusterDecodeAttention is DecodeAttention for few lists (eta-semantics.md, "Gate", "Special keys"
// and "Selection", steps 6 and 7): from q [R, HQ * d] to out [R, HQ * d].
//
// Start, end and latency bind. A cluster has one list, and its CTAs equal shares of the stages. So
// partial results stay in shared memory, the cluster merges them, and no second kernel is needed.
// If all blocks are read, copies of what earlier steps stored begin before this step's keys are
// there.

#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/decode/decode_cluster.h"
#include "kernels/cuda/decode/decode_cta.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace eta::cuda {
namespace decode {
namespace {

// The joined state of a CTA's share.
template <int D, int HeadTiles>
struct Joined {
  float4 values[8 * HeadTiles][D / 4];
  float max[8 * HeadTiles];
  float sum[8 * HeadTiles];
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
using Cluster = cooperative_groups::cluster_group;

// The stages that a CTA takes of its cluster's list, as a queue of one unit (UnitQueue). The unit
// is the CTA's index.
class ListShare {
 public:
  __device__ ListShare(const Plan& plan, int32_t list, int32_t rank, int32_t ranks)
      : unit_(list * ranks + rank) {
    const int32_t first = plan.begin[list];
    const int32_t stages = plan.begin[list + 1] - first;
    begin_ = first + stages * rank / ranks;
    end_ = first + stages * (rank + 1) / ranks;
    ends_list_ = end_ == plan.begin[list + 1];
  }
  __device__ bool empty() const { return begin_ == end_; }
  __device__ bool ends_list() const { return ends_list_; }
  __device__ int32_t unit() const { return done_ ? -1 : unit_; }
  __device__ int32_t Begin(int32_t unit) const { return unit == unit_ ? begin_ : end_; }
  __device__ void Advance() { done_ = true; }

 private:
  int32_t unit_;
  int32_t begin_;
  int32_t end_;
  bool ends_list_;
  bool done_ = false;
};

// Merges the shares of a list in the order of their ranks. The CTAs of the cluster take its
// elements in turns.
template <int D, int HeadTiles>
__device__ __forceinline__ void MergeShares(const DecodeArgs& args, const Result<D>& result,
                                            bool has_stages, Joined<D, HeadTiles>& joined) {
  if (args.step.rows[result.row].role != RowRole::kDecode) return;
  const auto ranks = static_cast<int32_t>(Cluster::num_blocks());
  const auto first = static_cast<int32_t>(Cluster::block_rank() + ranks * threadIdx.x);
  for (int32_t quad = first; quad < result.columns * (D / 4); quad += ranks * kComputeThreads) {
    const int32_t head = quad / (D / 4);
    const int32_t place = quad % (D / 4);
    float maxima[kMostRanks];
    float sums[kMostRanks];
    float4 values[kMostRanks];
#pragma unroll
    for (int32_t rank = 0; rank < kMostRanks; ++rank) {
      if (rank >= ranks) continue;
      const Joined<D, HeadTiles>& of_rank =
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
template <typename Element, int D, int HeadTiles>
__device__ __forceinline__ void ComputeShare(const DecodeArgs& args, const ListShare& share,
                                             const ListRows& rows, const Result<D>& result,
                                             CtaMemory<Element, D, HeadTiles>& memory,
                                             Joined<D, HeadTiles>& joined) {
  if (!share.empty()) {
    WarpState<Element, D, HeadTiles> state;
    RingCursor cursor;
    state.Start(args, rows);
    AddList(args, memory, cursor, state);
    state.Leave(memory.sums, memory.fixed);
  }
  SyncCompute();
  for (int quad = threadIdx.x; quad < result.columns * (D / 4); quad += kComputeThreads) {
    const int head = quad / (D / 4);
    const int place = quad % (D / 4);
    float max = kNoScore;
    float sum = 0.0f;
    float4 value = {};
    if (!share.empty()) JoinWarps(memory, head, place * 4, max, sum, value);
    joined.values[head][place] = value;
    if (place == 0) {
      joined.max[head] = max;
      joined.sum[head] = sum;
    }
  }
}
#endif

template <typename Element, int D, int HeadTiles>
__global__ void __launch_bounds__(kThreads, kMostCtasPerSm<Element, D, HeadTiles>)
    ClusterKernel([[maybe_unused]] const __grid_constant__ DecodeArgs args) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  extern __shared__ __align__(128) std::byte shared[];
  __shared__ Joined<D, HeadTiles> joined;
  CtaMemory<Element, D, HeadTiles> memory(args, shared);
  const auto ranks = static_cast<int32_t>(Cluster::num_blocks());
  const auto rank = static_cast<int32_t>(Cluster::block_rank());
  const int32_t list = static_cast<int32_t>(blockIdx.x) / ranks;
  if (IsCopying<0>()) {
    memory.InitRing(args.num_stages);
    memory.plan.Make(args);
    AnnouncePlan();
    const ListShare share(memory.plan, list, rank, ranks);
    if (args.early && share.ends_list()) WaitForPrevious();
    if (!share.empty()) {
      CopyStages<Element, D, HeadTiles>(args, memory.plan, share, memory.stages, memory.fixed);
    }
    __syncwarp();
    Cluster::sync();
    Cluster::sync();
    return;
  }
  AwaitPlan();
  WaitForPrevious();
  if (args.early) AllowNext();
  if (args.all && blockIdx.x == 0) CountAll(args, args.num_lists);
  ClearPadding<D>(args, args.num_lists / args.tile.num_kv_heads);
  const ListShare share(memory.plan, list, rank, ranks);
  const ListRows rows = RowsOf<false>(args, list);
  const Result<D> result(args, rows);
  ComputeShare(args, share, rows, result, memory, joined);
  __syncwarp();
  Cluster::sync();
  MergeShares(args, result, memory.plan.begin[list] < memory.plan.begin[list + 1], joined);
  __syncwarp();
  Cluster::sync();  // a CTA's memory stays until the others have read it
#endif
}

template <typename Element, int D, int HeadTiles>
bool LaunchClusters(Context& context, const AttentionParams& params, const DeviceCounts& counts,
                    const DecodeLists& lists) {
  const int32_t num_lists = context.step.num_rows * params.geometry.num_kv_heads;
  const int32_t sms = context.device.num_sms();
  int32_t ranks = kMostRanks;
  while (ranks > 1 && num_lists * ranks > sms * kMostCtasPerSm<Element, D, HeadTiles>) ranks /= 2;
  if (num_lists == 0 || ranks < 2) return false;
  const int32_t ctas_per_sm =
      std::min((num_lists * ranks + sms - 1) / sms, kMostCtasPerSm<Element, D, HeadTiles>);
  const int32_t num_stages = RingStages<Element, D, HeadTiles>(
      context.device, ctas_per_sm, num_lists, sizeof(Joined<D, HeadTiles>));
  if (num_stages < 2) return false;
  DecodeArgs args = MakeDecodeArgs(context, params, counts, 0, num_lists, num_stages);
  if (args.pool_blocks == nullptr && args.window == 0) {
    return true;  // no memory; the device's status says so
  }
  args.all = lists.all;
  args.early = (lists.all || args.window > 0) && lists.single_rows;
  Launch(context.device, "decode attention in clusters",
         {.grid = dim3(static_cast<unsigned>(num_lists * ranks)),
          .block = dim3(kThreads),
          .shared_bytes = SharedLayout<Element, D, HeadTiles>::Bytes(num_stages, num_lists),
          .cluster = static_cast<unsigned>(ranks)},
         ClusterKernel<Element, D, HeadTiles>, args);
  return true;
}

}  // namespace
}  // namespace decode

bool ClusterDecodeAttention(Context& context, const AttentionParams& params,
                            const DeviceCounts& counts, const DecodeLists& lists) {
  if (!lists.even || !HasClusters(context.device)) return false;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  bool launched = false;
  decode::WithShape(params.geometry, group, [&](auto element, auto head_dim, auto head_tiles) {
    launched = decode::LaunchClusters<decltype(element), head_dim(), head_tiles()>(context, params,
                                                                                   counts, lists);
  });
  return launched;
}

}  // namespace eta::cuda
