// PrefillAttention computes attention of each prefill row over every causal key: gated, nothing
// pruned, from q [R, HQ * d] to out [R, HQ * d] (eta-semantics.md, "Gate" and "Special keys").
//
// Arithmetic binds. A task is a tile of a sequence's rows with all heads of one KV head's group.
// Its queries share every chunk of 64 keys, which is widened to float32 once. Per chunk and block
// of queries the steps are: scores (a product), gate and exponentials (vectors of keys), weighted
// values (a product).
//
// A query sees the chunks in ascending order, at multiples of 64 positions. Every decision about a
// (query, chunk) pair depends on that query alone. So its result does not show how the prompt was
// cut or which rows are its neighbours.

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/tempered.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/prefill_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/kv_elements-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"

#ifndef ETA_KERNELS_CPU_PREFILL_ATTENTION_ONCE
#define ETA_KERNELS_CPU_PREFILL_ATTENTION_ONCE
namespace eta::cpu {
namespace {

constexpr int32_t kChunk = 64;  // keys of a chunk

// Rows [begin, begin + count) of a sequence, one KV head.
struct RowTile {
  const SequenceRows* sequence;
  int32_t kv_head;
  int32_t begin;
  int32_t count;

  int32_t position(int32_t i) const { return sequence->position + begin + i; }
  int64_t row(int32_t i) const { return sequence->row_begin + begin + i; }
  int32_t num_keys() const { return position(count - 1) + 1; }
};

// The tiles of all prefill rows, the most expensive first. Tall tiles share more reads of keys, but
// there must be several tiles per thread.
std::vector<RowTile> MakeTiles(const BatchView& batch, int32_t num_kv_heads, int32_t group,
                               int num_threads) {
  constexpr int32_t kMostQueries = 96;
  constexpr int32_t kLeastQueries = 24;
  int64_t rows = 0;
  for (const SequenceRows& sequence : batch.sequences) {
    if (sequence.kind == RowKind::kPrefill) rows += sequence.num_rows;
  }
  int32_t queries = kMostQueries;
  while (queries > kLeastQueries && rows * group * num_kv_heads < 4 * queries * num_threads) {
    queries /= 2;
  }
  const int32_t height = std::max(1, queries / group);
  std::vector<RowTile> tiles;
  for (const SequenceRows& sequence : batch.sequences) {
    if (sequence.kind != RowKind::kPrefill) continue;
    for (int32_t begin = 0; begin < sequence.num_rows; begin += height) {
      for (int32_t head = 0; head < num_kv_heads; ++head) {
        tiles.push_back({&sequence, head, begin, std::min(height, sequence.num_rows - begin)});
      }
    }
  }
  const auto cost = [](const RowTile& tile) {
    return static_cast<int64_t>(tile.count) * tile.num_keys();
  };
  std::stable_sort(tiles.begin(), tiles.end(),
                   [&](const RowTile& a, const RowTile& b) { return cost(a) > cost(b); });
  return tiles;
}

}  // namespace
}  // namespace eta::cpu
#endif  // ETA_KERNELS_CPU_PREFILL_ATTENTION_ONCE

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

constexpr size_t kChunkKeys = static_cast<size_t>(kChunk);
// Working memory of one task, all float32.
struct Workspace {
  float* keys;     // [d][64]
  float* values;   // [64][width]
  float* queries;  // blocks of [d][kTileRows], scaled by s
  float* weights;  // [kTileRows][64]: scores, then softmax weights
  float* output;   // [queries][width]
  float* sums;     // [queries][lanes]: sums of weights, one per lane
  float* maxima;   // [queries]
  size_t width;    // d, padded to whole tiles
};

struct Task {
  const AttentionParams& params;
  const RowTile& tile;
  Workspace work;
  int32_t group;
  int32_t head_dim;

  int32_t num_queries() const { return tile.count * group; }
  int32_t num_blocks() const { return (num_queries() + kTileRows - 1) / kTileRows; }
  int64_t head(int32_t query) const {
    return static_cast<int64_t>(tile.kv_head) * group + query % group;
  }
};

