// PrefillAttention computes attention of each prefill row over every causal key: gated, nothing
// pruned, from q [R, HQ * d] to out [R, HQ * d] (eta-semantics.md, "Gate", "Special keys" and
// "Windows").
//
// Arithmetic binds. A task is a tile of a sequence's rows with all heads of one KV head's group.
// Its queries share every chunk of 64 keys, which is widened to float32 once. Per chunk and block
// of queries the steps are: scores (a product), gate and exponentials (vectors of keys), weighted
// values (a product).
//
// With AMX a cache of 16 bits goes to amx_attention.cc instead.

#include <algorithm>
#include <initializer_list>
#include <span>
#include <type_traits>
#include <vector>

#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/prefill/amx.h"
#include "kernels/cpu/prefill/row_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/prefill/prefill_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/prefill/row_attention-inl.h"
#include "kernels/cpu/prefill/sparse_rows-inl.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

constexpr int32_t kMostQueries = 96;
constexpr int32_t kMostSparseQueries = 256;

// Cuts a thread's scratch into arrays of float32, each on a cache line.
class Carver {
 public:
  Carver(Scratch& scratch, std::initializer_list<size_t> sizes) : sizes_(sizes) {
    size_t total = 0;
    for (const size_t size : sizes_) total += Padded(size);
    next_ = scratch.Reserve<float>(total);
  }
  // The next array.
  float* Take() {
    float* const at = next_;
    next_ += Padded(sizes_[index_++]);
    return at;
  }

 private:
  static size_t Padded(size_t size) { return (size + 15) / 16 * 16; }
  std::vector<size_t> sizes_;
  size_t index_ = 0;
  float* next_;
};

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
  Carver carver(scratch, {d * kChunkKeys, kChunkKeys * width, queries * d, kTileRows * kChunkKeys,
                          queries * width, queries * kLanes, queries});
  Workspace work{};
  work.chunk.keys = carver.Take();
  work.chunk.values = carver.Take();
  work.chunk.width = width;
  work.queries = carver.Take();
  work.weights = carver.Take();
  work.gathered.output = carver.Take();
  work.gathered.sums = carver.Take();
  work.gathered.maxima = carver.Take();
  work.gathered.width = width;
  std::fill_n(work.chunk.values, kChunkKeys * width, 0.0f);
  std::fill_n(work.queries, queries * d, 0.0f);
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
  const int32_t num_queries = task.end_query(begin);
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

// Working memory of one task of sparse prefill.
struct SparseWorkspace {
  Chunk chunk;
  float* queries;  // [queries][d], scaled by s
  float* picked;   // [kTileRows][kTileRowStride]
  float* weights;  // [kTileRows][64]: scores, then softmax weights
  Gathered gathered;
};

SparseWorkspace CarveSparse(Scratch& scratch, int32_t num_queries, int32_t head_dim) {
  const auto d = static_cast<size_t>(head_dim);
  const size_t width = (d + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes);
  const auto queries = static_cast<size_t>(num_queries);
  Carver carver(scratch,
                {d * kChunkKeys, kChunkKeys * width, queries * d, kTileRows * kTileRowStride,
                 kTileRows * kChunkKeys, queries * width, queries * kLanes, queries});
  SparseWorkspace work{};
  work.chunk.keys = carver.Take();
  work.chunk.values = carver.Take();
  work.chunk.width = width;
  work.queries = carver.Take();
  work.picked = carver.Take();
  work.weights = carver.Take();
  work.gathered.output = carver.Take();
  work.gathered.sums = carver.Take();
  work.gathered.maxima = carver.Take();
  work.gathered.width = width;
  std::fill_n(work.chunk.values, kChunkKeys * width, 0.0f);
  std::fill_n(work.picked, kTileRows * kTileRowStride, 0.0f);
  std::fill_n(work.weights, kTileRows * kChunkKeys, 0.0f);
  work.gathered.Clear(queries);
  return work;
}

