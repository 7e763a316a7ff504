// What the thread blocks of decode attention share, whichever stages they take: their memory, their
// barriers, and the stages of one list, from the ring into the sums of the four warps.
#pragma once

#include <algorithm>
#include <bit>
#include <type_traits>

#include "kernels/cuda/decode/decode_merge.cuh"
#include "kernels/cuda/decode/decode_softmax.cuh"
#include "kernels/cuda/decode/decode_stages.cuh"
#include "kernels/cuda/host/device.h"
#include "kernels/cuda/host/ops.h"

namespace eta::cuda::decode {

// CTAs of a multiprocessor: as many as its registers hold and the work needs. One CTA alone would
// wait most of the time. Two are enough for 16 bits; 8 bits arrive in half the time and need three.
// A CTA of two halves has as many warps as two.
template <typename Element, int D, int HeadTiles, int Halves = 0>
inline constexpr int kMostCtasPerSm = (D == 128 && HeadTiles == 2) || D == kWideHeadDim ? 1
                                      : kTwoHalves<Halves>                              ? 1
                                      : D == 64 && HeadTiles == 1 && std::is_same_v<Element, E4M3>
                                          ? 3
                                          : 2;

// The number of stages that fit with `ctas_per_sm` CTAs on a multiprocessor, each with
// `static_bytes` of other shared memory. The system takes 1 KB of each CTA.
template <typename Element, int D, int HeadTiles, int Halves = 0>
int32_t RingStages(const Device& device, int32_t ctas_per_sm, int32_t num_lists,
                   size_t static_bytes = 0) {
  using Layout = SharedLayout<Element, D, HeadTiles, Halves>;
  const size_t available = (device.shared_memory_per_block() + 1024) / ctas_per_sm - 1024;
  const size_t rest = Layout::Bytes(0, num_lists) + static_bytes + 256;  // 256: alignment
  if (available < rest + Layout::kStageBytes) return 0;
  return std::min<int32_t>(kMaxStages,
                           static_cast<int32_t>((available - rest) / Layout::kStageBytes));
}

// Calls visit(Element(), head_dim, head_tiles), the latter two integral constants. REQUIRES:
// AttendsOnTensorCores().
template <typename Visit>
void WithShape(const KvGeometry& geometry, int32_t group, Visit&& visit) {
  const auto with_dim = [&](auto element, auto head_dim) {
    if (group <= 8) {
      visit(element, head_dim, std::integral_constant<int, 1>());
    } else {
      visit(element, head_dim, std::integral_constant<int, 2>());
    }
  };
  const auto with_element = [&](auto element) {
    if (geometry.head_dim == 64) {
      with_dim(element, std::integral_constant<int, 64>());
    } else if (geometry.head_dim == 96) {
      with_dim(element, std::integral_constant<int, 96>());
    } else if (geometry.head_dim == kWideHeadDim) {
      visit(element, std::integral_constant<int, kWideHeadDim>(), std::integral_constant<int, 1>());
    } else {
      with_dim(element, std::integral_constant<int, 128>());
    }
  };
  if (geometry.dtype == DType::kFloat16) {
    with_element(Half());
  } else if (geometry.dtype == DType::kFloat8E4M3) {
    with_element(E4M3());
  } else {
    with_element(BFloat16());
  }
}

// The arguments of a launch over lists 0 .. num_lists - 1 behind row `first_row`, without the
// memory of partial results. Pool blocks are null with a window, and if the device has no memory.
inline DecodeArgs MakeDecodeArgs(Context& context, const AttentionParams& params,
                                 const DeviceCounts& counts, int32_t first_row, int32_t num_lists,
                                 int32_t num_stages) {
  return {.step = context.step,
          .first_row = first_row,
          .num_lists = num_lists,
          .q = params.q.data,
          .q_stride = params.q.stride,
          .thresholds = params.thresholds.data,
          .thresholds_stride = params.thresholds.stride,
          .sinks = params.sinks,
          .tiles = params.kv.tiles,
          .records = params.kv.records,
          .selection = params.selection,
          .pool_blocks = params.window > 0
                             ? nullptr
                             : PoolBlocks(context, params.geometry.num_kv_heads, params.selection),
          .tokens_attended = counts.tokens_attended,
          .tokens_read = counts.tokens_read,
          .values_read = counts.values_read,
          .out = reinterpret_cast<std::byte*>(params.out.data),
          .out_stride = params.out.stride,
          .out_dtype = params.out.dtype,
          .partials = nullptr,
          .begin = nullptr,
          .taken = nullptr,
          .num_query_heads = params.num_query_heads,
          .num_stages = num_stages,
          .block_shift = std::countr_zero(static_cast<uint32_t>(params.geometry.block_size)),
          .gated = params.gate == Gate::kSilu && params.window == 0,
          .window = params.window,
          .all = false,
          .early = false,
          .scale = params.softmax_scale,
          .beta = params.beta,
          .tile = KvTile(params.geometry)};
}

// A CTA's dynamic shared memory as SharedLayout has it.
template <typename Element, int D, int HeadTiles, int Halves = 0>
struct CtaMemory {
  using Layout = SharedLayout<Element, D, HeadTiles, Halves>;
  std::byte* stages;
  float* sums;
  typename Layout::Fixed& fixed;
  Plan plan;