Workspace Carve(Scratch& scratch, int32_t num_queries, int32_t head_dim) {
  const size_t d = static_cast<size_t>(head_dim);
  const size_t width = (d + 2 * kLanes - 1) / (2 * kLanes) * (2 * kLanes);
  const size_t queries = static_cast<size_t>((num_queries + kTileRows - 1) / kTileRows * kTileRows);
  const size_t sizes[] = {d * kChunkKeys,  kChunkKeys * width, queries * d, kTileRows * kChunkKeys,
                          queries * width, queries * kLanes,   queries};
  size_t total = 0;
  for (const size_t size : sizes) total += (size + 15) / 16 * 16;
  float* next = scratch.Reserve<float>(total);
  const auto take = [&](size_t size) {
    float* const at = next;
    next += (size + 15) / 16 * 16;
    return at;
  };
  Workspace work;
  work.keys = take(sizes[0]);
  work.values = take(sizes[1]);
  work.queries = take(sizes[2]);
  work.weights = take(sizes[3]);
  work.output = take(sizes[4]);
  work.sums = take(sizes[5]);
  work.maxima = take(sizes[6]);
  work.width = width;
  std::fill_n(work.values, sizes[1], 0.0f);
  std::fill_n(work.queries, sizes[2], 0.0f);
  std::fill_n(work.output, sizes[4], 0.0f);
  std::fill_n(work.sums, sizes[5], 0.0f);
  std::fill_n(work.maxima, sizes[6], -std::numeric_limits<float>::infinity());
  return work;
}

void LoadQueries(const Task& task) {
  const auto d = static_cast<size_t>(task.head_dim);
  for (int32_t query = 0; query < task.num_queries(); ++query) {
    const float* from =
        task.params.q.row(task.tile.row(query / task.group)) + task.head(query) * task.head_dim;
    float* to = task.work.queries + static_cast<size_t>(query / kTileRows) * d * kTileRows +
                static_cast<size_t>(query % kTileRows);
    for (size_t i = 0; i < d; ++i) to[i * kTileRows] = from[i] * task.params.softmax_scale;
  }
}

template <class Elements>
HWY_INLINE void WidenRun(const typename Elements::Stored* from, size_t count, float* to) {
  const Float d;
  const hn::CappedTag<float, 1> d1;
  size_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    hn::StoreU(LoadElements(Elements(), d, from + i), d, to + i);
  }
  for (; i < count; ++i) hn::StoreU(LoadElements(Elements(), d1, from + i), d1, to + i);
}

// Gathers keys and values of positions [first, first + count) from their blocks; positions after
// them become zeros.
template <class Elements>
HWY_NOINLINE void LoadChunk(const Task& task, int32_t first, int32_t count) {
  using Stored = typename Elements::Stored;
  const KvTile layout(task.params.geometry);
  const auto d = static_cast<size_t>(task.head_dim);
  const auto block_size = static_cast<size_t>(layout.block_size);
  const auto key_stride = static_cast<size_t>(layout.key_stride);
  const Workspace& work = task.work;
  int32_t done = 0;
  while (done < count) {
    const int32_t at = first + done;
    const int32_t block =
        task.tile.sequence->block_table[static_cast<size_t>(at / layout.block_size)];
    const auto offset = static_cast<size_t>(at % layout.block_size);
    const auto run = std::min(block_size - offset, static_cast<size_t>(count - done));
    const auto* k =
        reinterpret_cast<const Stored*>(layout.K(task.params.kv, block, task.tile.kv_head));
    const auto* v =
        reinterpret_cast<const Stored*>(layout.V(task.params.kv, block, task.tile.kv_head));
    const auto to = static_cast<size_t>(done);
    for (size_t i = 0; i < d; ++i) {
      WidenRun<Elements>(k + i * key_stride + offset, run, work.keys + i * kChunkKeys + to);
    }
    for (size_t t = 0; t < run; ++t) {
      WidenRun<Elements>(v + (offset + t) * d, d, work.values + (to + t) * work.width);
    }
    done += static_cast<int32_t>(run);
  }
  const auto valid = static_cast<size_t>(count);
  if (valid == kChunkKeys) return;
  for (size_t i = 0; i < d; ++i) {
    std::fill_n(work.keys + i * kChunkKeys + valid, kChunkKeys - valid, 0.0f);
  }
  std::fill_n(work.values + valid * work.width, (kChunkKeys - valid) * work.width, 0.0f);
}

