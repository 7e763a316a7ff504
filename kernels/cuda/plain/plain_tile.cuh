// Attention for any geometry. A CTA attends with up to 32 queries to the keys of one KV head, up to
// 64 keys at a time. K and V go to shared memory as float32. Then come scores (a lane per key),
// weights (a warp per query) and sums (a thread per four coordinates). Sums of products are split
// within a key and within a tile of keys; this keeps float32 caches within 1e-5 of double
// precision.
//
// Element types are told apart at run time, which costs these kernels little and saves instances.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/kv_elements.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/host/step_view.h"
#include "kernels/params/selection.h"

namespace eta::cuda::plain {

inline constexpr int kThreads = 256;
inline constexpr int kWarps = kThreads / 32;
inline constexpr int kMaxQueries = 32;
inline constexpr int kMaxKeys = 64;  // of a tile
inline constexpr int kMinKeys = 16;
// The most queries whose sums one thread keeps: 32, over the 4 that 256 threads take at d = 256.
inline constexpr int kMaxRows = 8;

// One key of a tile. Bit q of the masks stands for query q.
struct KeySlot {
  int64_t tile;       // offset of its K tile in the layer, bytes
  int32_t token;      // in its block
  uint32_t attended;  // queries that attend to it
  uint32_t own;       // queries whose own key this is: not gated
  uint32_t floored;   // queries whose floor already gives this key the weight e^0
  bool tempered;      // its score counts as 0 for queries that gate it
};

// Whether the key at `position` of a sequence is tempered.
__device__ __forceinline__ bool IsTempered(const StepView& step, const TemperedKeys& keys,
                                           int32_t position) {
  if (position / 32 >= keys.words) return false;
  const auto word = static_cast<uint32_t>(step.tables[keys.begin + position / 32]);
  return (word >> (position % 32) & 1) != 0;
}

struct AttentionArgs {
  StepView step;
  AttentionParams params;
  int32_t max_keys;                 // of a tile
  const uint8_t* prunes = nullptr;  // of rows of sparse prefill (admitted_tiles.h)
};

// Shared memory, in floats; rows are padded so that neighbouring rows fall into different banks.
struct TileShape {
  int32_t num_queries;
  int32_t head_dim;
  int32_t max_keys;

  // The product takes four queries at a time.
  ETA_HOST_DEVICE int32_t padded_queries() const { return (num_queries + 3) / 4 * 4; }
  ETA_HOST_DEVICE int32_t key_stride() const { return head_dim + 4; }
  ETA_HOST_DEVICE int32_t weight_stride() const { return max_keys + 1; }
  ETA_HOST_DEVICE int32_t keys() const { return padded_queries() * head_dim; }
  ETA_HOST_DEVICE int32_t values() const { return keys() + max_keys * key_stride(); }
  ETA_HOST_DEVICE int32_t weights() const { return values() + max_keys * head_dim; }
  ETA_HOST_DEVICE int32_t per_query() const {
    return weights() + padded_queries() * weight_stride();
  }
  ETA_HOST_DEVICE int32_t slots() const { return per_query() + 4 * kMaxQueries; }
  ETA_HOST_DEVICE size_t bytes() const {
    return static_cast<size_t>(slots()) * 4 + 2 * static_cast<size_t>(max_keys) * sizeof(KeySlot);
  }
};

// The memory and the share of one thread in a CTA's tile.
struct Tile {
  __device__ Tile(const AttentionArgs& attention, int32_t num_queries, float* shared)
      : args(attention),
        kv(attention.params.geometry),
        shape{num_queries, attention.params.geometry.head_dim, attention.max_keys},
        queries(shared),
        keys(shared + shape.keys()),
        values(shared + shape.values()),
        weights(shared + shape.weights()),
        thresholds(shared + shape.per_query()),
        maxima(thresholds + kMaxQueries),
        totals(maxima + kMaxQueries),
        factors(totals + kMaxQueries),
        slots(reinterpret_cast<KeySlot*>(shared + shape.slots())) {
    const int32_t quads = shape.head_dim / 4;
    const int32_t lanes = kThreads / quads;
    const int32_t lane = static_cast<int32_t>(threadIdx.x) / quads;
    first_coordinate = static_cast<int32_t>(threadIdx.x) % quads * 4;
    query_step = min(num_queries, lanes);
    num_parts = lanes / query_step;
    query = lane % query_step;
    part = lane / query_step;
  }

