// Decode attention of any lists: the stages of all lists are one stream, which all thread blocks of
// the device share, and a kernel of its own merges partial results.
#pragma once

#include <algorithm>

#include "kernels/cuda/decode/decode_cta.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"

namespace eta::cuda::decode {

// Ends a list, or the unit's part of it: joins the states of the warps. The joined state is the
// result if the unit has the whole list, else a partial result.
template <typename Element, int D, int HeadTiles, int Halves>
__device__ void FinishList(const DecodeArgs& args,
                           const CtaMemory<Element, D, HeadTiles, Halves>& memory,
                           const Units& units, int32_t list, int32_t unit,
                           const WarpState<Element, D, HeadTiles, Halves>& state,
                           const Result<D, (Halves > 0)>& result) {
  using ListResult = Result<D, (Halves > 0)>;
  SyncCompute<Halves>();  // every thread has read the previous list's data here
  state.Leave(memory.sums, memory.fixed);
  SyncCompute<Halves>();

  const int32_t list_begin = memory.plan.begin[list];
  const int32_t list_end = memory.plan.begin[list + 1];
  const int32_t unit_begin = units.Begin(unit);
  const bool whole = list_begin >= unit_begin && list_end <= units.Begin(unit + 1);
  const Partial<D, HeadTiles, Halves> partial(args, unit, list_begin >= unit_begin);
  const int first_column = FirstColumn<HeadTiles, Halves>();
  const int columns = Halves == kShareColumns
                          ? std::min(result.columns - first_column, 8 * HeadTiles)
                          : result.columns;
  for (int quad = JoiningThread<Halves>(); quad < columns * (D / 4);
       quad += kJoiningThreads<Halves>) {
    const int head = quad / (D / 4);
    const int i = quad % (D / 4) * 4;
    const int column = first_column + head;
    const auto floor = whole ? result.FloorOf(args, column, i) : typename ListResult::Floor{};
    float max;
    float sum;
    float4 value;
    JoinWarps(memory, head, i, max, sum, value);
    if (whole) {
      result.Store(args, column, i, max, sum, value, floor);
    } else {
      reinterpret_cast<float4*>(partial.values)[first_column * (D / 4) + quad] = value;
      if (i == 0) {
        partial.Max()[column] = max;
        partial.Sum()[column] = sum;
      }
    }
  }
}

// Steps 6 and 7 of the selection for the decode rows. The stages of all lists form one stream,
// whatever the rows' lengths. Units says which stages a CTA takes.
template <typename Element, int D, int HeadTiles, int Halves>
__global__ void __launch_bounds__(kCtaThreads<Halves>,
                                  kMostCtasPerSm<Element, D, HeadTiles, Halves>)
    DecodeKernel(const __grid_constant__ DecodeArgs args) {
  extern __shared__ __align__(128) std::byte shared[];
  using ListResult = Result<D, (Halves > 0)>;
  CtaMemory<Element, D, HeadTiles, Halves> memory(args, shared);
  Plan& plan = memory.plan;
  if (IsCopying<Halves>()) {
    if constexpr (kMovesRegisters<D, HeadTiles, Halves>) GiveRegisters<kCopyRegisters>();
    if (kTwoHalves<Halves> && threadIdx.x >= 32) return;
    memory.InitRing(args.num_stages);
    plan.Make<(Halves > 0)>(args);
    AnnouncePlan<Halves>();
    const Units units(plan.begin[args.num_lists], static_cast<int32_t>(gridDim.x));
    if (units.total > 0) {
      CopyStages<Element, D, HeadTiles, Halves>(args, plan, UnitQueue(args, units), memory.stages,
                                                memory.fixed);
    }
    return;
  }
  if constexpr (kMovesRegisters<D, HeadTiles, Halves>) TakeRegisters<kComputeRegisters>();
  AwaitPlan<Halves>();
  WaitForPrevious();
  const Units units(plan.begin[args.num_lists], static_cast<int32_t>(gridDim.x));
  const bool is_first_half = !kTwoHalves<Halves> || OwnHalf() == 0;
  if (blockIdx.x == 0 && is_first_half) {
    if (args.all) CountAll(args, Halves > 0 ? args.num_count_lists : args.num_lists);
    for (int32_t i = threadIdx.x; i <= args.num_lists; i += kComputeThreads) {
      args.begin[i] = plan.begin[i];
    }
  }
  if (is_first_half) {
    ClearPadding<D>(args,
                    (Halves > 0 ? args.num_count_lists : args.num_lists) / args.tile.num_kv_heads);
  }
  if (units.total == 0) return;

  WarpState<Element, D, HeadTiles, Halves> state;
  ListResult result;
  RingCursor cursor;
  // The plan tells the first list before its first stage has arrived. If a CTA has no share, there
  // are no small units either, and the CTA has no work.
  const auto cta = static_cast<int32_t>(blockIdx.x);
  int32_t list = cta < units.num_shares ? plan.ListOf(units.Begin(cta)) : -1;
  while (list >= 0) {
    const ListRows rows = RowsOf<(Halves > 0)>(args, list);
    result = ListResult(args, rows);
    state.Start(args, rows);
    const WarpNote note = AddList(args, memory, cursor, state);
    FinishList(args, memory, units, note.list, note.unit, state, result);
    Wait(&memory.fixed.full[cursor.slot], cursor.phase);
    list = ReadNote(memory.fixed.notes[cursor.slot].warps[threadIdx.x / 32]).list;
  }
}

// How bundles are cut into lists.
struct BundleCut {
  int32_t rows_per_list = 1;
  int32_t lists_per_bundle = 1;  // of a KV head
};

// `cut`: of the bundles in `lists`, if Halves is not 0. Returns false, and launches nothing, if the
// device has no memory for a stage.
template <typename Element, int D, int HeadTiles, int Halves>
bool LaunchStream(Context& context, const AttentionParams& params, const DeviceCounts& counts,
                  const DecodeLists& lists, const BundleCut& cut) {
  using Layout = SharedLayout<Element, D, HeadTiles, Halves>;
  constexpr bool kBundled = Halves > 0;
  constexpr int32_t kMostCtas = kMostCtasPerSm<Element, D, HeadTiles, Halves>;
  const int32_t num_kv_heads = params.geometry.num_kv_heads;
  const int32_t lists_each = num_kv_heads * cut.lists_per_bundle;  // of a row or a bundle
  const int32_t per_launch = std::max(1, kMaxLists / lists_each);
  const int64_t count = kBundled ? lists.num_bundles : context.step.num_rows;
  const auto ring = [&](int32_t ctas_per_sm, int64_t num_lists) {
    return RingStages<Element, D, HeadTiles, Halves>(context.device, ctas_per_sm,
                                                     static_cast<int32_t>(num_lists));
  };
  if (ring(1, std::min<int64_t>(per_launch, count) * lists_each) == 0) return false;
  const int32_t max_ctas = kMostCtas * context.device.num_sms();
  auto* partials = reinterpret_cast<float*>(context.scratch.Get(
      Scratch::Use::kPartials, static_cast<size_t>(Units::Most(max_ctas)) * 2 *
                                   Partial<D, HeadTiles, Halves>::kFloats * sizeof(float)));
  auto* counters = reinterpret_cast<int32_t*>(context.scratch.Get(
      Scratch::Use::kSplit, static_cast<size_t>(kMaxLists + 2) * sizeof(int32_t)));
  if (partials == nullptr || counters == nullptr) return true;  // the device's status says so
  for (int64_t first = 0; first < count; first += per_launch) {
    const auto num_lists =
        static_cast<int32_t>(std::min<int64_t>(per_launch, count - first) * lists_each);
    int32_t ctas_per_sm = kMostCtas;
    int32_t num_stages = ring(ctas_per_sm, num_lists);
    while (num_stages < 3 && ctas_per_sm > 1) num_stages = ring(--ctas_per_sm, num_lists);
    DecodeArgs args = MakeDecodeArgs(
        context, params, counts, kBundled ? 0 : static_cast<int32_t>(first), num_lists, num_stages);
    if (args.pool_blocks == nullptr && args.window == 0) return true;
    args.partials = partials;
    args.begin = counters + 1;
    args.taken = counters;
    args.all = lists.all;
    const int32_t columns = params.num_query_heads / num_kv_heads * cut.rows_per_list;
    if constexpr (kBundled) {
      args.bundles = lists.bundles + first;
      args.rows_per_list = cut.rows_per_list;
      args.lists_per_bundle = cut.lists_per_bundle;
      args.num_count_lists = first == 0 ? context.step.num_rows * num_kv_heads : 0;
    }
    const auto ctas = static_cast<unsigned>(context.device.num_sms() * ctas_per_sm);
    Launch(context.device, "decode attention",
           {.grid = dim3(ctas),
            .block = CtaShape<Halves>(),
            .shared_bytes = Layout::Bytes(num_stages, num_lists)},
           DecodeKernel<Element, D, HeadTiles, Halves>, args);
    const bool few = num_lists * columns <= context.device.num_sms();
    const auto merged = static_cast<unsigned>(num_lists);
    const auto heads = static_cast<unsigned>(columns);
    Launch(context.device, "merge",
           {.grid = few ? dim3(merged, heads) : dim3(merged, (heads + 1) / 2),
            .block = dim3(kMergeThreads)},
           few ? MergeKernel<D, HeadTiles, Halves, 1> : MergeKernel<D, HeadTiles, Halves, 2>, args,
           static_cast<int32_t>(ctas));
  }
  return true;
}

}  // namespace eta::cuda::decode