  __device__ CtaMemory(const DecodeArgs& args, std::byte* shared)
      : stages(shared),
        sums(reinterpret_cast<float*>(shared + args.num_stages * Layout::kStageBytes)),
        fixed(*reinterpret_cast<typename Layout::Fixed*>(reinterpret_cast<std::byte*>(sums) +
                                                         Layout::kSumBytes)),
        plan(reinterpret_cast<int32_t*>(&fixed + 1), args.num_lists) {}

  // The copying warp calls it.
  __device__ void InitRing(int32_t num_stages) {
    if (threadIdx.x % 32 == 0) {
      for (int i = 0; i < num_stages; ++i) {
        InitBarrier(&fixed.full[i], kCopyArrivals);
        InitBarrier(&fixed.empty[i], Layout::kParts * kComputeThreads);
      }
      PublishBarriers();
    }
    __syncwarp();
  }
};

// Two halves of many columns need more registers than the 168 that every thread of their thread
// block may have at first, and the copying warpgroup fewer.
template <int D, int HeadTiles, int Halves>
inline constexpr bool kMovesRegisters = kTwoHalves<Halves>&& HeadTiles* D >= 192;
inline constexpr int kCopyRegisters = 72;
inline constexpr int kComputeRegisters = 216;
template <int Count>
__device__ __forceinline__ void GiveRegisters() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}
template <int Count>
__device__ __forceinline__ void TakeRegisters() {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
#endif
}

// The computing threads that join their sums: those of a half, or of both if these share stages.
template <int Halves>
inline constexpr int kJoiningThreads = (Halves == kShareStages ? 2 : 1) * kComputeThreads;
template <int Halves>
__device__ __forceinline__ int JoiningThread() {
  return static_cast<int>(threadIdx.x) + (Halves == kShareStages ? OwnHalf() * kComputeThreads : 0);
}

// They meet.
template <int Halves = 0>
__device__ __forceinline__ void SyncCompute() {
  if (Halves == kShareColumns && OwnHalf() == 1) {
    asm volatile("bar.sync 3, %0;" ::"n"(kJoiningThreads<Halves>) : "memory");
  } else {
    asm volatile("bar.sync 1, %0;" ::"n"(kJoiningThreads<Halves>) : "memory");
  }
}

// The copying warp calls AnnouncePlan and goes on. The computing warps wait in AwaitPlan until the
// plan and the barriers are there.
template <int Halves = 0>
inline constexpr int kPlanThreads = kThreads + (kTwoHalves<Halves> ? kComputeThreads : 0);
template <int Halves = 0>
__device__ __forceinline__ void AnnouncePlan() {
  asm volatile("bar.arrive 2, %0;" ::"n"(kPlanThreads<Halves>) : "memory");
}
template <int Halves = 0>
__device__ __forceinline__ void AwaitPlan() {
  asm volatile("bar.sync 2, %0;" ::"n"(kPlanThreads<Halves>) : "memory");
}

// Writes zeros as the output of padding rows, of those from args.first_row on. Computing warps, of
// one half, call it.
template <int D>
__device__ void ClearPadding(const DecodeArgs& args, int32_t num_rows) {
  const int64_t element = args.out_dtype == DType::kFloat32 ? 4 : 2;
  const int64_t row_bytes = static_cast<int64_t>(args.num_query_heads) * D * element;
  for (int32_t i = blockIdx.x; i < num_rows; i += gridDim.x) {
    const int32_t row = args.first_row + i;
    if (args.step.rows[row].role != RowRole::kPadding) continue;
    auto* out = reinterpret_cast<uint4*>(args.out + row * args.out_stride * element);
    for (int64_t at = threadIdx.x; at < row_bytes / 16; at += kComputeThreads) {
      out[at] = make_uint4(0, 0, 0, 0);
    }
  }
}