void LoadChunk(const Task& task, int32_t first, int32_t count) {
  switch (task.params.geometry.dtype) {
    case DType::kFloat16:
      return LoadChunk<Float16Elements>(task, first, count);
    case DType::kBFloat16:
      return LoadChunk<BFloat16Elements>(task, first, count);
    default:
      return LoadChunk<Float32Elements>(task, first, count);
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

// The constants of one query's gate.
struct GateOptions {
  float slope;   // beta * log2(e)
  float offset;  // slope * tau_eff
};

// S~ = S * sigma(beta * (S - tau_eff)).
HWY_INLINE Floats Temper(Floats score, const GateOptions& gate) {
  const Float d;
  return Gated(d, score, hn::NegMulAdd(hn::Set(d, gate.slope), score, hn::Set(d, gate.offset)));
}

void Rescale(float new_maximum, float& maximum, float* sums, float* output, size_t width) {
  const Float d;
  const Floats factor = hn::Set(d, std::exp(maximum - new_maximum));
  maximum = new_maximum;
  hn::Store(hn::Mul(hn::Load(d, sums), factor), d, sums);
  for (size_t i = 0; i < width; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, output + i), factor), d, output + i);
  }
}

// Turns one query's 64 scores into softmax weights. kOwn: the chunk holds the query's own key, the
// last of `num_keys`, whose logit is not gated.
template <Gate kGate, bool kOwn>
HWY_INLINE void Weigh(const GateOptions& gate, int32_t num_keys, float* scores, float& maximum,
                      float* sums, float* output, size_t width) {
  const Float d;
  constexpr size_t kVectors = kChunkKeys / kLanes;
  const Floats end = hn::Set(d, static_cast<float>(num_keys));
  const Floats own = hn::Set(d, static_cast<float>(num_keys - 1));
  const Floats lowest = hn::Set(d, -std::numeric_limits<float>::infinity());

  Floats largest = lowest;
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) {
    const Floats score = hn::Load(d, scores + v * kLanes);
    Floats logit = kGate == Gate::kSilu ? Temper(score, gate) : score;
    if constexpr (kOwn) {
      const Floats key = hn::Iota(d, static_cast<float>(v * kLanes));
      logit = hn::IfThenElse(hn::Eq(key, own), score, logit);
      logit = hn::IfThenElse(hn::Lt(key, end), logit, lowest);
    }
    hn::Store(logit, d, scores + v * kLanes);
    largest = hn::Max(largest, logit);
  }
  if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(largest, hn::Set(d, maximum + kMaxSlack))))) {
    Rescale(hn::GetLane(hn::MaxOfLanes(d, largest)), maximum, sums, output, width);
  }

  const Floats shift = hn::Set(d, -maximum * kLog2E);
  Floats sum = hn::Load(d, sums);
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) {
    const Floats y = hn::MulAdd(hn::Load(d, scores + v * kLanes), hn::Set(d, kLog2E), shift);
    Floats weight = Exp2(d, y);
    if constexpr (kOwn) {
      const Floats key = hn::Iota(d, static_cast<float>(v * kLanes));
      weight = hn::IfThenElseZero(hn::Lt(key, end), weight);
    }
    hn::Store(weight, d, scores + v * kLanes);
    sum = hn::Add(sum, weight);
  }
  hn::Store(sum, d, sums);
}

