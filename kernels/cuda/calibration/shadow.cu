// MeasureShadow tells, for chosen decode rows and per query head, what reading less cost: the share
// of full attention's softmax on the keys that the head attended to (mass [rows, HQ]), and the
// distance of its output from full attention's (error [rows, HQ]; eta-semantics.md, "What is
// counted").
//
// It reads every key of a row. A CTA takes kShadowKeys of them for one KV head, without tensor
// cores, and leaves sums of its part; then one CTA per head joins the parts in their order. Rows
// are few and follow each other, so that one row's parts are all the memory.

#include <algorithm>

#include "kernels/cuda/calibration/listed_heads.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/plain/plain_tile.cuh"
#include "kernels/cuda/select/plain_products.cuh"

namespace eta::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int32_t kTileTokens = kThreads;  // a thread scores one key at a time

struct ShadowArgs {
  StepView step;
  AttentionParams params;
  int32_t row;
  int32_t num_parts;
  float* parts;  // [HQ, num_parts, d + 3], see Part
  float* mass;   // [HQ]
  float* error;  // [HQ]
};

// Of one part of the keys and one head, relative to e^max: the sums of all weights, of those of
// attended keys, and of weighted values [d].
struct Part {
  float* values;
  float* max;
  float* all;
  float* attended;

  __device__ Part(const ShadowArgs& args, int32_t head, int32_t part) {
    const int32_t d = args.params.geometry.head_dim;
    values = args.parts + (static_cast<int64_t>(head) * args.num_parts + part) * (d + 3);
    max = values + d;
    all = max + 1;
    attended = all + 1;
  }
};

// The running sums of the heads of a group, in shared memory.
struct GroupSums {
  float max[kMaxGroup];
  float all[kMaxGroup];
  float attended[kMaxGroup];
  float rescale[kMaxGroup];  // e^(old max - max)
};

// One warp turns the logits [keys] of head `head` into weights and adds them up.
__device__ __forceinline__ void Weigh(float* logits, const uint32_t* attending, int32_t keys,
                                      int32_t head, GroupSums& sums) {
  const int32_t lane = threadIdx.x % 32;
  float max = sums.max[head];
  for (int32_t i = lane; i < keys; i += 32) max = fmaxf(max, logits[i]);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, step));
  float all = 0.0f;
  float attended = 0.0f;
  for (int32_t i = lane; i < keys; i += 32) {
    const float weight = expf(logits[i] - max);
    logits[i] = weight;
    all += weight;
    if ((attending[i] >> head & 1) != 0) attended += weight;
  }
#pragma unroll
  for (int step = 16; step > 0; step /= 2) {
    all += __shfl_xor_sync(~0u, all, step);
    attended += __shfl_xor_sync(~0u, attended, step);
  }
  __syncwarp();  // all lanes have read the old maximum
  if (lane != 0) return;
  const float rescale = sums.max[head] == max ? 1.0f : expf(sums.max[head] - max);
  sums.rescale[head] = rescale;
  sums.all[head] = sums.all[head] * rescale + all;
  sums.attended[head] = sums.attended[head] * rescale + attended;
  sums.max[head] = max;
}