template <Gate kGate>
void WeighPicked(const RowTask& task, const SparseRows& rows, const SparseWorkspace& work,
                 std::span<const PickedQuery> picked, int32_t begin) {
  const float slope = task.params.beta * kLog2E;
  float* scores = work.weights;
  for (const PickedQuery& pick : picked) {
    const SparseQuery& query = rows[pick.query];
    if constexpr (kGate == Gate::kSilu) {
      ForEachTempered(task.tile.sequence->tempered, static_cast<size_t>(begin),
                      static_cast<size_t>(std::min(pick.seen.own + 1, kPrefillChunk)),
                      static_cast<size_t>(pick.seen.own), [&](size_t key) { scores[key] = 0.0f; });
    }
    const auto at = static_cast<size_t>(pick.query);
    const auto weigh = [&](auto some, auto floor) {
      Weigh<kGate, some.value, floor.value>(
          {slope, query.gate_offset}, pick.seen, scores, work.gathered.maxima[at],
          work.gathered.sums + at * kLanes, work.gathered.output + at * work.gathered.width,
          work.gathered.width);
    };
    const bool all = pick.seen.all();
    if (query.floor) {
      all ? weigh(std::false_type(), std::true_type()) : weigh(std::true_type(), std::true_type());
    } else {
      all ? weigh(std::false_type(), std::false_type())
          : weigh(std::true_type(), std::false_type());
    }
    scores += kChunkKeys;
  }
}

HWY_NOINLINE void AddPickedValues(const SparseWorkspace& work,
                                  std::span<const PickedQuery> picked) {
  const Float d;
  const size_t width = work.gathered.width;
  for (size_t column = 0; column < width; column += 2 * kLanes) {
    Floats acc[kTileRows][2];
    ClearTile(acc);
    MultiplyTile<kTileRows, 2, 1, kChunkKeys>(work.weights, kChunkKeys,
                                              Columns{work.chunk.values + column, width}, acc);
#pragma GCC unroll 16
    for (size_t r = 0; r < kTileRows; ++r) {
      if (r >= picked.size()) break;
      float* to = work.gathered.output + static_cast<size_t>(picked[r].query) * width + column;
      hn::Store(hn::Add(hn::Load(d, to), acc[r][0]), d, to);
      hn::Store(hn::Add(hn::Load(d, to + kLanes), acc[r][1]), d, to + kLanes);
    }
  }
}

void AttendPicked(const RowTask& task, const SparseRows& rows, const SparseWorkspace& work,
                  std::span<const PickedQuery> picked, int32_t begin) {
  const auto d = static_cast<size_t>(task.head_dim());
  for (size_t first = 0; first < picked.size(); first += kTileRows) {
    const auto some = picked.subspan(first, std::min<size_t>(kTileRows, picked.size() - first));
    for (size_t r = 0; r < some.size(); ++r) {
      std::copy_n(work.queries + static_cast<size_t>(some[r].query) * d, d,
                  work.picked + r * kTileRowStride);
    }
    for (size_t key = 0; key < kChunkKeys; key += 2 * kLanes) {
      Floats acc[kTileRows][2];
      ClearTile(acc);
      MultiplyTile<kTileRows, 2, 1, kTileRowStride>(
          work.picked, d, Columns{work.chunk.keys + key, kChunkKeys}, acc);
      StoreTile(acc, kChunkKeys, work.weights + key);
    }
    if (task.params.gate == Gate::kSilu) {
      WeighPicked<Gate::kSilu>(task, rows, work, some, begin);
    } else {
      WeighPicked<Gate::kNone>(task, rows, work, some, begin);
    }
    AddPickedValues(work, some);
  }
}

void AttendSparse(const RowTask& task) {
  thread_local Scratch scratch;
  thread_local SparseRows rows;
  const auto d = static_cast<size_t>(task.head_dim());
  const SparseWorkspace work = CarveSparse(scratch, task.num_queries(), task.head_dim());
  for (int32_t query = 0; query < task.num_queries(); ++query) {
    const float* from = task.query(query);
    float* to = work.queries + static_cast<size_t>(query) * d;
    for (size_t i = 0; i < d; ++i) to[i] = from[i] * task.params.softmax_scale;
  }
  rows.Begin(task, work.gathered);
  for (int32_t begin = 0; begin < task.tile.num_keys(); begin += kPrefillChunk) {
    const std::span<const PickedQuery> picked = rows.Pick(begin);
    if (picked.empty()) continue;
    LoadChunk(task, begin, work.chunk);
    AttendPicked(task, rows, work, picked, begin);
  }
  rows.StoreOutput(work.gathered);
}

void PrefillAttentionOnTarget(const Context& context, const AttentionParams& params) {
  const bool windowed = params.window > 0;
  if (!windowed) RunRowTasks(context, params, TileRows::kSparse, kMostSparseQueries, AttendSparse);
  const TileRows dense = windowed ? TileRows::kAll : TileRows::kFull;
  RunRowTasks(context, params, dense, kMostQueries, [](const RowTask& task) {
    thread_local Scratch scratch;
    const Workspace work = Carve(scratch, task.num_queries(), task.head_dim());
    LoadQueries(task, work.queries);
    for (int32_t begin = task.first_chunk(); begin < task.tile.num_keys(); begin += kPrefillChunk) {
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