template <Gate kGate>
HWY_NOINLINE void WeighBlock(const Task& task, int32_t block, int32_t chunk_begin) {
  const Workspace& work = task.work;
  const int32_t begin = block * kTileRows;
  const AttentionOptions& options = task.tile.sequence->attention;
  for (int32_t query = begin; query < begin + kTileRows; ++query) {
    float* scores = work.weights + static_cast<size_t>(query - begin) * kChunkKeys;
    const int32_t row = query / task.group;
    const int32_t num_keys = row < task.tile.count ? task.tile.position(row) + 1 - chunk_begin : 0;
    if (num_keys <= 0) {
      std::fill_n(scores, kChunkKeys, 0.0f);
      continue;
    }
    const float threshold = task.params.thresholds.row(task.tile.row(row))[task.head(query)];
    const float slope = task.params.beta * kLog2E;
    const GateOptions gate{slope, slope * (threshold - options.offset)};
    if constexpr (kGate == Gate::kSilu) {
      // A score of 0 is a gated logit of 0, whatever the threshold.
      ForEachTempered(task.tile.sequence->tempered, static_cast<size_t>(chunk_begin),
                      static_cast<size_t>(std::min(num_keys, kChunk)),
                      static_cast<size_t>(num_keys - 1), [&](size_t key) { scores[key] = 0.0f; });
    }
    float* sums = work.sums + static_cast<size_t>(query) * kLanes;
    float* output = work.output + static_cast<size_t>(query) * work.width;
    if (num_keys <= kChunk) {
      Weigh<kGate, true>(gate, num_keys, scores, work.maxima[query], sums, output, work.width);
    } else {
      Weigh<kGate, false>(gate, num_keys, scores, work.maxima[query], sums, output, work.width);
    }
  }
}

void AttendChunk(const Task& task, int32_t begin) {
  const Workspace& work = task.work;
  const auto d = static_cast<size_t>(task.head_dim);
  for (int32_t block = 0; block < task.num_blocks(); ++block) {
    const int32_t last_query = std::min((block + 1) * kTileRows, task.num_queries()) - 1;
    if (task.tile.position(last_query / task.group) < begin) continue;
    const auto first_query = static_cast<size_t>(block * kTileRows);
    Scores(work.queries + first_query * d, d, work.keys, work.weights);
    if (task.params.gate == Gate::kSilu) {
      WeighBlock<Gate::kSilu>(task, block, begin);
    } else {
      WeighBlock<Gate::kNone>(task, block, begin);
    }
    AddWeightedValues(work.weights, work.values, work.width,
                      work.output + first_query * work.width);
  }
}

void StoreOutput(const Task& task) {
  const Float d;
  for (int32_t query = 0; query < task.num_queries(); ++query) {
    const float* sums = task.work.sums + static_cast<size_t>(query) * kLanes;
    const float scale = 1.0f / hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums)));
    const float* from = task.work.output + static_cast<size_t>(query) * task.work.width;
    float* to =
        task.params.out.row(task.tile.row(query / task.group)) + task.head(query) * task.head_dim;
    for (int32_t i = 0; i < task.head_dim; ++i) to[i] = from[i] * scale;
  }
}

void PrefillAttentionOnTarget(const Context& context, const AttentionParams& params) {
  const int32_t num_kv_heads = params.geometry.num_kv_heads;
  const int32_t group = params.num_query_heads / num_kv_heads;
  const std::vector<RowTile> tiles =
      MakeTiles(context.batch, num_kv_heads, group, context.workers.num_threads());
  context.workers.Run(static_cast<int64_t>(tiles.size()), [&](int64_t i, int) {
    thread_local Scratch scratch;
    const RowTile& tile = tiles[static_cast<size_t>(i)];
    const int32_t head_dim = params.geometry.head_dim;
    const Task task{params, tile, Carve(scratch, tile.count * group, head_dim), group, head_dim};
    LoadQueries(task);
    for (int32_t begin = 0; begin < tile.num_keys(); begin += kChunk) {
      LoadChunk(task, begin, std::min(kChunk, tile.num_keys() - begin));
      AttendChunk(task, begin);
    }
    StoreOutput(task);
  });
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(PrefillAttentionOnTarget);

void PrefillAttention(const Context& context, const AttentionParams& params) {
  HWY_DYNAMIC_DISPATCH(PrefillAttentionOnTarget)(context, params);
}

}  // namespace eta::cpu
#endif  // HWY_ONCE
