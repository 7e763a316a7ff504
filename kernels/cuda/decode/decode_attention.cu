// DecodeAttention computes attention of each decode row over the blocks that SelectBlocks listed,
// and the tail: gate, softmax, and the floor of the pruned keys, from q [R, HQ * d] to out
// [R, HQ * d] (eta-semantics.md, "Gate", "Special keys" and "Selection", steps 6 and 7).
//
// Memory binds, then start and end of the kernels. decode_plan.cuh cuts the lists into stages,
// decode_stages.cuh copies the stages into shared memory, decode_softmax.cuh computes on them, and
// decode_merge.cuh adds the floor and merges partial results.

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cuda/decode/decode_merge.cuh"
#include "kernels/cuda/decode/decode_softmax.cuh"
#include "kernels/cuda/decode/decode_stages.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"

namespace eta::cuda {
namespace decode {
namespace {

__device__ __forceinline__ int64_t SizeOfOut(const DecodeArgs& args) {
  return args.out_dtype == DType::kFloat32 ? 4 : 2;
}

__device__ __forceinline__ void SyncCompute() {
  asm volatile("bar.sync 1, %0;" ::"n"(kComputeThreads) : "memory");
}

// The copying warp calls AnnouncePlan and goes on. The computing warps wait in AwaitPlan until the
// plan and the barriers are there.
__device__ __forceinline__ void AnnouncePlan() {
  asm volatile("bar.arrive 2, %0;" ::"n"(kThreads) : "memory");
}
__device__ __forceinline__ void AwaitPlan() {
  asm volatile("bar.sync 2, %0;" ::"n"(kThreads) : "memory");
}

// Ends a list, or the unit's part of it: joins the states of the four warps. The joined state is
// the result if the unit has the whole list, else a partial result.
template <typename Element, int D, int HeadTiles>
__device__ void FinishList(const DecodeArgs& args, const Plan& plan, const Units& units,
                           int32_t list, int32_t unit, float* sums,
                           typename SharedLayout<Element, D, HeadTiles>::Fixed& fixed,
                           const WarpState<Element, D, HeadTiles>& state, const Result<D>& result) {
  using Layout = SharedLayout<Element, D, HeadTiles>;
  SyncCompute();  // every thread has read the previous list's data here
  state.Leave(sums, fixed);
  SyncCompute();

  const int32_t list_begin = plan.begin[list];
  const int32_t list_end = plan.begin[list + 1];
  const int32_t unit_begin = units.Begin(unit);
  const bool whole = list_begin >= unit_begin && list_end <= units.Begin(unit + 1);
  const Partial<D, HeadTiles> partial(args, unit, list_begin >= unit_begin);
  for (int quad = threadIdx.x; quad < result.group * (D / 4); quad += kComputeThreads) {
    const int head = quad / (D / 4);
    const int i = quad % (D / 4) * 4;
    const auto floor = whole ? result.FloorOf(args, head, i) : typename Result<D>::Floor{};
    float max = fixed.max[0][head];
    for (int w = 1; w < kComputeWarps; ++w) max = fmaxf(max, fixed.max[w][head]);
    float sum = 0.0f;
    float4 value = {};
    for (int w = 0; w < kComputeWarps; ++w) {
      const float factor = Exp2(fixed.max[w][head] - max);
      const float4 part = *reinterpret_cast<const float4*>(
          sums + (w * Layout::kHeads + head) * Layout::kSumStride + i);
      sum += factor * fixed.sum[w][head];
      AddScaled(value, factor, part);
    }
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

// Writes zeros as the output of padding rows.
template <int D>
__device__ void ClearPadding(const DecodeArgs& args) {
  const int64_t row_bytes = static_cast<int64_t>(args.num_query_heads) * D * SizeOfOut(args);
  for (int32_t i = blockIdx.x; i < args.num_lists / args.tile.num_kv_heads; i += gridDim.x) {
    const int32_t row = args.first_row + i;
    if (args.step.rows[row].role != RowRole::kPadding) continue;
    auto* out = reinterpret_cast<uint4*>(args.out + row * args.out_stride * SizeOfOut(args));
    for (int64_t at = threadIdx.x; at < row_bytes / 16; at += kComputeThreads) {
      out[at] = make_uint4(0, 0, 0, 0);
    }
  }
}

// CTAs of a multiprocessor: as many as its registers hold and the work needs. One CTA alone would
// wait most of the time. Two are enough for 16 bits; 8 bits arrive in half the time and need three.
template <typename Element, int D, int HeadTiles>
inline constexpr int kMostCtasPerSm =
    D == 128 && HeadTiles == 2                                   ? 1
    : D == 64 && HeadTiles == 1 && std::is_same_v<Element, E4M3> ? 3
                                                                 : 2;

// Steps 6 and 7 of the selection for the decode rows. The stages of all lists form one stream,
// whatever the rows' lengths. Units says which stages a CTA takes.
template <typename Element, int D, int HeadTiles>
__global__ void __launch_bounds__(kThreads, kMostCtasPerSm<Element, D, HeadTiles>)
    DecodeKernel(const __grid_constant__ DecodeArgs args) {
  using Layout = SharedLayout<Element, D, HeadTiles>;
  extern __shared__ __align__(128) std::byte shared[];
  std::byte* stages = shared;
  auto* sums = reinterpret_cast<float*>(stages + args.num_stages * Layout::kStageBytes);
  auto& fixed = *reinterpret_cast<typename Layout::Fixed*>(reinterpret_cast<std::byte*>(sums) +
                                                           Layout::kSumBytes);
  Plan plan(reinterpret_cast<int32_t*>(&fixed + 1), args.num_lists);
  if (threadIdx.x >= kComputeThreads) {
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < args.num_stages; ++i) {
        InitBarrier(&fixed.full[i], kCopyArrivals);
        InitBarrier(&fixed.empty[i], kComputeThreads);
      }
      PublishBarriers();
    }
    __syncwarp();
    plan.Make(args);
    AnnouncePlan();
    const Units units(plan.begin[args.num_lists], static_cast<int32_t>(gridDim.x));
    if (units.total > 0) CopyStages<Element, D, HeadTiles>(args, plan, units, stages, fixed);
    return;
  }
  AwaitPlan();
  WaitForPrevious();
  const Units units(plan.begin[args.num_lists], static_cast<int32_t>(gridDim.x));
  if (blockIdx.x == 0) {
    for (int32_t i = threadIdx.x; i <= args.num_lists; i += kComputeThreads) {
      args.begin[i] = plan.begin[i];
    }
  }
  ClearPadding<D>(args);
  if (units.total == 0) return;

  WarpState<Element, D, HeadTiles> state;
  Result<D> result;
  RingCursor cursor;
  const auto next_note = [&] {
    Wait(&fixed.full[cursor.slot], cursor.phase);
    return ReadNote(fixed.notes[cursor.slot].warps[threadIdx.x / 32]);
  };
  // The plan tells the first list before its first stage has arrived. If a CTA has no share, there
  // are no small units either, and the CTA has no work.
  const auto cta = static_cast<int32_t>(blockIdx.x);
  int32_t list = cta < units.num_shares ? plan.ListOf(units.Begin(cta)) : -1;
  while (list >= 0) {
    result = Result<D>(args, list);
    state.Start(args, result.row, result.kv_head);
    WarpNote note;
    do {
      note = next_note();
      if (note.valid() > 0) {
        const StageTokens<Element, D> tokens(stages + cursor.slot * Layout::kStageBytes);
        if (note.valid() < 16) {
          tokens.ClearMissing(note.valid());
          OrderWritesBeforeCopies();
          __syncwarp();
        }
        state.Add(args, note, tokens);
      }
      Arrive(&fixed.empty[cursor.slot]);  // all threads arrive: as fast as one per warp
      cursor.Advance(args.num_stages);
    } while (!note.Has(WarpNote::kLast));
    FinishList<Element, D, HeadTiles>(args, plan, units, note.list, note.unit, sums, fixed, state,
                                      result);
    list = next_note().list;
  }
}

// The number of stages that fit with `ctas_per_sm` CTAs on a multiprocessor. The system takes 1 KB
// of each CTA.
template <typename Element, int D, int HeadTiles>
int32_t RingStages(const Device& device, int32_t ctas_per_sm, int32_t num_lists) {
  using Layout = SharedLayout<Element, D, HeadTiles>;
  const size_t available = (device.shared_memory_per_block() + 1024) / ctas_per_sm - 1024;
  const size_t rest = Layout::Bytes(0, num_lists) + 256;  // static shared memory, alignment
  if (available < rest + Layout::kStageBytes) return 0;
  return std::min<int32_t>(kMaxStages,
                           static_cast<int32_t>((available - rest) / Layout::kStageBytes));
}

template <typename Element, int D, int HeadTiles>
void LaunchDecode(Context& context, const AttentionParams& params, const DeviceCounts& counts) {
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
  const uint32_t* pool_blocks = PoolBlocks(context, num_kv_heads, params.selection);
  if (partials == nullptr || counters == nullptr || pool_blocks == nullptr) return;
  for (int64_t first = 0; first < rows; first += rows_per_launch) {
    const auto num_lists =
        static_cast<int32_t>(std::min<int64_t>(rows_per_launch, rows - first) * num_kv_heads);
    int32_t ctas_per_sm = kMostCtasPerSm<Element, D, HeadTiles>;
    int32_t num_stages = RingStages<Element, D, HeadTiles>(context.device, ctas_per_sm, num_lists);
    while (num_stages < 3 && ctas_per_sm > 1) {
      --ctas_per_sm;
      num_stages = RingStages<Element, D, HeadTiles>(context.device, ctas_per_sm, num_lists);
    }
    const DecodeArgs args = {context.step,
                             static_cast<int32_t>(first),
                             num_lists,
                             params.q.data,
                             params.q.stride,
                             params.thresholds.data,
                             params.thresholds.stride,
                             params.kv.tiles,
                             params.kv.records,
                             params.selection,
                             pool_blocks,
                             counts.tokens_attended,
                             counts.tokens_read,
                             reinterpret_cast<std::byte*>(params.out.data),
                             params.out.stride,
                             params.out.dtype,
                             partials,
                             counters + 1,
                             counters,
                             params.num_query_heads,
                             num_stages,
                             std::countr_zero(static_cast<uint32_t>(params.geometry.block_size)),
                             params.gate == Gate::kSilu,
                             params.softmax_scale,
                             params.beta,
                             KvTile(params.geometry)};
    const auto ctas = static_cast<unsigned>(context.device.num_sms() * ctas_per_sm);
    Launch(context.device, "decode attention",
           {.grid = dim3(ctas),
            .block = dim3(kThreads),
            .shared_bytes = Layout::Bytes(num_stages, num_lists)},
           DecodeKernel<Element, D, HeadTiles>, args);
    const int32_t group = params.num_query_heads / num_kv_heads;
    const bool few = num_lists * group <= context.device.num_sms();
    const auto lists = static_cast<unsigned>(num_lists);
    const auto heads = static_cast<unsigned>(group);
    Launch(context.device, "merge",
           {.grid = few ? dim3(lists, heads) : dim3(lists, (heads + 1) / 2),
            .block = dim3(kMergeThreads)},
           few ? MergeKernel<D, HeadTiles, 1> : MergeKernel<D, HeadTiles, 2>, args,
           static_cast<int32_t>(ctas));
  }
}

template <typename Element, int D>
void LaunchDecode(Context& context, const AttentionParams& params, int32_t group,
                  const DeviceCounts& counts) {
  if (group <= 8) {
    LaunchDecode<Element, D, 1>(context, params, counts);
  } else {
    LaunchDecode<Element, D, 2>(context, params, counts);
  }
}

template <typename Element>
void LaunchDecode(Context& context, const AttentionParams& params, int32_t group,
                  const DeviceCounts& counts) {
  if (params.geometry.head_dim == 64) {
    LaunchDecode<Element, 64>(context, params, group, counts);
  } else if (params.geometry.head_dim == 96) {
    LaunchDecode<Element, 96>(context, params, group, counts);
  } else {
    LaunchDecode<Element, 128>(context, params, group, counts);
  }
}

}  // namespace
}  // namespace decode

void DecodeAttention(Context& context, const AttentionParams& params, const DeviceCounts& counts) {
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  if (!SupportsTensorCores(geometry.head_dim, geometry.block_size, group, geometry.dtype)) {
    PlainDecodeAttention(context, params);
  } else if (geometry.dtype == DType::kFloat16) {
    decode::LaunchDecode<Half>(context, params, group, counts);
  } else if (geometry.dtype == DType::kFloat8E4M3) {
    decode::LaunchDecode<E4M3>(context, params, group, counts);
  } else {
    decode::LaunchDecode<BFloat16>(context, params, group, counts);
  }
}

}  // namespace eta::cuda
