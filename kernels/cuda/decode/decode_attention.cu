// DecodeAttention computes attention of each decode row over the blocks that SelectBlocks listed,
// and the tail: gate, softmax, and the floor of the pruned keys, from q [R, HQ * d] to out
// [R, HQ * d] (eta-semantics.md, "Gate", "Special keys" and "Selection", steps 6 and 7; "Windows").
//
// Memory binds, then start and end of the kernels. decode_plan.cuh cuts the lists into stages,
// decode_stages.cuh copies the stages into shared memory, decode_softmax.cuh computes on them, and
// decode_merge.cuh adds the floor and merges partial results.

#include <algorithm>

#include "kernels/cuda/decode/decode_cluster.h"
#include "kernels/cuda/decode/decode_cta.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"

namespace eta::cuda {
namespace decode {
namespace {

// Ends a list, or the unit's part of it: joins the states of the four warps. The joined state is
// the result if the unit has the whole list, else a partial result.
template <typename Element, int D, int HeadTiles>
__device__ void FinishList(const DecodeArgs& args, const CtaMemory<Element, D, HeadTiles>& memory,
                           const Units& units, int32_t list, int32_t unit,
                           const WarpState<Element, D, HeadTiles>& state, const Result<D>& result) {
  SyncCompute();  // every thread has read the previous list's data here
  state.Leave(memory.sums, memory.fixed);
  SyncCompute();

  const int32_t list_begin = memory.plan.begin[list];
  const int32_t list_end = memory.plan.begin[list + 1];
  const int32_t unit_begin = units.Begin(unit);
  const bool whole = list_begin >= unit_begin && list_end <= units.Begin(unit + 1);
  const Partial<D, HeadTiles> partial(args, unit, list_begin >= unit_begin);
  for (int quad = threadIdx.x; quad < result.group * (D / 4); quad += kComputeThreads) {
    const int head = quad / (D / 4);
    const int i = quad % (D / 4) * 4;
    const auto floor = whole ? result.FloorOf(args, head, i) : typename Result<D>::Floor{};
    float max;
    float sum;
    float4 value;
    JoinWarps(memory, head, i, max, sum, value);
    if (whole) {
      result.Store(args, head, i, max, sum, value, floor);
    } else {
      reinterpret_cast<float4*>(partial.values)[quad] = value;
      if (i == 0) {
        partial.Max()[head] = max;
        partial.Sum()[head] = sum;
      }
    }
  }
}

// Steps 6 and 7 of the selection for the decode rows. The stages of all lists form one stream,
// whatever the rows' lengths. Units says which stages a CTA takes.
template <typename Element, int D, int HeadTiles>
__global__ void __launch_bounds__(kThreads, kMostCtasPerSm<Element, D, HeadTiles>)
    DecodeKernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  CtaMemory<Element, D, HeadTiles> memory(args, shared);
  Plan& plan = memory.plan;
  if (threadIdx.x >= kComputeThreads) {
    memory.InitRing(args.num_stages);
    plan.Make(args);
    AnnouncePlan();
    const Units units(plan.begin[args.num_lists], static_cast<int32_t>(gridDim.x));
    if (units.total > 0) {
      CopyStages<Element, D, HeadTiles>(args, plan, UnitQueue(args, units), memory.stages,
                                        memory.fixed);
    }
    return;
  }
  AwaitPlan();
  WaitForPrevious();
  const Units units(plan.begin[args.num_lists], static_cast<int32_t>(gridDim.x));
  if (blockIdx.x == 0) {
    if (args.all) CountAll(args);
    for (int32_t i = threadIdx.x; i <= args.num_lists; i += kComputeThreads) {
      args.begin[i] = plan.begin[i];
    }
  }
  ClearPadding<D>(args);
  if (units.total == 0) return;

