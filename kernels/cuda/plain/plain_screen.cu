// Screening, the first part of SelectBlocks, for any geometry and type (eta-semantics.md,
// "Selection", steps 1 and 2, and "Relative thresholds"). A warp takes a block; its lanes are
// spread over the head dimension. Exact and slow.

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/select/plain_products.cuh"
#include "kernels/cuda/select/screen.cuh"
#include "kernels/cuda/select/screen_items.cuh"

namespace eta::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCtasPerSm = 4;

// The row whose screening work holds piece `unit`: the last one with begin[row] <= unit. All lanes
// of the warp call it with the same arguments. It narrows the range 32-fold at a time, since each
// pass costs a trip to L2.
__device__ __forceinline__ int32_t RowOfUnit(const int32_t* begin, int32_t num_rows, int32_t unit) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  int32_t low = 0;
  int32_t count = num_rows;
  while (count > 1) {
    const int32_t step = (count + 31) / 32;
    const bool reached = lane * step < count && begin[low + lane * step] <= unit;
    const int32_t last = 31 - __clz(static_cast<int32_t>(__ballot_sync(0xffffffffu, reached)));
    low += last * step;
    count = min(step, count - last * step);
  }
  return low;
}

// Writes the sums of the terms of Lhat over every kMassBlocks of the unit's blocks, from `begin`
// on. terms: [kScreenBlocks][group]. sums: [group, pieces] of the list.
__device__ __forceinline__ void SumTerms(const float* terms, const MassScratch& scratch,
                                         int32_t begin, int32_t end, int32_t group, float* sums) {
  constexpr int32_t kPieces = kScreenBlocks / kMassBlocks;
  for (int32_t i = threadIdx.x; i < kPieces * group; i += kThreads) {
    const int32_t piece = i / group;
    const int32_t head = i % group;
    const int32_t first = begin + piece * kMassBlocks;
    if (first >= end) continue;
    LogSum sum;
    for (int32_t block = first; block < min(first + kMassBlocks, end); ++block) {
      sum.Add(terms[(block - begin) * group + head]);
    }
    sums[static_cast<int64_t>(head) * scratch.pieces + first / kMassBlocks] = sum.Log();
  }
}

__global__ void __launch_bounds__(kThreads)
    PlainScreenKernel(const __grid_constant__ ScreenArgs args) {
  extern __shared__ float queries[];  // [G, d], then the terms [kScreenBlocks, G]
  WaitForPrevious();
  const KvTile& tile = args.tile;
  const int32_t num_kv_heads = tile.num_kv_heads;
  const int32_t group = args.num_query_heads / num_kv_heads;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  float* terms = queries + group * tile.head_dim;
  const int64_t items = static_cast<int64_t>(args.step.counts->screen_units) * num_kv_heads;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const auto unit = static_cast<int32_t>(item / num_kv_heads);
    const auto kv_head = static_cast<int32_t>(item % num_kv_heads);
    const int32_t row_index = RowOfUnit(args.step.screen_begin, args.step.num_rows, unit);
    const StepRow row = args.step.rows[row_index];
    const int32_t first_head = kv_head * group;

    const float* q = args.q + row_index * args.q_stride + first_head * tile.head_dim;
    __syncthreads();  // all threads have read the last item's queries
    for (int32_t i = threadIdx.x; i < group * tile.head_dim; i += kThreads) queries[i] = q[i];
    __syncthreads();
    const QueryTerms query =
        TermsOf(queries, group, tile.head_dim,
                args.centre != nullptr ? args.centre + kv_head * tile.head_dim : nullptr);
    const float threshold =
        lane < group ? args.thresholds[row_index * args.thresholds_stride + first_head + lane] -
                           row.attention.offset
                     : 0.0f;
    const float* head_z = HeadZ(args.step, row, args.num_query_heads, first_head);
    const float z = head_z != nullptr && lane < group ? head_z[lane] : row.attention.z;

    const int64_t list = static_cast<int64_t>(row_index) * num_kv_heads + kv_head;
    const int32_t num_full = (row.position + 1) / tile.block_size;
    const int32_t begin = (unit - args.step.screen_begin[row_index]) * kScreenBlocks;
    const int32_t end = min(begin + kScreenBlocks, num_full);
    const AlwaysRead always(row.attention.sink_blocks, row.attention.pinned_blocks, num_full);
    const bool relative = row.attention.relative;
    uint64_t best = 0;
    for (int32_t block = begin + warp; block < end; block += kWarps) {
      const int32_t physical = args.step.tables[row.table_begin + block];
      const std::byte* record = args.records + static_cast<size_t>(physical) * tile.record_bytes();
      const ScreenedBlock screened = ScreenRecord(queries, group, tile, record, kv_head, query, z,
                                                  relative, args.rule, args.scale);
      const float compared = screened.value;
      if (relative) {
        if (lane < group) {
          args.masses.Masses(list)[static_cast<int64_t>(block) * args.masses.stride + lane] =
              compared;
          terms[(block - begin) * group + lane] = always.Has(block) ? -INFINITY : screened.term;
        }
      } else {
        const uint32_t mask = __ballot_sync(~0u, lane < group && compared >= threshold);
        if (lane == 0) args.masks[list * args.capacity + block] = mask;
      }
      if (lane < group && block < row.attention.rescue_chunk) {
        const uint64_t key = BoundKey(compared, block);
        best = key > best ? key : best;
      }
    }
    if (best != 0) {
      atomicMax(
          args.best + static_cast<int64_t>(row_index) * args.num_query_heads + first_head + lane,
          static_cast<unsigned long long>(best));
    }
    if (!relative) continue;
    __syncthreads();
    SumTerms(terms, args.masses, begin, end, group,
             args.masses.sums + list * group * args.masses.pieces);
  }
}

}  // namespace

void PlainScreen(Context& context, const ScreenArgs& args) {
  const int32_t group = args.num_query_heads / args.tile.num_kv_heads;
  const int32_t floats = group * (args.tile.head_dim + kScreenBlocks);
  Launch(context.device, "PlainScreen",
         {.grid = dim3(static_cast<unsigned>(context.device.num_sms() * kCtasPerSm)),
          .block = dim3(kThreads),
          .shared_bytes = static_cast<size_t>(floats) * sizeof(float)},
         PlainScreenKernel, args);
}

}  // namespace eta::cuda
