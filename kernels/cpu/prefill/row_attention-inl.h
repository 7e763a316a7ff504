// What attention of prefill rows does around its two products, whatever computes these: chunks of
// keys and values in float32, gate and online softmax of a query's scores, the result.
//
// A query sees the chunks in ascending order, at multiples of 64 positions. Every decision about a
// (query, chunk) pair depends on that query alone. So its result does not show how the prompt was
// cut or which rows are its neighbours.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_ROW_ATTENTION_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_ROW_ATTENTION_INL_H_
#undef ETA_KERNELS_CPU_ROW_ATTENTION_INL_H_
#else
#define ETA_KERNELS_CPU_ROW_ATTENTION_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/context.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/prefill/row_tiles.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/kv_elements-inl.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/cpu/tempered.h"
#include "kernels/params/selection.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

constexpr size_t kChunkKeys = static_cast<size_t>(kPrefillChunk);

// One chunk in float32; keys after the last are zero.
struct Chunk {
  float* keys;    // [d][64]
  float* values;  // [64][width]
  size_t width;   // d, padded to whole tiles; the padding is zero
};

// What the queries of a task have gathered so far.
struct Gathered {
  float* output;  // [queries][width]: weighted values
  float* sums;    // [queries][lanes]: sums of weights, one per lane
  float* maxima;  // [queries]
  size_t width;

  void Clear(size_t queries) const {
    std::fill_n(output, queries * width, 0.0f);
    std::fill_n(sums, queries * kLanes, 0.0f);
    std::fill_n(maxima, queries, -std::numeric_limits<float>::infinity());
  }
};

// A tile of rows; its queries are ordered by row, then by head.
struct RowTask {
  const AttentionParams& params;
  const RowTile& tile;
  int32_t group;

  int32_t head_dim() const { return params.geometry.head_dim; }
  int32_t num_queries() const { return tile.count * group; }
  int64_t head(int32_t query) const {
    return static_cast<int64_t>(tile.kv_head) * group + query % group;
  }
  const float* query(int32_t i) const {
    return params.q.row(tile.row(i / group)) + head(i) * head_dim();
  }
  int32_t position(int32_t query) const { return tile.position(query / group); }
  // The weight of the query's sink where the others are relative to e^maximum; 0: no sink.
  float SinkWeight(int32_t query, float maximum) const {
    return params.sinks != nullptr ? std::exp(params.sinks[head(query)] - maximum) : 0.0f;
  }
  std::span<const int32_t> table() const { return tile.sequence->table(params.kv.table); }
  bool gated() const { return params.gate == Gate::kSilu && params.window == 0; }

  // The first key that the query attends to; and where the first chunk begins that any query of the
  // task attends to.
  int32_t first_key(int32_t query) const { return WindowBegin(position(query), params.window); }
  int32_t first_chunk() const { return first_key(0) / kPrefillChunk * kPrefillChunk; }
  // The queries from this one on have windows that begin behind the chunk at `begin`.
  int32_t end_query(int32_t begin) const {
    if (params.window == 0) return num_queries();
    const int64_t past = int64_t{begin} + kPrefillChunk + params.window - 1;  // the first position
    const int64_t rows = std::min<int64_t>(past - tile.position(0), tile.count);
    return static_cast<int32_t>(rows) * group;
  }
};