  const AttentionArgs& args;
  const KvTile kv;
  const TileShape shape;
  float* queries;     // [padded queries][d]
  float* keys;        // [keys][d + 4]
  float* values;      // [keys][d]
  float* weights;     // [padded queries][keys + 1]: scores, then weights
  float* thresholds;  // [queries], tau_eff
  float* maxima;      // [queries], m of the softmax
  float* totals;      // [queries], sum of weights
  float* factors;     // [queries], e^(old m - m) of the latest tile
  KeySlot* slots;     // [2][keys]

  // The thread sums four coordinates of queries `query`, query + query_step, ... over every
  // num_parts-th key of a tile. Threads with part >= num_parts have no work.
  int32_t first_coordinate;
  int32_t query;
  int32_t query_step;
  int32_t part;
  int32_t num_parts;
};

using Sums = float4[kMaxRows];

__device__ __forceinline__ float4 Add(float4 a, float4 b) {
  return make_float4(a.x + b.x, a.y + b.y, a.z + b.z, a.w + b.w);
}
// a * factor + b.
__device__ __forceinline__ float4 MultiplyAdd(float4 a, float factor, float4 b) {
  return make_float4(fmaf(a.x, factor, b.x), fmaf(a.y, factor, b.y), fmaf(a.z, factor, b.z),
                     fmaf(a.w, factor, b.w));
}
// a * b + c, coordinate by coordinate.
__device__ __forceinline__ float4 MultiplyAdd(float4 a, float4 b, float4 c) {
  return make_float4(fmaf(a.x, b.x, c.x), fmaf(a.y, b.y, c.y), fmaf(a.z, b.z, c.z),
                     fmaf(a.w, b.w, c.w));
}

// Calls visit(T{}) with the element type of a floating-point `dtype`.
template <class Visit>
__device__ __forceinline__ void VisitElementType(DType dtype, const Visit& visit) {
  switch (dtype) {
    case DType::kFloat16:
      return visit(__half{});
    case DType::kBFloat16:
      return visit(__nv_bfloat16{});
    default:
      return visit(float{});
  }
}

template <typename T>
__device__ __forceinline__ void LoadKeys(const Tile& tile, const KeySlot* slots, int32_t num_keys) {
  constexpr int kBatch = 4;  // loads in flight per thread, of K and of V
  const int32_t quads = tile.shape.head_dim / 4;
  const int32_t total = num_keys * quads;
  for (int32_t first = threadIdx.x; first < total; first += kBatch * kThreads) {
    float k[kBatch][4];
    float v[kBatch][4];
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int32_t i = first + j * kThreads;
      if (i >= total) break;
      const KeySlot& slot = slots[i / quads];
      const std::byte* head = tile.args.params.kv.tiles + slot.tile;
      LoadKeyElements<T>(tile.kv, head, slot.token, i % quads * 4, k[j]);
      LoadValueElements<T>(tile.kv, head, slot.token, i % quads * 4, v[j]);
    }
#pragma unroll
    for (int j = 0; j < kBatch; ++j) {
      const int32_t i = first + j * kThreads;
      if (i >= total) break;
      const int32_t key = i / quads;
      const int32_t coordinate = i % quads * 4;
      StoreElements(k[j], tile.keys + key * tile.shape.key_stride() + coordinate);
      StoreElements(v[j], tile.values + key * tile.shape.head_dim + coordinate);
    }
  }
}