template <typename T>
__global__ void __launch_bounds__(kThreads) MeasureParts(const __grid_constant__ ShadowArgs args) {
  extern __shared__ __align__(16) float shared[];
  __shared__ GroupSums sums;
  __shared__ uint32_t attending[kTileTokens];
  WaitForPrevious();
  const AttentionParams& params = args.params;
  const KvTile tile(params.geometry);
  const auto part = static_cast<int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const StepRow& row = args.step.rows[args.row];
  const int32_t d = tile.head_dim;
  const int32_t group = params.num_query_heads / tile.num_kv_heads;
  const int32_t padded_group = (group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  const int32_t first_head = kv_head * group;
  float* queries = shared;                       // [padded group][d]
  float* logits = queries + padded_group * d;    // [group][kTileTokens]
  float* values = logits + group * kTileTokens;  // [group][d]
  const float* q =
      params.q.data + args.row * params.q.stride + static_cast<int64_t>(first_head) * d;
  for (int32_t i = thread; i < padded_group * d; i += kThreads) {
    queries[i] = i < group * d ? q[i] : 0.0f;
  }
  for (int32_t i = thread; i < group * d; i += kThreads) values[i] = 0.0f;
  if (thread < group) {
    sums.max[thread] = -INFINITY;
    sums.all[thread] = sums.attended[thread] = 0.0f;
  }
  const float* thresholds =
      params.thresholds.data + args.row * params.thresholds.stride + first_head;
  const int64_t list = static_cast<int64_t>(args.row) * tile.num_kv_heads + kv_head;
  const bool gated = params.gate == Gate::kSilu;
  const int32_t num_full = (row.position + 1) / tile.block_size;
  const int32_t begin = part * kShadowKeys;
  const int32_t end = min(begin + kShadowKeys, row.position + 1);

  for (int32_t first = begin; first < end; first += kTileTokens) {
    const int32_t keys = min(kTileTokens, end - first);
    __syncthreads();  // all threads have read the last tile's weights
    if (thread < keys) {
      const int32_t position = first + thread;
      const int32_t ordinal = position / tile.block_size;
      const std::byte* key_tile =
          params.kv.tiles + tile.K(args.step.tables[row.table_begin + ordinal], kv_head);
      attending[thread] = row.attention.admit_all || ordinal >= num_full
                              ? ~0u
                              : ListedHeads(params.selection, list, ordinal);
      const bool tempered = plain::IsTempered(args.step, row.tempered, position);
      for (int32_t head = 0; head < group; head += kHeadsAtOnce) {
        float products[kHeadsAtOnce];
        MultiplyKey<T>(tile, key_tile, position % tile.block_size, queries + head * d, products);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          if (head + h >= group) break;
          float logit = products[h] * params.softmax_scale;
          if (gated && position != row.position) {
            const float distance = thresholds[head + h] - row.attention.offset - logit;
            logit = tempered ? 0.0f : logit / (1.0f + expf(params.beta * distance));
          }
          logits[(head + h) * kTileTokens + thread] = logit;
        }
      }
    }
    __syncthreads();
    for (int32_t head = thread / 32; head < group; head += kWarps) {
      Weigh(logits + head * kTileTokens, attending, keys, head, sums);
    }
    __syncthreads();
    // A thread adds up four coordinates of one head.
    for (int32_t at = thread; at < group * (d / 4); at += kThreads) {
      const int32_t head = at / (d / 4);
      const int32_t i = at % (d / 4) * 4;
      float added[4];
      LoadElements(values + head * d + i, added);
#pragma unroll
      for (int j = 0; j < 4; ++j) added[j] *= sums.rescale[head];
      for (int32_t key = 0; key < keys; ++key) {
        const int32_t position = first + key;
        const std::byte* key_tile =
            params.kv.tiles +
            tile.K(args.step.tables[row.table_begin + position / tile.block_size], kv_head);
        float value[4];
        LoadValueElements<T>(tile, key_tile, position % tile.block_size, i, value);
        const float weight = logits[head * kTileTokens + key];
#pragma unroll
        for (int j = 0; j < 4; ++j) added[j] += weight * value[j];
      }
      StoreElements(added, values + head * d + i);
    }
  }
  __syncthreads();
  for (int32_t i = thread; i < group * d; i += kThreads) {
    Part(args, first_head + i / d, part).values[i % d] = values[i];
  }
  if (thread < group) {
    const Part to(args, first_head + thread, part);
    *to.max = sums.max[thread];
    *to.all = sums.all[thread];
    *to.attended = sums.attended[thread];
  }
}

__device__ __forceinline__ float LoadOutput(const TensorView& out, int64_t element) {
  float value = 0.0f;
  plain::VisitElementType(out.dtype, [&](auto typed) {
    value = ToFloat(reinterpret_cast<const decltype(typed)*>(out.data)[element]);
  });
  return value;
}