// Calls attend(const RowTask&) for every tile of the step's rows of that kind, on all threads.
template <typename Attend>
void RunRowTasks(const Context& context, const AttentionParams& params, TileRows which,
                 int32_t most_queries, const Attend& attend) {
  const int32_t num_kv_heads = params.geometry.num_kv_heads;
  const int32_t group = params.num_query_heads / num_kv_heads;
  const std::vector<RowTile> tiles = MakeRowTiles(context.batch, which, num_kv_heads, group,
                                                  context.workers.num_threads(), most_queries);
  context.workers.Run(static_cast<int64_t>(tiles.size()), [&](int64_t i, int) {
    attend(RowTask{params, tiles[static_cast<size_t>(i)], group});
  });
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

// Gathers keys and values of positions [first, first + count) from their blocks. Those before the
// task's first key are zeros: their blocks may be gone.
template <class Elements>
HWY_NOINLINE void LoadChunk(const RowTask& task, int32_t first, int32_t count, const Chunk& chunk) {
  using Stored = typename Elements::Stored;
  const KvTile layout(task.params.geometry);
  const auto d = static_cast<size_t>(task.head_dim());
  const auto block_size = static_cast<size_t>(layout.block_size);
  const auto key_stride = static_cast<size_t>(layout.key_stride);
  int32_t done = std::max(0, task.first_key(0) - first);
  if (done > 0) {
    const auto missing = static_cast<size_t>(done);
    for (size_t i = 0; i < d; ++i) std::fill_n(chunk.keys + i * kChunkKeys, missing, 0.0f);
    std::fill_n(chunk.values, missing * chunk.width, 0.0f);
  }
  while (done < count) {
    const int32_t at = first + done;
    const int32_t block = task.table()[static_cast<size_t>(at / layout.block_size)];
    const auto offset = static_cast<size_t>(at % layout.block_size);
    const auto run = std::min(block_size - offset, static_cast<size_t>(count - done));
    const auto* k =
        reinterpret_cast<const Stored*>(layout.K(task.params.kv, block, task.tile.kv_head));
    const auto* v =
        reinterpret_cast<const Stored*>(layout.V(task.params.kv, block, task.tile.kv_head));
    const auto to = static_cast<size_t>(done);
    for (size_t i = 0; i < d; ++i) {
      WidenRun<Elements>(k + i * key_stride + offset, run, chunk.keys + i * kChunkKeys + to);
    }
    for (size_t t = 0; t < run; ++t) {
      WidenRun<Elements>(v + (offset + t) * d, d, chunk.values + (to + t) * chunk.width);
    }
    done += static_cast<int32_t>(run);
  }
  const auto valid = static_cast<size_t>(count);
  if (valid == kChunkKeys) return;
  for (size_t i = 0; i < d; ++i) {
    std::fill_n(chunk.keys + i * kChunkKeys + valid, kChunkKeys - valid, 0.0f);
  }
  std::fill_n(chunk.values + valid * chunk.width, (kChunkKeys - valid) * chunk.width, 0.0f);
}

// Loads the chunk that begins with key `first`.
inline void LoadChunk(const RowTask& task, int32_t first, const Chunk& chunk) {
  const int32_t count = std::min(kPrefillChunk, task.tile.num_keys() - first);
  switch (task.params.geometry.dtype) {
    case DType::kFloat16:
      return LoadChunk<Float16Elements>(task, first, count, chunk);
    case DType::kBFloat16:
      return LoadChunk<BFloat16Elements>(task, first, count, chunk);
    default:
      return LoadChunk<Float32Elements>(task, first, count, chunk);
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

inline void Rescale(float new_maximum, float& maximum, float* sums, float* output, size_t width) {
  const Float d;
  const Floats factor = hn::Set(d, std::exp(maximum - new_maximum));
  maximum = new_maximum;
  hn::Store(hn::Mul(hn::Load(d, sums), factor), d, sums);
  for (size_t i = 0; i < width; i += kLanes) {
    hn::Store(hn::Mul(hn::Load(d, output + i), factor), d, output + i);
  }
}

// The keys of a chunk that a query weighs.
struct SeenKeys {
  uint64_t keys;  // bit i: key i of the chunk
  int32_t own;    // the query's own key, whose logit is not gated; 64 or more: not in the chunk

  // All keys from `first` up to the query's own, the last of `num_keys`. REQUIRES: first < 64.
  static SeenKeys Causal(int32_t num_keys, int32_t first) {
    const bool all = num_keys >= kPrefillChunk;
    const uint64_t keys = all ? ~uint64_t{0} : (uint64_t{1} << num_keys) - 1;
    return {first > 0 ? keys & ~uint64_t{0} << first : keys, num_keys - 1};
  }
  bool all() const { return keys == ~uint64_t{0} && own >= kPrefillChunk; }
};

// The lanes of the keys from `first` on that are seen.
HWY_INLINE auto SeenLanes(uint64_t keys, size_t first) {
  const hn::RebindToUnsigned<Float> du;
  alignas(64) static constexpr uint32_t kBits[16] = {
      1,      1 << 1, 1 << 2,  1 << 3,  1 << 4,  1 << 5,  1 << 6,  1 << 7,
      1 << 8, 1 << 9, 1 << 10, 1 << 11, 1 << 12, 1 << 13, 1 << 14, 1 << 15};
  const auto bits = hn::Set(du, static_cast<uint32_t>(keys >> first));
  return hn::RebindMask(Float(), hn::TestBit(bits, hn::Load(du, kBits)));
}

// Turns one query's 64 scores into softmax weights. kSome: not all keys are seen, or its own key is
// among them. kFloor: the weights are less exp(0), which the pruned keys weigh (eta-semantics.md,
// "Uniform floor").
template <Gate kGate, bool kSome, bool kFloor>
HWY_INLINE void Weigh(const GateOptions& gate, const SeenKeys& seen, float* scores, float& maximum,
                      float* sums, float* output, size_t width) {
  const Float d;
  constexpr size_t kVectors = kChunkKeys / kLanes;
  const Floats own = hn::Set(d, static_cast<float>(seen.own));
  const Floats lowest = hn::Set(d, -std::numeric_limits<float>::infinity());

  Floats largest = lowest;
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) {
    const Floats score = hn::Load(d, scores + v * kLanes);
    Floats logit = kGate == Gate::kSilu ? Temper(score, gate) : score;
    if constexpr (kSome) {
      const Floats key = hn::Iota(d, static_cast<float>(v * kLanes));
      logit = hn::IfThenElse(hn::Eq(key, own), score, logit);
      logit = hn::IfThenElse(SeenLanes(seen.keys, v * kLanes), logit, lowest);
    }
    hn::Store(logit, d, scores + v * kLanes);
    largest = hn::Max(largest, logit);
  }
  if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(largest, hn::Set(d, maximum + kMaxSlack))))) {
    Rescale(hn::GetLane(hn::MaxOfLanes(d, largest)), maximum, sums, output, width);
  }

  const Floats shift = hn::Set(d, -maximum * kLog2E);
  const Floats floor = kFloor ? Exp2(d, shift) : hn::Zero(d);
  Floats sum = hn::Load(d, sums);
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) {
    const Floats y = hn::MulAdd(hn::Load(d, scores + v * kLanes), hn::Set(d, kLog2E), shift);
    Floats weight = Exp2(d, y);
    if constexpr (kFloor) weight = hn::Sub(weight, floor);
    if constexpr (kSome) weight = hn::IfThenElseZero(SeenLanes(seen.keys, v * kLanes), weight);
    hn::Store(weight, d, scores + v * kLanes);
    sum = hn::Add(sum, weight);
  }
  hn::Store(sum, d, sums);
}

