// Screening, the first part of SelectBlocks, for any geometry and type (eta-semantics.md,
// "Selection", steps 1 and 2). A warp takes a block; its lanes are spread over the head dimension.
// Exact and slow.

#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/select/plain_products.cuh"
#include "kernels/cuda/select/screen.cuh"

namespace eta::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCtasPerSm = 4;

struct ScreenArgs {
  StepView step;
  SelectBlocksParams params;
  unsigned long long* best;  // [R, HQ]
};

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

__global__ void __launch_bounds__(kThreads)
    PlainScreenKernel(const __grid_constant__ ScreenArgs args) {
  extern __shared__ float queries[];  // [G, d]
  WaitForPrevious();
  const SelectBlocksParams& params = args.params;
  const KvTile tile(params.geometry);
  const int32_t num_kv_heads = tile.num_kv_heads;
  const int32_t group = params.num_query_heads / num_kv_heads;
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int64_t items = static_cast<int64_t>(args.step.counts->screen_units) * num_kv_heads;
  for (int64_t item = blockIdx.x; item < items; item += gridDim.x) {
    const auto unit = static_cast<int32_t>(item / num_kv_heads);
    const auto kv_head = static_cast<int32_t>(item % num_kv_heads);
    const int32_t row_index = RowOfUnit(args.step.screen_begin, args.step.num_rows, unit);
    const StepRow row = args.step.rows[row_index];
    const int32_t first_head = kv_head * group;

    const float* q = params.q.data + row_index * params.q.stride + first_head * tile.head_dim;
    __syncthreads();  // all threads have read the last item's queries
    for (int32_t i = threadIdx.x; i < group * tile.head_dim; i += kThreads) queries[i] = q[i];
    __syncthreads();
    const float norm = QueryNorm(queries, group, tile.head_dim);
    const float threshold =
        lane < group
            ? params.thresholds.data[row_index * params.thresholds.stride + first_head + lane] -
                  row.offset
            : 0.0f;
    const float* head_z = HeadZ(args.step, row, params.num_query_heads, first_head);
    const float z = head_z != nullptr && lane < group ? head_z[lane] : row.z;

    const int64_t list = static_cast<int64_t>(row_index) * num_kv_heads + kv_head;
    uint32_t* masks = params.selection.heads + list * params.selection.capacity;
    const int32_t num_full = (row.position + 1) / tile.block_size;
    const int32_t begin = (unit - args.step.screen_begin[row_index]) * kScreenBlocks;
    const int32_t end = min(begin + kScreenBlocks, num_full);
    uint64_t best = 0;
    for (int32_t block = begin + warp; block < end; block += kWarps) {
      const int32_t physical = args.step.tables[row.table_begin + block];
      const std::byte* record =
          params.kv.records + static_cast<size_t>(physical) * tile.record_bytes();
      const RecordProducts products =
          MultiplyRecord(queries, group, tile.head_dim, record + tile.Mu(kv_head),
                         record + tile.Sigma(kv_head), tile.narrow_index);
      const BlockBound limits =
          products.Bound(TrailerOf(tile, record, kv_head), norm, params.softmax_scale);
      const float bound = limits.scale * fminf(limits.mean + z * limits.deviation, limits.ceiling);
      const uint32_t mask = __ballot_sync(~0u, lane < group && bound >= threshold);
      if (lane == 0) masks[block] = mask;
      if (lane < group && block < row.rescue_chunk) {
        const uint64_t key = BoundKey(bound, block);
        best = key > best ? key : best;
      }
    }
    if (best != 0) {
      atomicMax(
          args.best + static_cast<int64_t>(row_index) * params.num_query_heads + first_head + lane,
          static_cast<unsigned long long>(best));
    }
  }
}

}  // namespace

void PlainScreen(Context& context, const SelectBlocksParams& params, uint64_t* best) {
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const LaunchShape shape{
      dim3(static_cast<unsigned>(context.device.num_sms() * kCtasPerSm)), dim3(kThreads),
      static_cast<size_t>(group) * static_cast<size_t>(params.geometry.head_dim) * sizeof(float)};
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));
  Launch(context.device, "PlainScreen", shape, PlainScreenKernel,
         ScreenArgs{context.step, params, reinterpret_cast<unsigned long long*>(best)});
}

}  // namespace eta::cuda
