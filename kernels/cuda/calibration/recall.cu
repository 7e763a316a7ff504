// CountRecall counts, per query head, the keys of the decode rows with S >= tau_eff (above [HQ]),
// and those of them that stand in admitted blocks or the tail (above_admitted [HQ]). Their quotient
// is the recall of the selection (eta-semantics.md, "What is counted").
//
// It scores every key of every row, one thread per key, without tensor cores. It is for evaluation
// only, and speed is no aim.

#include "kernels/cuda/calibration/listed_heads.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/select/plain_products.cuh"

namespace eta::cuda {
namespace {

constexpr int kThreads = 256;

struct RecallArgs {
  StepView step;
  AttentionParams params;
  unsigned long long* above;           // [HQ]
  unsigned long long* above_admitted;  // [HQ]
};

template <typename T>
__global__ void __launch_bounds__(kThreads)
    CountRecallKernel(const __grid_constant__ RecallArgs args) {
  extern __shared__ __align__(16) float queries[];  // [G up to a multiple of 4, d]
  __shared__ uint32_t above[kMaxGroup];
  __shared__ uint32_t above_admitted[kMaxGroup];
  WaitForPrevious();
  const AttentionParams& params = args.params;
  const auto row_index = static_cast<int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const int32_t thread = threadIdx.x;
  const StepRow row = args.step.rows[row_index];
  if (row.role != RowRole::kDecode) return;
  const KvTile tile(params.geometry);
  const int32_t group = params.num_query_heads / tile.num_kv_heads;
  const int32_t padded_group = (group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  const int32_t first_head = kv_head * group;

  const float* q = params.q.data + row_index * params.q.stride + first_head * tile.head_dim;
  for (int32_t i = thread; i < padded_group * tile.head_dim; i += kThreads) {
    queries[i] = i < group * tile.head_dim ? q[i] : 0.0f;
  }
  if (thread < kMaxGroup) above[thread] = above_admitted[thread] = 0;
  __syncthreads();

  const float* thresholds =
      params.thresholds.data + row_index * params.thresholds.stride + first_head;
  const int64_t list = static_cast<int64_t>(row_index) * tile.num_kv_heads + kv_head;
  const int32_t num_keys = row.position + 1;
  const int32_t num_full = num_keys / tile.block_size;
  for (int32_t first = 0; first < num_keys; first += kThreads) {
    const bool valid = first + thread < num_keys;
    const int32_t position = valid ? first + thread : 0;
    const int32_t ordinal = position / tile.block_size;
    const uint32_t admitting = row.attention.admit_all || ordinal >= num_full
                                   ? ~0u
                                   : ListedHeads(params.selection, list, ordinal);
    const std::byte* key_tile =
        params.kv.tiles + tile.K(args.step.tables[row.table_begin + ordinal], kv_head);
    for (int32_t head = 0; head < group; head += kHeadsAtOnce) {
      float products[kHeadsAtOnce];
      MultiplyKey<T>(tile, key_tile, position % tile.block_size, queries + head * tile.head_dim,
                     products);
#pragma unroll
      for (int h = 0; h < kHeadsAtOnce; ++h) {
        const int32_t g = head + h;
        if (g >= group) break;
        const bool hit =
            valid && products[h] * params.softmax_scale >= thresholds[g] - row.attention.offset;
        const uint32_t hits = __ballot_sync(~0u, hit);
        const uint32_t admitted_hits = __ballot_sync(~0u, hit && (admitting >> g & 1) != 0);
        if (thread % 32 == 0 && hits != 0) {
          atomicAdd(above + g, __popc(hits));
          atomicAdd(above_admitted + g, __popc(admitted_hits));
        }
      }
    }
  }
  __syncthreads();
  if (thread < group) {
    atomicAdd(args.above + first_head + thread, static_cast<unsigned long long>(above[thread]));
    atomicAdd(args.above_admitted + first_head + thread,
              static_cast<unsigned long long>(above_admitted[thread]));
  }
}

}  // namespace

void CountRecall(Context& context, const RecallParams& params, int64_t* above,
                 int64_t* above_admitted) {
  const AttentionParams& attention = params.attention;
  const KvGeometry& geometry = attention.geometry;
  const int32_t group = attention.num_query_heads / geometry.num_kv_heads;
  const size_t padded_group =
      static_cast<size_t>((group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce);
  const LaunchShape shape{dim3(static_cast<unsigned>(context.step.num_rows),
                               static_cast<unsigned>(geometry.num_kv_heads)),
                          dim3(kThreads),
                          padded_group * static_cast<size_t>(geometry.head_dim) * sizeof(float)};
  static_assert(sizeof(int64_t) == sizeof(unsigned long long));
  const RecallArgs args{context.step, attention, reinterpret_cast<unsigned long long*>(above),
                        reinterpret_cast<unsigned long long*>(above_admitted)};
  WithCacheType(geometry.dtype, [&](auto element) {
    Launch(context.device, "CountRecall", shape, CountRecallKernel<decltype(element)>, args);
  });
}

}  // namespace eta::cuda