  WarpState<Element, D, HeadTiles> state;
  Result<D> result;
  RingCursor cursor;
  // The plan tells the first list before its first stage has arrived. If a CTA has no share, there
  // are no small units either, and the CTA has no work.
  const auto cta = static_cast<int32_t>(blockIdx.x);
  int32_t list = cta < units.num_shares ? plan.ListOf(units.Begin(cta)) : -1;
  while (list >= 0) {
    result = Result<D>(args, list);
    state.Start(args, result.row, result.kv_head);
    const WarpNote note = AddList(args, memory, cursor, state);
    FinishList(args, memory, units, note.list, note.unit, state, result);
    Wait(&memory.fixed.full[cursor.slot], cursor.phase);
    list = ReadNote(memory.fixed.notes[cursor.slot].warps[threadIdx.x / 32]).list;
  }
}

template <typename Element, int D, int HeadTiles>
void LaunchDecode(Context& context, const AttentionParams& params, const DeviceCounts& counts,
                  const DecodeLists& lists) {
  using Layout = SharedLayout<Element, D, HeadTiles>;
  const int32_t num_kv_heads = params.geometry.num_kv_heads;
  const int32_t rows_per_launch = std::max(1, kMaxLists / num_kv_heads);
  const int64_t rows = context.step.num_rows;
  const int32_t max_ctas = kMostCtasPerSm<Element, D, HeadTiles> * context.device.num_sms();
  auto* partials = reinterpret_cast<float*>(context.scratch.Get(
      Scratch::Use::kPartials, static_cast<size_t>(Units::Most(max_ctas)) * 2 *
                                   Partial<D, HeadTiles>::kFloats * sizeof(float)));
  auto* counters = reinterpret_cast<int32_t*>(context.scratch.Get(
      Scratch::Use::kSplit, static_cast<size_t>(kMaxLists + 2) * sizeof(int32_t)));
  if (partials == nullptr || counters == nullptr) return;
  for (int64_t first = 0; first < rows; first += rows_per_launch) {
    const auto num_lists =
        static_cast<int32_t>(std::min<int64_t>(rows_per_launch, rows - first) * num_kv_heads);
    int32_t ctas_per_sm = kMostCtasPerSm<Element, D, HeadTiles>;
    int32_t num_stages = RingStages<Element, D, HeadTiles>(context.device, ctas_per_sm, num_lists);
    while (num_stages < 3 && ctas_per_sm > 1) {
      --ctas_per_sm;
      num_stages = RingStages<Element, D, HeadTiles>(context.device, ctas_per_sm, num_lists);
    }
    DecodeArgs args =
        MakeDecodeArgs(context, params, counts, static_cast<int32_t>(first), num_lists, num_stages);
    if (args.pool_blocks == nullptr && args.window == 0) return;
    args.partials = partials;
    args.begin = counters + 1;
    args.taken = counters;
    args.all = lists.all;
    const auto ctas = static_cast<unsigned>(context.device.num_sms() * ctas_per_sm);
    Launch(context.device, "decode attention",
           {.grid = dim3(ctas),
            .block = dim3(kThreads),
            .shared_bytes = Layout::Bytes(num_stages, num_lists)},
           DecodeKernel<Element, D, HeadTiles>, args);
    const int32_t group = params.num_query_heads / num_kv_heads;
    const bool few = num_lists * group <= context.device.num_sms();
    const auto merged = static_cast<unsigned>(num_lists);
    const auto heads = static_cast<unsigned>(group);
    Launch(context.device, "merge",
           {.grid = few ? dim3(merged, heads) : dim3(merged, (heads + 1) / 2),
            .block = dim3(kMergeThreads)},
           few ? MergeKernel<D, HeadTiles, 1> : MergeKernel<D, HeadTiles, 2>, args,
           static_cast<int32_t>(ctas));
  }
}

}  // namespace
}  // namespace decode

void DecodeAttention(Context& context, const AttentionParams& params, const DeviceCounts& counts,
                     const DecodeLists& lists) {
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  if (!AttendsOnTensorCores(context.device, params)) return PlainDecodeAttention(context, params);
  if (ClusterDecodeAttention(context, params, counts, lists)) return;
  decode::WithShape(geometry, group, [&](auto element, auto head_dim, auto head_tiles) {
    decode::LaunchDecode<decltype(element), head_dim(), head_tiles()>(context, params, counts,
                                                                      lists);
  });
}

}  // namespace eta::cuda
