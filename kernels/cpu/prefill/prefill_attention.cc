// PrefillAttention computes attention of each prefill row over every causal key: gated, nothing
// pruned, from q [R, HQ * d] to out [R, HQ * d] (eta-semantics.md, "Gate" and "Special keys").
//
// Arithmetic binds. A task is a tile of a sequence's rows with all heads of one KV head's group.
// Its queries share every chunk of 64 keys, which is widened to float32 once. Per chunk and block
// of queries the steps are: scores (a product), gate and exponentials (vectors of keys), weighted
// values (a product).
//
// With AMX a cache of 16 bits goes to amx_attention.cc instead.

#include <algorithm>
#include <array>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/prefill/amx.h"
#include "kernels/cpu/prefill/row_tiles.h"
#include "kernels/cpu/scratch.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/prefill/prefill_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/prefill/row_attention-inl.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

constexpr int32_t kMostQueries = 96;

// Working memory of one task, all float32.
struct Workspace {
  Chunk chunk;
  float* queries;  // blocks of [d][kTileRows], scaled by s
  float* weights;  // [kTileRows][64]: scores, then softmax weights
  Gathered gathered;
};

Workspace Carve(Scratch& scratch, int32_t num_queries, int32_t head_dim) {
  const size_t d = static_cast<size_t>(head_dim);
  const size_t width = (d + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes);
  const size_t queries = static_cast<size_t>((num_queries + kTileRows - 1) / kTileRows * kTileRows);
  const std::array<size_t, 7> sizes = {
      d * kChunkKeys,  kChunkKeys * width, queries * d, kTileRows * kChunkKeys,
      queries * width, queries * kLanes,   queries};
  size_t total = 0;
  for (const size_t size : sizes) total += (size + 15) / 16 * 16;
  float* next = scratch.Reserve<float>(total);
  const auto take = [&](size_t size) {
    float* const at = next;
    next += (size + 15) / 16 * 16;
    return at;
  };
  Workspace work{};
  work.chunk = {take(sizes[0]), take(sizes[1]), width};
  work.queries = take(sizes[2]);
  work.weights = take(sizes[3]);
  work.gathered = {take(sizes[4]), take(sizes[5]), take(sizes[6]), width};
  std::fill_n(work.chunk.values, sizes[1], 0.0f);
  std::fill_n(work.queries, sizes[2], 0.0f);
  work.gathered.Clear(queries);
  return work;
}

void LoadQueries(const RowTask& task, float* queries) {
  const auto d = static_cast<size_t>(task.head_dim());
  for (int32_t query = 0; query < task.num_queries(); ++query) {
    const float* from = task.query(query);
    float* to = queries + static_cast<size_t>(query / kTileRows) * d * kTileRows +
                static_cast<size_t>(query % kTileRows);
    for (size_t i = 0; i < d; ++i) to[i * kTileRows] = from[i] * task.params.softmax_scale;
  }
}

// Two neighbouring vectors of columns of a row-major matrix.
struct Columns {
  const float* data;
  size_t stride;

  HWY_INLINE void Load(size_t k, Floats (&columns)[2]) const {
    const Float d;
    columns[0] = hn::Load(d, data + k * stride);
    columns[1] = hn::Load(d, data + k * stride + kLanes);
  }
};

template <int kRows>
HWY_INLINE void LoadTile(const float* from, size_t stride, Floats (&acc)[kRows][2]) {
  const Float d;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    acc[r][0] = hn::Load(d, from + static_cast<size_t>(r) * stride);
    acc[r][1] = hn::Load(d, from + static_cast<size_t>(r) * stride + kLanes);
  }
}

template <int kRows>
HWY_INLINE void StoreTile(const Floats (&acc)[kRows][2], size_t stride, float* to) {
  const Float d;
#pragma GCC unroll 16
  for (int r = 0; r < kRows; ++r) {
    hn::Store(acc[r][0], d, to + static_cast<size_t>(r) * stride);
    hn::Store(acc[r][1], d, to + static_cast<size_t>(r) * stride + kLanes);
  }
}

HWY_NOINLINE void Scores(const float* queries, size_t depth, const float* keys, float* scores) {
  for (size_t key = 0; key < kChunkKeys; key += 2 * kLanes) {
    Floats acc[kTileRows][2];
    ClearTile(acc);
    MultiplyTile<kTileRows, 2, kTileRows, 1>(queries, depth, Columns{keys + key, kChunkKeys}, acc);
    StoreTile(acc, kChunkKeys, scores + key);
  }
}

HWY_NOINLINE void AddWeightedValues(const float* weights, const float* values, size_t width,
                                    float* output) {
  for (size_t column = 0; column < width; column += 2 * kLanes) {
    Floats acc[kTileRows][2];
    LoadTile(output + column, width, acc);
    MultiplyTile<kTileRows, 2, 1, kChunkKeys>(weights, kChunkKeys, Columns{values + column, width},
                                              acc);
    StoreTile(acc, width, output + column);
  }
}

void AttendChunk(const RowTask& task, const Workspace& work, int32_t begin) {
  const auto d = static_cast<size_t>(task.head_dim());
  const int32_t num_queries = task.num_queries();
  for (int32_t query = 0; query < num_queries; query += kTileRows) {
    const int32_t last_query = std::min(query + kTileRows, num_queries) - 1;
    if (task.position(last_query) < begin) continue;
    const auto first = static_cast<size_t>(query);
    Scores(work.queries + first * d, d, work.chunk.keys, work.weights);
    WeighQueries(task, work.gathered, query, kTileRows, begin, work.weights);
    AddWeightedValues(work.weights, work.chunk.values, work.chunk.width,
                      work.gathered.output + first * work.chunk.width);
  }
}

void PrefillAttentionOnTarget(const Context& context, const AttentionParams& params) {
  RunRowTasks(context, params, kMostQueries, [](const RowTask& task) {
    thread_local Scratch scratch;
    const Workspace work = Carve(scratch, task.num_queries(), task.head_dim());
    LoadQueries(task, work.queries);
    for (int32_t begin = 0; begin < task.tile.num_keys(); begin += kPrefillChunk) {
      LoadChunk(task, begin, work.chunk);
      AttendChunk(task, work, begin);
    }
    StoreOutput(task, work.gathered);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(PrefillAttentionOnTarget);

void PrefillAttention(const Context& context, const AttentionParams& params) {
  if (context.amx && SizeOf(params.geometry.dtype) == 2) {
    AmxPrefillAttention(context, params);
    return;
  }
  HWY_DYNAMIC_DISPATCH(PrefillAttentionOnTarget)(context, params);
}

}  // namespace eta::cpu
#endif  // HWY_ONCE