// The sum over the CTA. All threads get it.
__device__ __forceinline__ float SumOfCta(float value, float (&of_warps)[kWarps]) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(~0u, value, step);
  __syncthreads();
  if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
  for (int warp = 0; warp < kWarps; ++warp) sum += of_warps[warp];
  return sum;
}

// Joins the parts of a head and compares. A thread has one coordinate.
__global__ void __launch_bounds__(kThreads) JoinParts(const __grid_constant__ ShadowArgs args) {
  static_assert(kThreads >= kMaxHeadDim);
  __shared__ float of_warps[kWarps];
  WaitForPrevious();
  const AttentionParams& params = args.params;
  const auto head = static_cast<int32_t>(blockIdx.x);
  const auto i = static_cast<int32_t>(threadIdx.x);
  const int32_t d = params.geometry.head_dim;
  float max = params.sinks != nullptr ? params.sinks[head] : -INFINITY;
  for (int32_t part = 0; part < args.num_parts; ++part) {
    max = fmaxf(max, *Part(args, head, part).max);
  }
  // Every head attends to its sink.
  float all = params.sinks != nullptr ? expf(params.sinks[head] - max) : 0.0f;
  float attended = all;
  float value = 0.0f;
  for (int32_t part = 0; part < args.num_parts; ++part) {
    const Part of(args, head, part);
    const float factor = expf(*of.max - max);
    all += factor * *of.all;
    attended += factor * *of.attended;
    if (i < d) value += factor * of.values[i];
  }
  const float full = value / all;
  float difference = 0.0f;
  if (i < d) {
    difference =
        LoadOutput(params.out, args.row * params.out.stride + static_cast<int64_t>(head) * d + i) -
        full;
  }
  const float distance = SumOfCta(difference * difference, of_warps);
  const float norm = SumOfCta(i < d ? full * full : 0.0f, of_warps);
  if (i != 0) return;
  args.mass[head] = attended / all;
  args.error[head] = norm > 0.0f ? sqrtf(distance / norm) : 0.0f;
}

}  // namespace

void MeasureShadow(Context& context, const AttentionParams& params, std::span<const int32_t> rows,
                   float* mass, float* error) {
  const KvGeometry& geometry = params.geometry;
  const int32_t heads = params.num_query_heads;
  const int32_t group = heads / geometry.num_kv_heads;
  const int32_t padded_group = (group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  // For rows as long as the selection has room for, so that the memory seldom grows.
  const int64_t most_keys = (params.selection.capacity + 1) * geometry.block_size;
  auto* parts = reinterpret_cast<float*>(
      context.scratch.Get(Scratch::Use::kShadow, ShadowBytes(most_keys, heads, geometry.head_dim)));
  if (parts == nullptr) return;
  ShadowArgs args = {context.step, params, 0, 0, parts, mass, error};
  const LaunchShape shape = {
      .grid = {},
      .block = dim3(kThreads),
      .shared_bytes =
          static_cast<size_t>((padded_group + group) * geometry.head_dim + group * kTileTokens) *
          sizeof(float)};
  for (const StepSequence& sequence : context.sequences) {
    for (; !rows.empty() && rows.front() < sequence.row_begin + sequence.num_rows;
         rows = rows.subspan(1), args.mass += heads, args.error += heads) {
      const int32_t keys = sequence.position + rows.front() - sequence.row_begin + 1;
      args.row = rows.front();
      args.num_parts = ShadowParts(keys);
      LaunchShape parts_shape = shape;
      parts_shape.grid =
          dim3(static_cast<unsigned>(args.num_parts), static_cast<unsigned>(geometry.num_kv_heads));
      WithCacheType(geometry.dtype, [&](auto element) {
        Launch(context.device, "shadow", parts_shape, MeasureParts<decltype(element)>, args);
      });
      Launch(context.device, "shadow",
             {.grid = dim3(static_cast<unsigned>(heads)), .block = dim3(kThreads)}, JoinParts,
             args);
    }
  }
}

}  // namespace eta::cuda
