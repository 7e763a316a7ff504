// Screening for any geometry: a warp per block, its lanes spread over the head dimension.

#include "kernels/cuda/kv_tile.h"
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/mma.cuh"
#include "kernels/cuda/ops.h"
#include "kernels/cuda/screen.cuh"

namespace eta::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kCtasPerSm = 4;
constexpr int kMaxPairs = 4;  // of neighbouring coordinates that a lane holds: d <= 256

struct ScreenArgs {
  StepView step;
  SelectBlocksParams params;
  unsigned long long* best;  // [R, HQ]
};

// The row whose piece of screening work `unit` is: the last one with begin[row] <= unit. All lanes
// of the warp call it with the same arguments; 32 probes at a time, since each costs a trip to L2.
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

// One of two sums over the warp in its lower half, the other in the upper half.
__device__ __forceinline__ float SumHalves(float lower, float upper) {
  const bool is_upper = (threadIdx.x & 16) != 0;
  float sum = is_upper ? upper : lower;
  sum += __shfl_xor_sync(~0u, is_upper ? lower : upper, 16);
#pragma unroll
  for (int step = 8; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
  return sum;
}

// |q| of head `lane`. queries: [group, d].
__device__ float QueryNorm(const float* queries, int32_t group, int32_t head_dim) {
  const int lane = threadIdx.x % 32;
  float norm = 0.0f;
  for (int32_t g = 0; g < group; ++g) {
    float sum = 0.0f;
    for (int32_t i = lane; i < head_dim; i += 32) {
      const float q = queries[g * head_dim + i];
      sum += q * q;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    if (lane == g) norm = sqrtf(sum);
  }
  return norm;
}

// Two neighbouring coordinates of mu and of sigma, as the record has them.
struct RecordPair {
  float2 mu;
  float2 sigma;
};

__device__ __forceinline__ RecordPair LoadPair(const std::byte* mu, const std::byte* sigma,
                                               int32_t pair, bool narrow) {
  if (!narrow) {
    return {UnpackPair<Half>(reinterpret_cast<const uint32_t*>(mu)[pair]),
            UnpackPair<Half>(reinterpret_cast<const uint32_t*>(sigma)[pair])};
  }
  const char2 steps = reinterpret_cast<const char2*>(mu)[pair];
  const uint32_t deviations = reinterpret_cast<const uint16_t*>(sigma)[pair];
  const float2 wide = UnpackPair<Half>(WidenE4M3(deviations).x);
  return {make_float2(static_cast<float>(steps.x), static_cast<float>(steps.y)),
          make_float2(256.0f * wide.x, 256.0f * wide.y)};
}

// Steps 1 and 2 of the selection, in float32, from <q, mu> and sum q_i^2 sigma_i^2 as the record
// has mu and sigma; of one with a float16 index, only M of `record` is its own (Float16Trailer).
__device__ __forceinline__ float UpperBound(float q_mu, float variance, float z, float q_norm,
                                            const RecordTrailer& record, float scale) {
  const float deviation = record.sigma_scale * sqrtf(variance);
  const float estimate = record.mu_scale * q_mu + q_norm * record.mu_error + z * deviation;
  return scale * fminf(estimate, q_norm * record.max_norm);
}
__device__ __forceinline__ RecordTrailer Float16Trailer(float max_norm) {
  return {.max_norm = max_norm, .mu_scale = 1.0f, .mu_error = 0.0f, .sigma_scale = 1.0f};
}

struct Products {
  float q_mu;
  float variance;
};

// <q, mu> and sum q_i^2 sigma_i^2 of head `lane` and one record, whose mu and sigma are given.
__device__ Products MultiplyRecord(const float* queries, int32_t group, int32_t head_dim,
                                   const std::byte* mu, const std::byte* sigma, bool narrow) {
  const int lane = threadIdx.x % 32;
  const int32_t num_pairs = head_dim / 2;
  float2 means[kMaxPairs];
  float2 variances[kMaxPairs];
#pragma unroll
  for (int k = 0; k < kMaxPairs; ++k) {
    const int32_t pair = lane + 32 * k;
    means[k] = variances[k] = make_float2(0.0f, 0.0f);
    if (pair >= num_pairs) continue;
    const RecordPair loaded = LoadPair(mu, sigma, pair, narrow);
    means[k] = loaded.mu;
    variances[k] = make_float2(loaded.sigma.x * loaded.sigma.x, loaded.sigma.y * loaded.sigma.y);
  }
  Products products{};
  for (int32_t g = 0; g < group; ++g) {
    float q_mu = 0.0f;
    float variance = 0.0f;
#pragma unroll
    for (int k = 0; k < kMaxPairs; ++k) {
      const int32_t pair = lane + 32 * k;
      if (pair >= num_pairs) break;
      const float2 q = reinterpret_cast<const float2*>(queries + g * head_dim)[pair];
      q_mu += q.x * means[k].x + q.y * means[k].y;
      variance += q.x * q.x * variances[k].x + q.y * q.y * variances[k].y;
    }
    const float sum = SumHalves(q_mu, variance);
    const float q_mu_sum = __shfl_sync(~0u, sum, 0);
    const float variance_sum = __shfl_sync(~0u, sum, 16);
    if (lane == g) products = {q_mu_sum, variance_sum};
  }
  return products;
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
    __syncthreads();  // the last item's queries are no longer read
    for (int32_t i = threadIdx.x; i < group * tile.head_dim; i += kThreads) queries[i] = q[i];
    __syncthreads();
    const float norm = QueryNorm(queries, group, tile.head_dim);
    const float threshold =
        lane < group
            ? params.thresholds.data[row_index * params.thresholds.stride + first_head + lane] -
                  row.offset
            : 0.0f;

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
      const Products products =
          MultiplyRecord(queries, group, tile.head_dim, record + tile.Mu(kv_head),
                         record + tile.Sigma(kv_head), tile.narrow_index);
      const std::byte* scalars = record + tile.MaxNorm(kv_head);
      const RecordTrailer trailer = tile.narrow_index
                                        ? *reinterpret_cast<const RecordTrailer*>(scalars)
                                        : Float16Trailer(*reinterpret_cast<const float*>(scalars));
      const float bound =
          UpperBound(products.q_mu, products.variance, row.z, norm, trailer, params.softmax_scale);
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
