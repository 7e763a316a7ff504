// PrefillAttention computes attention of each prefill row from q [R, HQ * d] to out [R, HQ * d]:
// gated, over every causal key with nothing pruned (eta-semantics.md, "Gate"), or over the key
// tiles that SelectPrefillBlocks listed for the row's tile, each row over its own blocks of them
// ("Sparse prefill"), or in a layer with a window over the keys of the row's window ("Windows").
//
// The dependence between products, gate and exponentials binds, not the tensor cores.
// prefill_wgmma.cuh has the kernel for d = 64 on sm_90a, prefill_wide.cuh those for d = 256,
// prefill_mma.cuh the kernel for all other devices and head dimensions.
#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/device.h"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/prefill/prefill_mma.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"
#include "kernels/cuda/prefill/prefill_wgmma.cuh"
#include "kernels/cuda/prefill/prefill_wide.h"
#include "kernels/cuda/prefill/prefill_widen.h"

namespace eta::cuda {
namespace {

constexpr int32_t kMaxParts = 64;
constexpr int kMergeThreads = 256;
constexpr int kMergeSlices = 8;  // of a tile and KV head, a CTA each

// Whether this build carries code for sm_90a (CMake defines it from the list of architectures).
#ifdef ETA_CUDA_SM90A
constexpr bool kHasWgmma = true;
#else
constexpr bool kHasWgmma = false;
#endif

// Joins the parts of some queries of a tile and KV head in ascending order of keys.
__device__ __forceinline__ void MergeSlice(const PrefillParams& params, const PrefillWork& work,
                                           int32_t slice) {
  const PrefillTile tile = FindTile(params, work.tile, work.kv_head);
  if (tile.row_begin < 0 || tile.parts == 1) return;
  const int32_t d = params.geometry.head_dim;
  const Part first(params, work.tile, work.kv_head, 0);
  for (int32_t i = threadIdx.x; i < kTileQueries / kMergeSlices * (d / 4); i += kMergeThreads) {
    const int32_t query = slice * (kTileQueries / kMergeSlices) + i / (d / 4);
    const int32_t column = i % (d / 4) * 4;
    if (query >= tile.tokens * params.group) return;
    float maximum = kNoMaximum;
#pragma unroll 4
    for (int32_t p = 0; p < tile.parts; ++p) {
      maximum = fmaxf(maximum, first.After(params, p).maxima[query]);
    }
    float weight = 0.0f;
    float4 sum = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    const auto add = [&](float factor, const float4& values) {
      sum.x += factor * values.x;
      sum.y += factor * values.y;
      sum.z += factor * values.z;
      sum.w += factor * values.w;
    };
#pragma unroll 4
    for (int32_t p = 0; p < tile.parts; ++p) {
      const Part part = first.After(params, p);
      const float factor = Exp2(part.maxima[query] - maximum);
      weight += factor * part.weights[query];
      add(factor, *reinterpret_cast<const float4*>(part.sums + query * d + column));
    }
    const int64_t row = tile.row_begin + query / params.group;
    const int64_t head = work.kv_head * params.group + query % params.group;
    if (HasFloor(params, tile, work.kv_head, query)) {
      const FloorOfRow floor(params, row, work.kv_head);
      const float share = Exp2(kWeightShift - maximum);
      weight += share * floor.keys;
      add(share, *reinterpret_cast<const float4*>(floor.values + column));
    }
    weight += SinkWeight(params, static_cast<int32_t>(head), maximum);
    if (weight == 0.0f) weight = 1.0f;  // a row without any key gets zeros
    const int64_t at = row * params.out_stride + head * d + column;
    StorePair(params.out, params.out_dtype, at, sum.x / weight, sum.y / weight);
    StorePair(params.out, params.out_dtype, at + 2, sum.z / weight, sum.w / weight);
  }
}

__global__ void __launch_bounds__(kMergeThreads)
    MergeParts(const __grid_constant__ PrefillParams params) {
  WaitForPrevious();
  const uint32_t units = params.admitted.entries != nullptr
                             ? params.admitted.plan->cut_lists * kMergeSlices
                             : gridDim.x;
  for (uint32_t unit = blockIdx.x; unit < units; unit += gridDim.x) {
    MergeSlice(params, CutList(params, unit / kMergeSlices),
               static_cast<int32_t>(unit % kMergeSlices));
  }
}

// The number of parts that keeps the device's `slots` CTAs busiest. Every further part costs about
// 1 % in starting and merging.
int32_t ChooseParts(int64_t items, int64_t slots) {
  int32_t best = 1;
  double best_share = 0.0;
  for (int32_t parts = 1; parts <= kMaxParts && items * parts <= 4 * slots; ++parts) {
    const int64_t waves = (items * parts + slots - 1) / slots;
    const double share =
        static_cast<double>(items * parts) / static_cast<double>(waves * slots) - 0.01 * parts;
    if (share > best_share) {
      best_share = share;
      best = parts;
    }
  }
  return best;
}

// All arguments but the sequences, their keys and the parts.
PrefillParams Prepare(const Context& context, const AttentionParams& params) {
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  PrefillParams prefill = {};
  prefill.step = context.step;
  prefill.q = params.q.data;
  prefill.q_stride = params.q.stride;
  prefill.thresholds = params.thresholds.data;
  prefill.thresholds_stride = params.thresholds.stride;
  prefill.sinks = params.sinks;
  prefill.out = params.out.data;
  prefill.out_stride = params.out.stride;
  prefill.out_dtype = params.out.dtype;
  prefill.geometry = params.geometry;
  prefill.records = params.kv.records;
  prefill.group = group;
  prefill.tile_tokens = kTileQueries / group;
  prefill.softmax_scale = params.softmax_scale;
  prefill.beta = params.beta;
  prefill.window = params.window;
  prefill.gated = params.gate == Gate::kSilu && params.window == 0;
  return prefill;
}

template <typename Element, int kHeadDim, bool kPrecise, int kPieces>
void LaunchMma(Context& context, const PrefillParams& params, uint32_t blocks) {
  Launch(context.device, "prefill attention",
         {.grid = blocks, .block = kMmaThreads, .shared_bytes = MmaShape<kHeadDim>::kSharedBytes},
         PrefillMma<Element, kHeadDim, kPrecise, kPieces>, params);
}

template <typename Element, int kPieces>
void LaunchWgmma(Context& context, const PrefillParams& params, uint32_t blocks) {
  const LaunchShape shape = {
      .grid = blocks, .block = kWgmmaThreads, .shared_bytes = WgmmaShape<Element>::kSharedBytes};
  if constexpr (kPieces <= 0) {
    Launch(context.device, "prefill attention", shape, PrefillWgmma<Element, kPieces>, params);
  } else {
    Launch(context.device, "prefill attention", shape, SparsePrefillWgmma<Element, kPieces>,
           params);
  }
}

template <typename Element, bool kPrecise, int kPieces>
void LaunchForDim(Context& context, const PrefillParams& params, uint32_t blocks) {
  switch (params.geometry.head_dim) {
    case 64:
      if constexpr (kHasWgmma && !kPrecise) {
        if (context.device.compute_capability() == 90) {
          return LaunchWgmma<Element, kPieces>(context, params, blocks);
        }
      }
      return LaunchMma<Element, 64, kPrecise, kPieces>(context, params, blocks);
    case 96:
      return LaunchMma<Element, 96, kPrecise, kPieces>(context, params, blocks);
    default:
      return LaunchMma<Element, 128, kPrecise, kPieces>(context, params, blocks);
  }
}

// float32 outputs ask for precision, since their model computes in float32.
template <typename Element, int kPieces>
void LaunchForPrecision(Context& context, const PrefillParams& params, uint32_t blocks) {
  if (params.out_dtype == DType::kFloat32) {
    LaunchForDim<Element, true, kPieces>(context, params, blocks);
  } else {
    LaunchForDim<Element, false, kPieces>(context, params, blocks);
  }
}

void LaunchAttention(Context& context, const PrefillParams& params, uint32_t blocks) {
  if (params.geometry.head_dim == kWideHeadDim) return LaunchWidePrefill(context, params, blocks);
  WithElementAndPieces(params, [&](auto element, auto pieces) {
    LaunchForPrecision<decltype(element), pieces()>(context, params, blocks);
  });
}

// The attention tiles of `sequences` that are of sparse prefill, or of full prefill; with a window
// all are of the latter.
int32_t CountTiles(std::span<const StepSequence> sequences, int32_t group, int32_t window,
                   bool sparse) {
  int32_t tiles = 0;
  for (const StepSequence& sequence : sequences) {
    const bool is_sparse = sequence.sparse != 0 && window == 0;
    if (sequence.role != RowRole::kPrefill || is_sparse != sparse) continue;
    tiles += AttentionTiles(sequence.num_rows, group);
  }
  return tiles;
}

// Attends for `tiles` tiles of the sequences of `prefill`.
void AttendTiles(Context& context, PrefillParams prefill, int32_t tiles) {
  const KvGeometry& geometry = prefill.geometry;
  const int64_t items = int64_t{tiles} * geometry.num_kv_heads;
  if (items == 0) return;
  int64_t blocks = prefill.admitted.max_parts;
  int64_t results = prefill.admitted.max_results;
  if (prefill.admitted.entries == nullptr) {
    prefill.max_parts =
        ChooseParts(items, PrefillCtas(geometry.head_dim) * context.device.num_sms());
    blocks = items * prefill.max_parts;
    results = prefill.max_parts > 1 ? blocks : 0;
  }
  if (results > 0) {
    const size_t part_bytes = kTileQueries * (geometry.head_dim + 2) * sizeof(float);
    std::byte* partials =
        context.scratch.Get(Scratch::Use::kPartials, static_cast<size_t>(results) * part_bytes);
    if (partials == nullptr) return;
    prefill.partials = reinterpret_cast<float*>(partials);
  }
  LaunchAttention(context, prefill, static_cast<uint32_t>(blocks));
  if (results > 0) {
    // Few lists are cut.
    const int64_t lists = prefill.admitted.entries != nullptr
                              ? std::min<int64_t>(results / 2, prefill.admitted.slots / 4)
                              : items;
    Launch(context.device, "merge of prefill attention",
           {.grid = static_cast<uint32_t>(lists * kMergeSlices), .block = kMergeThreads},
           MergeParts, prefill);
  }
}

// Attends for the rows of `sequences`, neighbours in the step; `prefill` has their keys.
// `admitted`: the lists of the step, if it has any.
void Attend(Context& context, PrefillParams prefill, const AdmittedTiles& admitted,
            std::span<const StepSequence> sequences) {
  const auto begin = sequences.data() - context.sequences.data();
  prefill.sequences = context.step.sequences + begin;
  prefill.num_sequences = static_cast<int32_t>(sequences.size());
  const auto count = [&](std::span<const StepSequence> among, bool sparse) {
    return CountTiles(among, prefill.group, prefill.window, sparse);
  };
  AttendTiles(context, prefill, count(sequences, /*sparse=*/false));
  prefill.admitted = admitted;
  prefill.admitted.first_tile =
      count(context.sequences.first(static_cast<size_t>(begin)), /*sparse=*/true);
  AttendTiles(context, prefill, count(sequences, /*sparse=*/true));
}

}  // namespace

void PrefillAttention(Context& context, const AttentionParams& params) {
  const auto is_prefill = [](const StepSequence& s) { return s.role == RowRole::kPrefill; };
  if (std::ranges::none_of(context.sequences, is_prefill)) return;
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const bool sparse = CountTiles(context.sequences, group, params.window, /*sparse=*/true) > 0;
  if (!AttendsOnTensorCores(context.device, params)) {
    PlainPrefillAttention(context, params);
    return;
  }
  AdmittedTiles admitted;
  if (sparse) {
    admitted = AdmittedTilesOf(context, geometry, params.num_query_heads);
    if (admitted.entries == nullptr) return;
  }
  PrefillParams prefill = Prepare(context, params);
  if (geometry.dtype != DType::kFloat8E4M3) {
    prefill.tiles = params.kv.tiles;
    prefill.tables = context.step.tables;
    Attend(context, prefill, admitted, context.sequences);
    return;
  }
  std::span<const StepSequence> rest = context.sequences;
  for (auto some = TakeWideRun(geometry, rest); !some.empty(); some = TakeWideRun(geometry, rest)) {
    const WideTiles wide = Widen(context, geometry, params.kv, params.window, some);
    if (wide.tiles == nullptr) return;
    prefill.geometry = wide.geometry;
    prefill.tiles = wide.tiles;
    prefill.tables = wide.tables;
    prefill.tables_begin = some.front().table_begin;
    Attend(context, prefill, admitted, some);
  }
}

}  // namespace eta::cuda