// Computes S of `kQueries` queries and 32 keys; each lane has one key.
template <int kQueries>
__device__ void ScoreKeys(const Tile& tile, const KeySlot* slots, int32_t num_keys,
                          int32_t first_query, int32_t first_key) {
  const int32_t key = first_key + static_cast<int32_t>(threadIdx.x) % 32;
  const bool valid = key < num_keys;
  const uint32_t queries = ((1u << kQueries) - 1) << first_query;
  if (!__any_sync(~0u, valid && (slots[key].attended & queries) != 0)) return;
  const float* k = tile.keys + (valid ? key : first_key) * tile.shape.key_stride();
  const float* q = tile.queries + first_query * tile.shape.head_dim;
  float4 sums[kQueries] = {};
  for (int32_t i = 0; i < tile.shape.head_dim; i += 4) {
    const float4 k4 = *reinterpret_cast<const float4*>(k + i);
#pragma unroll
    for (int j = 0; j < kQueries; ++j) {
      const float4 q4 = *reinterpret_cast<const float4*>(q + j * tile.shape.head_dim + i);
      sums[j] = MultiplyAdd(q4, k4, sums[j]);
    }
  }
  if (!valid) return;
#pragma unroll
  for (int j = 0; j < kQueries; ++j) {
    tile.weights[(first_query + j) * tile.shape.weight_stride() + key] =
        ((sums[j].x + sums[j].y) + (sums[j].z + sums[j].w)) * tile.args.params.softmax_scale;
  }
}

__device__ inline void Score(const Tile& tile, const KeySlot* slots, int32_t num_keys) {
  constexpr int kQueriesAtOnce = 4;
  const int32_t warp = threadIdx.x / 32;
  const int32_t key_groups = (num_keys + 31) / 32;
  // Few queries are spread over more warps.
  const int32_t queries_at_once = tile.shape.num_queries <= kQueriesAtOnce ? 1 : kQueriesAtOnce;
  const int32_t tasks =
      key_groups * ((tile.shape.num_queries + queries_at_once - 1) / queries_at_once);
  for (int32_t task = warp; task < tasks; task += kWarps) {
    const int32_t first_key = task % key_groups * 32;
    const int32_t first_query = task / key_groups * queries_at_once;
    if (queries_at_once == 1) {
      ScoreKeys<1>(tile, slots, num_keys, first_query, first_key);
    } else {
      ScoreKeys<kQueriesAtOnce>(tile, slots, num_keys, first_query, first_key);
    }
  }
}

// Turns scores into gated logits and then into weights; updates m and the sum of weights.
__device__ inline void Weigh(const Tile& tile, const KeySlot* slots, int32_t num_keys) {
  constexpr int kPerLane = kMaxKeys / 32;
  const AttentionParams& params = tile.args.params;
  const int32_t lane = threadIdx.x % 32;
  for (int32_t query = threadIdx.x / 32; query < tile.shape.num_queries; query += kWarps) {
    float* weights = tile.weights + query * tile.shape.weight_stride();
    float logits[kPerLane];
    bool attended[kPerLane];
    bool floored[kPerLane];
    const float old_max = tile.maxima[query];
    float max = old_max;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int32_t key = lane + 32 * i;
      attended[i] = key < num_keys && (slots[key].attended >> query & 1) != 0;
      floored[i] = attended[i] && (slots[key].floored >> query & 1) != 0;
      logits[i] = -INFINITY;
      if (!attended[i]) continue;
      const bool gated = params.gate == Gate::kSilu && (slots[key].own >> query & 1) == 0;
      const float score = gated && slots[key].tempered ? 0.0f : weights[key];
      logits[i] =
          gated ? score / (1.0f + expf(params.beta * (tile.thresholds[query] - score))) : score;
      max = fmaxf(max, logits[i]);
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) max = fmaxf(max, __shfl_xor_sync(~0u, max, step));

    const float shift = max == -INFINITY ? 0.0f : max;  // -infinity: no key yet
    const float floor_weight = expf(-shift);
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < kPerLane; ++i) {
      const int32_t key = lane + 32 * i;
      const float weight =
          attended[i] ? expf(logits[i] - shift) - (floored[i] ? floor_weight : 0.0f) : 0.0f;
      if (key < num_keys) weights[key] = weight;
      sum += weight;
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
    __syncwarp();  // all lanes have read the old maximum
    if (lane == 0) {
      const float factor = expf(old_max - shift);
      tile.factors[query] = factor;
      tile.totals[query] = tile.totals[query] * factor + sum;
      tile.maxima[query] = max;
    }
  }
}