// Writes the counts that SelectBlocks would write for rows that read everything, of `num_lists`
// pairs (row, KV head) from args.first_row on. Computing warps of one CTA, of one half, call it.
__device__ inline void CountAll(const DecodeArgs& args, int32_t num_lists) {
  const int32_t kv_heads = args.tile.num_kv_heads;
  const int32_t group = args.num_query_heads / kv_heads;
  for (int32_t i = threadIdx.x; i < num_lists; i += kComputeThreads) {
    const int64_t list = int64_t{args.first_row} * kv_heads + i;
    const StepRow& row = args.step.rows[list / kv_heads];
    const int32_t tokens = row.role == RowRole::kDecode ? row.position + 1 : 0;
    args.selection.counts[list] = tokens >> args.block_shift;
    if (tokens == 0) continue;
    args.tokens_read[list] = tokens;
    if (args.values_read != nullptr) args.values_read[list] = tokens;
    for (int32_t head = 0; head < group; ++head) args.tokens_attended[list * group + head] = tokens;
  }
}

// Adds the stages of a list, or of a unit's part of it, to the warp's state. Returns the last note.
template <typename Element, int D, int HeadTiles, int Halves>
__device__ __forceinline__ WarpNote AddList(const DecodeArgs& args,
                                            CtaMemory<Element, D, HeadTiles, Halves>& memory,
                                            RingCursor& cursor,
                                            WarpState<Element, D, HeadTiles, Halves>& state) {
  using Layout = SharedLayout<Element, D, HeadTiles, Halves>;
  WarpNote note;
  bool takes = Halves != kShareStages || OwnHalf() == 0;
  do {
    Wait(&memory.fixed.full[cursor.slot], cursor.phase);
    note = ReadNote(memory.fixed.notes[cursor.slot].warps[threadIdx.x / 32]);
    if (takes && note.valid() > 0 && (Halves == 0 || state.live_tiles > 0)) {
      const StageTokens<Element, D> tokens(memory.stages + cursor.slot * Layout::kStageBytes);
      if (note.valid() < 16) {
        tokens.ClearMissing(note.valid());
        OrderWritesBeforeCopies();
        __syncwarp();
      }
      if constexpr (Halves > 0 && HeadTiles > 1) {
        if (state.live_tiles == 1) {
          state.template Add<1>(args, note, tokens);
        } else {
          state.Add(args, note, tokens);
        }
      } else {
        state.Add(args, note, tokens);
      }
    }
    Arrive(&memory.fixed.empty[cursor.slot]);  // all threads arrive: as fast as one per warp
    cursor.Advance(args.num_stages);
    if (Halves == kShareStages) takes = !takes;
  } while (!note.Has(WarpNote::kLast));
  return note;
}

// Joins what the warps of the joining threads left (WarpState::Leave) for elements i .. i + 3 of a
// head, or column of the half.
template <typename Element, int D, int HeadTiles, int Halves>
__device__ __forceinline__ void JoinWarps(const CtaMemory<Element, D, HeadTiles, Halves>& memory,
                                          int head, int i, float& max, float& sum, float4& value) {
  using Layout = SharedLayout<Element, D, HeadTiles, Halves>;
  constexpr int kWarps = kJoiningThreads<Halves> / 32;
  const int first = Halves == kShareColumns ? OwnHalf() * kComputeWarps : 0;
  max = memory.fixed.max[first][head];
  for (int w = first + 1; w < first + kWarps; ++w) {
    max = fmaxf(max, memory.fixed.max[w][head]);
  }
  sum = 0.0f;
  value = {};
  for (int w = first; w < first + kWarps; ++w) {
    const float factor = Exp2(memory.fixed.max[w][head] - max);
    const float4 part = *reinterpret_cast<const float4*>(
        memory.sums + (w * Layout::kHeads + head) * Layout::kSumStride + i);
    sum += factor * memory.fixed.sum[w][head];
    AddScaled(value, factor, part);
  }
}

}  // namespace eta::cuda::decode