// Scores [count][64] of queries [first, first + count) become weights; those of queries that do not
// exist or do not see the chunk become zeros.
template <Gate kGate>
HWY_NOINLINE void WeighQueries(const RowTask& task, const Gathered& gathered, int32_t first,
                               int32_t count, int32_t chunk_begin, float* scores) {
  const AttentionOptions& options = task.tile.sequence->attention;
  for (int32_t query = first; query < first + count; ++query, scores += kChunkKeys) {
    const int32_t num_keys =
        query < task.num_queries() ? task.position(query) + 1 - chunk_begin : 0;
    const int32_t first_key = num_keys > 0 ? task.first_key(query) - chunk_begin : 0;
    if (num_keys <= 0 || first_key >= kPrefillChunk) {
      std::fill_n(scores, kChunkKeys, 0.0f);
      continue;
    }
    GateOptions gate{};
    if constexpr (kGate == Gate::kSilu) {
      const int64_t row = task.tile.row(query / task.group);
      const float threshold = task.params.thresholds.row(row)[task.head(query)];
      gate.slope = task.params.beta * kLog2E;
      gate.offset = gate.slope * (threshold - options.offset);
      // A score of 0 is a gated logit of 0, whatever the threshold.
      ForEachTempered(task.tile.sequence->tempered, static_cast<size_t>(chunk_begin),
                      static_cast<size_t>(std::min(num_keys, kPrefillChunk)),
                      static_cast<size_t>(num_keys - 1), [&](size_t key) { scores[key] = 0.0f; });
    }
    float& maximum = gathered.maxima[query];
    float* sums = gathered.sums + static_cast<size_t>(query) * kLanes;
    float* output = gathered.output + static_cast<size_t>(query) * gathered.width;
    const SeenKeys seen = SeenKeys::Causal(num_keys, first_key);
    if (seen.all()) {
      Weigh<kGate, false, false>(gate, seen, scores, maximum, sums, output, gathered.width);
    } else {
      Weigh<kGate, true, false>(gate, seen, scores, maximum, sums, output, gathered.width);
    }
  }
}

inline void WeighQueries(const RowTask& task, const Gathered& gathered, int32_t first,
                         int32_t count, int32_t chunk_begin, float* scores) {
  if (task.gated()) {
    WeighQueries<Gate::kSilu>(task, gathered, first, count, chunk_begin, scores);
  } else {
    WeighQueries<Gate::kNone>(task, gathered, first, count, chunk_begin, scores);
  }
}

inline void StoreOutput(const RowTask& task, const Gathered& gathered) {
  const Float d;
  for (int32_t query = 0; query < task.num_queries(); ++query) {
    const float* sums = gathered.sums + static_cast<size_t>(query) * kLanes;
    const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums)));
    const float scale = 1.0f / (sum + task.SinkWeight(query, gathered.maxima[query]));
    const float* from = gathered.output + static_cast<size_t>(query) * gathered.width;
    float* to =
        task.params.out.row(task.tile.row(query / task.group)) + task.head(query) * task.head_dim();
    for (int32_t i = 0; i < task.head_dim(); ++i) to[i] = from[i] * scale;
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