// Adds the values to rows kFirst .. kFirst + kRows - 1 of the thread's sums.
template <int kFirst, int kRows>
__device__ __forceinline__ void AddValues(const Tile& tile, int32_t num_keys, Sums& sums) {
  if (tile.part >= tile.num_parts) return;
  int32_t queries[kRows];
  float4 added[kRows] = {};
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    // After the last query any query will do, since its sum is not used.
    queries[r] = min(tile.query + (kFirst + r) * tile.query_step, tile.shape.num_queries - 1);
  }
  for (int32_t key = tile.part; key < num_keys; key += tile.num_parts) {
    const float4 v = *reinterpret_cast<const float4*>(tile.values + key * tile.shape.head_dim +
                                                      tile.first_coordinate);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      added[r] =
          MultiplyAdd(v, tile.weights[queries[r] * tile.shape.weight_stride() + key], added[r]);
    }
  }
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    sums[kFirst + r] = MultiplyAdd(sums[kFirst + r], tile.factors[queries[r]], added[r]);
  }
}

// Attends to keys 0 .. num_keys - 1 of the CTA's list; key_at(i) gives key i. REQUIRES: queries and
// thresholds are in place; they need not be synchronised. `floor_queries` have a floor.
template <class KeyAt>
__device__ void Attend(const Tile& tile, int32_t num_keys, uint32_t floor_queries,
                       const KeyAt& key_at, Sums& sums) {
  const int32_t thread = threadIdx.x;
  const int32_t max_keys = tile.shape.max_keys;
  if (thread < kMaxQueries) {
    // With a floor, pruned keys take part in the maximum; their logit is 0.
    tile.maxima[thread] = (floor_queries >> thread & 1) != 0 ? 0.0f : -INFINITY;
    tile.totals[thread] = 0.0f;
  }
  if (thread < min(max_keys, num_keys)) tile.slots[thread] = key_at(thread);
#pragma unroll
  for (int r = 0; r < kMaxRows; ++r) sums[r] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  __syncthreads();

  KeySlot* slots = tile.slots;
  KeySlot* next_slots = tile.slots + max_keys;
  const int32_t rows = (tile.shape.num_queries + tile.query_step - 1) / tile.query_step;
  for (int32_t first = 0; first < num_keys; first += max_keys) {
    const int32_t count = min(max_keys, num_keys - first);
    if (tile.kv.scaled()) {
      LoadKeys<E4M3>(tile, slots, count);
    } else {
      VisitElementType(tile.args.params.geometry.dtype,
                       [&](auto element) { LoadKeys<decltype(element)>(tile, slots, count); });
    }
    const int32_t next = first + max_keys + thread;
    if (thread < max_keys && next < num_keys) next_slots[thread] = key_at(next);
    __syncthreads();
    Score(tile, slots, count);
    __syncthreads();
    Weigh(tile, slots, count);
    __syncthreads();
    if (rows == 1) {
      AddValues<0, 1>(tile, count, sums);
    } else if (rows == 2) {
      AddValues<0, 2>(tile, count, sums);
    } else {
      AddValues<0, 4>(tile, count, sums);
      if (rows > 4) AddValues<4, 4>(tile, count, sums);
    }
    __syncthreads();
    KeySlot* const used = slots;
    slots = next_slots;
    next_slots = used;
  }
}

// Adds up the parts, then calls store(query, first coordinate, sum) for every query. Call it after
// the last tile of keys, since it uses that tile's memory.
template <class Store>
__device__ void Finish(const Tile& tile, const Sums& sums, const Store& store) {
  const int32_t d = tile.shape.head_dim;
  if (tile.num_parts > 1) {  // then each thread has one query only
    float* const parts = tile.keys;
    const int32_t stride = tile.query_step * d;
    float* const mine = parts + tile.query * d + tile.first_coordinate;
    if (tile.part < tile.num_parts) {
      *reinterpret_cast<float4*>(mine + tile.part * stride) = sums[0];
    }
    __syncthreads();
    if (tile.part > 0) return;
    float4 sum = sums[0];
    for (int32_t part = 1; part < tile.num_parts; ++part) {
      sum = Add(sum, *reinterpret_cast<const float4*>(mine + part * stride));
    }
    store(tile.query, tile.first_coordinate, sum);
    return;
  }
  if (tile.part > 0) return;
#pragma unroll
  for (int r = 0; r < kMaxRows; ++r) {
    const int32_t query = tile.query + r * tile.query_step;
    if (query < tile.shape.num_queries) store(query, tile.first_coordinate, sums[r]);
  }
}

}  // namespace eta::cuda::plain
