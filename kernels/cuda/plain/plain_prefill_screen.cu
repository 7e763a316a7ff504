// Screening of rows of sparse prefill for any geometry and type (eta-semantics.md, "Sparse
// prefill", "Selection", steps 1 to 5, and "Relative thresholds"): the masks of each row's heads,
// and their counts. A CTA has a row and KV head, a warp a block at a time. Exact and slow.

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/plain_products.cuh"
#include "kernels/cuda/select/row_threshold.cuh"
#include "kernels/cuda/select/screen.cuh"

namespace eta::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kWordBlocks = 64;

// What the warps of a CTA hand to each other.
struct Shared {
  RowMass<kWarps> mass;
  float terms[kWarps][kMaxGroup];  // log-sum-exp of the terms of Lhat that a warp took
  unsigned long long best[kMaxGroup];
  uint32_t heads[kWordBlocks];  // that admit a block of the word
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    PlainPrefillScreenKernel(const __grid_constant__ PrefillScreenArgs args) {
  extern __shared__ __align__(16) float queries[];  // [G up to a multiple of 4, d]
  __shared__ __align__(16) Shared shared;
  WaitForPrevious();
  const KvTile& tile = args.tile;
  const auto row_index = static_cast<int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const StepRow row = args.step.rows[row_index];
  if (row.role != RowRole::kPrefill || args.step.sequences[row.sequence].sparse == 0) return;
  const int32_t group = args.group();
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32;
  const int32_t warp = thread / 32;
  const int32_t num_keys = row.position + 1;
  const int32_t num_full = num_keys / tile.block_size;
  const int32_t* table = args.step.tables + row.table_begin;
  const AlwaysRead always(row.attention.sink_blocks, row.attention.pinned_blocks, num_full);
  const int64_t first_head =
      static_cast<int64_t>(row_index) * args.num_query_heads + int64_t{kv_head} * group;
  float* thresholds =
      args.thresholds + row_index * args.thresholds_stride + int64_t{kv_head} * group;

  // Reads the queries, too.
  const RowMassArgs mass_args = {.q = args.q,
                                 .q_stride = args.q_stride,
                                 .thresholds = args.thresholds,
                                 .thresholds_stride = args.thresholds_stride,
                                 .tiles = args.tiles,
                                 .tile = tile,
                                 .softmax_scale = args.scale,
                                 .masses = {},
                                 .sinks = nullptr};
  const RowList at = {row_index, kv_head, group, num_full, num_keys % tile.block_size, table};
  SumAlwaysRead<T>(mass_args, at, always, queries, shared.mass);
  if (thread < kMaxGroup) shared.best[thread] = 0;
  __syncthreads();
  const QueryTerms query =
      TermsOf(queries, group, tile.head_dim,
              args.centre != nullptr ? args.centre + kv_head * tile.head_dim : nullptr);
  const float* head_z = HeadZ(args.step, row, args.num_query_heads, int64_t{kv_head} * group);
  const float z = head_z != nullptr && lane < group ? head_z[lane] : row.attention.z;
  const bool relative = row.attention.relative;
  const auto screen = [&](int32_t block) {
    const std::byte* record =
        args.records + static_cast<size_t>(table[block]) * tile.record_bytes();
    return ScreenRecord(queries, group, tile, record, kv_head, query, z, relative, args.rule,
                        args.scale);
  };

  float threshold = 0.0f;  // of head `lane`
  if (relative) {
    LogSum terms;
    for (int32_t block = always.first + warp; block < always.end; block += kWarps) {
      terms.Add(screen(block).term);
    }
    shared.terms[warp][lane] = terms.Log();
    __syncthreads();
    LogSum of_row;
    if (args.sinks != nullptr && lane < group) {
      of_row.Add(args.sinks[kv_head * group + lane] * kLog2E);
    }
    for (int i = 0; i < kWarps; ++i) {
      of_row.Add(shared.mass.of_warps[i][lane]);
      of_row.Add(shared.terms[i][lane]);
    }
    threshold = of_row.Log() * kLn2 + row.attention.relative_c;
    if (warp == 0 && lane < group) thresholds[lane] = threshold;
    threshold = (threshold - row.attention.offset) * kLog2E;
  } else if (lane < group) {
    threshold = thresholds[lane] - row.attention.offset;
  }

  // Thread g has the mask of head g.
  const int32_t chunk = min(max(row.attention.rescue_chunk, 0), num_full);
  int32_t attended = 0;
  int32_t seen = 0;
  bool early = false;
  for (int32_t first = 0; first < num_full; first += kWordBlocks) {
    const int32_t end = min(first + kWordBlocks, num_full);
    for (int32_t block = first + warp; block < end; block += kWarps) {
      const float value = screen(block).value;
      const bool admits = always.Has(block) || value >= threshold;
      const uint32_t heads = __ballot_sync(~0u, lane < group && admits);
      if (lane == 0) shared.heads[block - first] = heads;
      if (lane < group && block < chunk) {
        atomicMax(&shared.best[lane], static_cast<unsigned long long>(BoundKey(value, block)));
      }
    }
    __syncthreads();
    if (thread < group) {
      uint64_t own = 0;
      uint64_t any = 0;
      for (int32_t block = first; block < end; ++block) {
        const uint32_t heads = shared.heads[block - first];
        own |= static_cast<uint64_t>(heads >> thread & 1) << (block - first);
        any |= static_cast<uint64_t>(heads != 0 ? 1 : 0) << (block - first);
        early = early || (block < chunk && (heads >> thread & 1) != 0);
      }
      const uint64_t mask = row.attention.shared_reads ? any : own;
      attended += __popcll(own);
      seen += __popcll(mask);
      args.admitted[(first_head + thread) * args.words + first / kWordBlocks] = mask;
    }
    __syncthreads();
  }
  __shared__ int32_t rescued[kMaxGroup];
  if (thread < group) {
    rescued[thread] = chunk > 0 && !early ? BlockOfKey(shared.best[thread]) : -1;
    if (rescued[thread] >= 0) ++attended;
  }
  __syncthreads();
  if (thread >= group) return;
  uint64_t* masks = args.admitted + (first_head + thread) * args.words;
  for (int64_t i = (num_full + kWordBlocks - 1) / kWordBlocks; i < args.words; ++i) masks[i] = 0;
  for (int32_t g = 0; g < group; ++g) {
    const int32_t block = rescued[g];
    if (block < 0 || (g != thread && !row.attention.shared_reads)) continue;
    const uint64_t bit = uint64_t{1} << (block % kWordBlocks);
    if ((masks[block / kWordBlocks] & bit) == 0) ++seen;
    masks[block / kWordBlocks] |= bit;
  }
  args.tokens_attended[first_head + thread] = num_keys - (num_full - attended) * tile.block_size;
  args.prunes[first_head + thread] = seen < num_full ? 1 : 0;
}

}  // namespace

void PlainScreenPrefill(Context& context, const PrefillScreenArgs& args) {
  const int32_t padded_group = (args.group() + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  const LaunchShape shape = {
      .grid = dim3(static_cast<unsigned>(context.step.num_rows),
                   static_cast<unsigned>(args.tile.num_kv_heads)),
      .block = dim3(kThreads),
      .shared_bytes = static_cast<size_t>(padded_group * args.tile.head_dim) * sizeof(float)};
  WithCacheType(args.dtype, [&](auto element) {
    Launch(context.device, "PlainScreenPrefill", shape, PlainPrefillScreenKernel<decltype(element)>,
           args);
  });
}

}  // namespace eta::cuda
