// AmxPrefillAttention is PrefillAttention for a cache of 16 bits, both products on AMX tiles:
// queries, weights, and keys and values of float16 as the sum of two bfloat16.
//
// A task is a tile of rows as in prefill_attention.cc, but taller: a chunk's keys and values become
// tiles once for all of its queries. 32 queries at a time take scores, gate and exponentials, and
// weighted values. Tiles compute beside the vector units: while 32 queries take exponentials, the
// 32 before take their values and the next 32 their scores. A query's sums do not depend on the
// queries beside it (amx_tile-inl.h).

#include <algorithm>
#include <span>

#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/prefill/amx.h"
#include "kernels/cpu/prefill/row_tiles.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/prefill/amx_attention.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
#include "hwy/highway.h"
#include "kernels/cpu/prefill/amx_softmax-inl.h"
#include "kernels/cpu/prefill/row_attention-inl.h"
#include "kernels/cpu/prefill/sparse_rows-inl.h"
#include "kernels/cpu/simd/amx_tile-inl.h"

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {
namespace {

constexpr int32_t kMostQueries = 256;
constexpr int32_t kMostSparseQueries = 512;
constexpr auto kPairRows = static_cast<int32_t>(kAmxPairRows);

// Working memory of one task.
struct Workspace {
  Chunk chunk;
  std::byte* queries;     // tiles of rows [pairs][steps of d]
  std::byte* keys;        // tiles of columns [2][steps of d]: 32 keys each
  std::byte* values;      // tiles of columns [width / 32][2 steps of keys]
  std::byte* weights[2];  // tiles of rows [2 steps of keys]: scores, then softmax weights
  Gathered gathered;
  size_t steps;  // of d

  size_t pair_bytes() const { return steps * kAmxRowStepBytes; }  // of queries
};

Workspace Carve(Scratch& scratch, int32_t num_queries, int32_t head_dim) {
  const auto d = static_cast<size_t>(head_dim);
  const size_t steps = AmxSteps(d);
  const size_t width = steps * kAmxDepth;
  const auto queries = static_cast<size_t>((num_queries + kPairRows - 1) / kPairRows * kPairRows);
  const size_t query_tiles = queries / kAmxPairRows * steps * kAmxRowStepBytes;
  const size_t chunk_tiles = 2 * steps * AmxColumnStepBytes(true);
  const size_t weights = kChunkSteps * kAmxRowStepBytes;
  const size_t floats = d * kChunkKeys + kChunkKeys * width + queries * (width + kLanes + 1);
  std::byte* next = scratch.Reserve<std::byte>(query_tiles + 2 * chunk_tiles + 2 * weights +
                                               floats * sizeof(float));
  const auto take = [&](size_t bytes) {
    std::byte* const at = next;
    next += bytes;
    return at;
  };
  const auto take_floats = [&](size_t count) {
    return reinterpret_cast<float*>(take(count * sizeof(float)));
  };
  Workspace work{};
  work.queries = take(query_tiles);
  work.keys = take(chunk_tiles);
  work.values = take(chunk_tiles);
  work.weights[0] = take(weights);
  work.weights[1] = take(weights);
  work.chunk.keys = take_floats(d * kChunkKeys);
  work.chunk.values = take_floats(kChunkKeys * width);
  work.chunk.width = width;
  work.gathered.output = take_floats(queries * width);
  work.gathered.sums = take_floats(queries * kLanes);
  work.gathered.maxima = take_floats(queries);
  work.gathered.width = width;
  work.steps = steps;
  std::fill_n(work.chunk.values, kChunkKeys * width, 0.0f);
  work.gathered.Clear(queries);
  return work;
}

// Terms of d from `at` on, scaled; 0 past the end.
HWY_INLINE Floats QueryTerms(const RowTask& task, int32_t query, size_t at) {
  const Float d;
  if (query >= task.num_queries() || at >= static_cast<size_t>(task.head_dim())) {
    return hn::Zero(d);
  }
  return hn::Mul(hn::LoadU(d, task.query(query) + at), hn::Set(d, task.params.softmax_scale));
}

void SplitQueries(const RowTask& task, const Workspace& work) {
  const hn::RebindToUnsigned<Float> du;
  const int32_t padded = (task.num_queries() + kPairRows - 1) / kPairRows * kPairRows;
  for (int32_t query = 0; query < padded; ++query) {
    std::byte* step = work.queries + static_cast<size_t>(query / kPairRows) * work.pair_bytes();
    for (size_t at = 0; at < work.steps * kAmxDepth; at += kAmxDepth, step += kAmxRowStepBytes) {
      Words high;
      Words low;
      SplitTerms(QueryTerms(task, query, at), QueryTerms(task, query, at + kLanes), high, low);
      uint32_t* words = AmxRowWords(step, static_cast<size_t>(query % kPairRows));
      hn::Store(low, du, words);
      hn::Store(high, du, words + 2 * kAmxTileWords);
    }
  }
}

// A product of 32 queries, step by step: scores [32][64] of the chunk's keys, or the sums of values
// [32][width] that weights are added to.
template <bool kHasLow>
class PairProduct {
 public:
  PairProduct() = default;  // nothing to do

  static PairProduct Scores(const std::byte* queries, const std::byte* keys, size_t steps,
                            std::byte* scores) {
    return {queries, keys, steps, kChunkKeys / kAmxColumns, scores, nullptr, 0};
  }
  // Of the first `count` queries, values that are added to nothing.
  static PairProduct FewValues(size_t count, const std::byte* weights, const std::byte* values,
                               float* output, size_t width) {
    PairProduct product = Values(weights, values, output, width);
    product.adds_ = false;
    product.single_ = count <= kAmxRows;
    return product;
  }
  static PairProduct FewScores(size_t count, const std::byte* queries, const std::byte* keys,
                               size_t steps, std::byte* scores) {
    PairProduct product = Scores(queries, keys, steps, scores);
    product.single_ = count <= kAmxRows;
    return product;
  }
  static PairProduct Values(const std::byte* weights, const std::byte* values, float* output,
                            size_t width) {
    return {weights, values, kChunkSteps, width / kAmxColumns, nullptr, output, width};
  }

  bool done() const { return group_ == groups_; }
  size_t num_steps() const { return steps_ * groups_; }

  HWY_NOINLINE void Advance() {
    if (step_ == 0) {
      if (output_ != nullptr && adds_) {
        AmxLoadSums(output_, width_ * sizeof(float));
      } else {
        AmxZeroSums();
      }
    }
    const std::byte* const rows = rows_ + step_ * kAmxRowStepBytes;
    if (single_) {
      AmxMultiplySingle<kHasLow>(rows, columns_, 1, [] {});
    } else {
      AmxMultiplyPair<kHasLow>(rows, columns_, 1, [] {});
    }
    columns_ += AmxColumnStepBytes(kHasLow);
    if (++step_ < steps_) return;
    step_ = 0;
    ++group_;
    Store();
  }

 private:
  PairProduct(const std::byte* rows, const std::byte* columns, size_t steps, size_t groups,
              std::byte* scores, float* output, size_t width)
      : rows_(rows),
        columns_(columns),
        steps_(steps),
        groups_(groups),
        scores_(scores),
        output_(output),
        width_(width) {}

  HWY_INLINE void Store() {
    const size_t stride = width_ * sizeof(float);
    if (output_ != nullptr) {
      if (single_) {
        AmxStore<0>(output_, stride);
        AmxStore<1>(output_ + kAmxRows, stride);
      } else {
        AmxStoreSums(output_, stride);
      }
      output_ += kAmxColumns;
      return;
    }
    if (single_) {
      AmxStore<0>(scores_);
      AmxStore<1>(scores_ + 2 * kAmxTileBytes);
    } else {
      AmxStoreTiles(scores_);
    }
    scores_ += kAmxRowStepBytes;
  }

  bool adds_ = true;     // to the sums in output_
  bool single_ = false;  // only the first 16 rows count
  const std::byte* rows_ = nullptr;
  const std::byte* columns_ = nullptr;
  size_t steps_ = 0;
  size_t groups_ = 0;  // of 32 columns
  std::byte* scores_ = nullptr;
  float* output_ = nullptr;
  size_t width_ = 0;
  size_t step_ = 0;
  size_t group_ = 0;
};

// What is computed beside the exponentials of 32 queries: the values of those before, then the
// scores of the next ones.
template <bool kHasLow>
struct BesideWeights {
  PairProduct<kHasLow> values;
  PairProduct<kHasLow> scores;
  size_t calls = 0;
  size_t advanced = 0;

  HWY_INLINE void Advance() {
    if (!values.done()) {
      values.Advance();
    } else if (!scores.done()) {
      scores.Advance();
    }
  }
  // One of 16 equal shares.
  HWY_INLINE void operator()() {
    constexpr size_t kCalls = kAmxPairRows / 2;
    const size_t due = ++calls * (values.num_steps() + scores.num_steps()) / kCalls;
    for (; advanced < due; ++advanced) Advance();
  }
  void Finish() {
    while (!values.done() || !scores.done()) Advance();
  }
};

// Attends to the chunk whose tiles are in `work`.
template <bool kHasLow>
void AttendChunk(const RowTask& task, const Workspace& work, int32_t begin) {
  const int32_t num_queries = task.end_query(begin);
  int32_t query = 0;
  while (task.position(std::min(query + kPairRows, num_queries) - 1) < begin) query += kPairRows;
  const auto scores = [&](int32_t first, std::byte* to) {
    const auto pair = static_cast<size_t>(first / kPairRows);
    return PairProduct<kHasLow>::Scores(work.queries + pair * work.pair_bytes(), work.keys,
                                        work.steps, to);
  };
  const auto values = [&](int32_t first, const std::byte* weights) {
    const size_t width = work.gathered.width;
    return PairProduct<kHasLow>::Values(
        weights, work.values, work.gathered.output + static_cast<size_t>(first) * width, width);
  };
  BesideWeights<kHasLow> beside;
  beside.scores = scores(query, work.weights[0]);
  for (size_t turn = 0; query < num_queries; query += kPairRows, turn ^= 1) {
    beside.Finish();
    std::byte* const now = work.weights[turn];
    std::byte* const other = work.weights[turn ^ 1];  // of the queries before, then of the next
    BesideWeights<kHasLow> next;
    if (beside.calls > 0) next.values = values(query - kPairRows, other);
    if (query + kPairRows < num_queries) next.scores = scores(query + kPairRows, other);
    beside = next;
    WeighTiles(task, work.gathered, query, begin, reinterpret_cast<float*>(now), beside);
    if (query + kPairRows >= num_queries) {
      beside.Finish();
      beside = {values(query, now), {}};
    }
  }
  beside.Finish();
}

template <bool kHasLow>
void Attend(const RowTask& task, const Workspace& work) {
  const AmxTiles in_use;
  SplitQueries(task, work);
  const auto d = static_cast<size_t>(task.head_dim());
  for (int32_t begin = task.first_chunk(); begin < task.tile.num_keys(); begin += kPrefillChunk) {
    LoadChunk(task, begin, work.chunk);
    AmxSplitColumns<kHasLow>(work.chunk.keys, d, kChunkKeys, work.keys);
    AmxSplitColumns<kHasLow>(work.chunk.values, kChunkKeys, work.chunk.width, work.values);
    AttendChunk<kHasLow>(task, work, begin);
  }
  StoreOutput(task, work.gathered);
}

// Working memory of one task of sparse prefill, beside that of full prefill.
struct PickedWorkspace {
  std::byte* queries;  // tiles of rows [steps of d], those picked
  float* output;       // [32][width], their weighted values
};

// Copies the queries' rows of their tiles side by side.
void GatherQueries(const Workspace& work, std::span<const PickedQuery> picked, std::byte* to) {
  const hn::RebindToUnsigned<Float> du;
  for (size_t r = 0; r < picked.size(); ++r) {
    const auto query = static_cast<size_t>(picked[r].query);
    std::byte* from = work.queries + query / kAmxPairRows * work.pair_bytes();
    for (size_t s = 0; s < work.steps; ++s) {
      const uint32_t* words = AmxRowWords(from + s * kAmxRowStepBytes, query % kAmxPairRows);
      uint32_t* gathered = AmxRowWords(to + s * kAmxRowStepBytes, r);
      hn::Store(hn::Load(du, words), du, gathered);
      hn::Store(hn::Load(du, words + 2 * kAmxTileWords), du, gathered + 2 * kAmxTileWords);
    }
  }
}

// Adds the weighted values of a chunk to what the queries have.
void ScatterValues(const Gathered& gathered, std::span<const PickedQuery> picked, float* values) {
  const Float d;
  for (const PickedQuery& pick : picked) {
    float* to = gathered.output + static_cast<size_t>(pick.query) * gathered.width;
    for (size_t i = 0; i < gathered.width; i += kLanes) {
      hn::Store(hn::Add(hn::Load(d, to + i), hn::Load(d, values + i)), d, to + i);
    }
    values += gathered.width;
  }
}

// Attends to the chunk whose tiles are in `work`, 32 of the picked queries at a time.
template <bool kHasLow>
void AttendPicked(const RowTask& task, const SparseRows& rows, const Workspace& work,
                  const PickedWorkspace& pick, std::span<const PickedQuery> picked, int32_t begin) {
  const size_t width = work.gathered.width;
  const auto some = [&](size_t first) {
    return picked.subspan(first, std::min(kAmxPairRows, picked.size() - first));
  };
  const auto scores = [&](size_t first, std::byte* to) {
    GatherQueries(work, some(first), pick.queries);
    return PairProduct<kHasLow>::FewScores(some(first).size(), pick.queries, work.keys, work.steps,
                                           to);
  };
  const auto values = [&](size_t first, const std::byte* weights) {
    return PairProduct<kHasLow>::FewValues(some(first).size(), weights, work.values, pick.output,
                                           width);
  };
  BesideWeights<kHasLow> beside;
  beside.scores = scores(0, work.weights[0]);
  size_t first = 0;
  for (size_t turn = 0; first < picked.size(); first += kAmxPairRows, turn ^= 1) {
    beside.Finish();
    if (first >= 2 * kAmxPairRows) {
      ScatterValues(work.gathered, some(first - 2 * kAmxPairRows), pick.output);
    }
    std::byte* const now = work.weights[turn];
    std::byte* const other = work.weights[turn ^ 1];  // of the queries before, then of the next
    BesideWeights<kHasLow> next;
    if (first > 0) next.values = values(first - kAmxPairRows, other);
    if (first + kAmxPairRows < picked.size()) next.scores = scores(first + kAmxPairRows, other);
    beside = next;
    WeighPicked(task, rows, work.gathered, some(first), begin, reinterpret_cast<float*>(now),
                beside);
    if (first + kAmxPairRows < picked.size()) continue;
    beside.Finish();
    if (first > 0) ScatterValues(work.gathered, some(first - kAmxPairRows), pick.output);
    beside = {values(first, now), {}};
    beside.Finish();
    ScatterValues(work.gathered, some(first), pick.output);
  }
}

template <bool kHasLow>
void AttendSparse(const RowTask& task) {
  thread_local Scratch scratch;
  thread_local Scratch picked_scratch;
  thread_local SparseRows rows;
  const Workspace work = Carve(scratch, task.num_queries(), task.head_dim());
  const size_t output_bytes = kAmxPairRows * work.gathered.width * sizeof(float);
  std::byte* const memory = picked_scratch.Reserve<std::byte>(work.pair_bytes() + output_bytes);
  const PickedWorkspace pick{memory, reinterpret_cast<float*>(memory + work.pair_bytes())};
  std::fill_n(pick.queries, work.pair_bytes(), std::byte{0});
  const AmxTiles in_use;
  SplitQueries(task, work);
  rows.Begin(task, work.gathered);
  const auto d = static_cast<size_t>(task.head_dim());
  for (int32_t begin = 0; begin < task.tile.num_keys(); begin += kPrefillChunk) {
    const std::span<const PickedQuery> picked = rows.Pick(begin);
    if (picked.empty()) continue;
    LoadChunk(task, begin, work.chunk);
    AmxSplitColumns<kHasLow>(work.chunk.keys, d, kChunkKeys, work.keys);
    AmxSplitColumns<kHasLow>(work.chunk.values, kChunkKeys, work.chunk.width, work.values);
    AttendPicked<kHasLow>(task, rows, work, pick, picked, begin);
  }
  rows.StoreOutput(work.gathered);
}

void AmxPrefillAttentionOnTarget(const Context& context, const AttentionParams& params) {
  const bool windowed = params.window > 0;
  if (!windowed) {
    RunRowTasks(context, params, TileRows::kSparse, kMostSparseQueries, [](const RowTask& task) {
      if (task.params.geometry.dtype == DType::kFloat16) {
        AttendSparse<true>(task);
      } else {
        AttendSparse<false>(task);
      }
    });
  }
  const TileRows dense = windowed ? TileRows::kAll : TileRows::kFull;
  RunRowTasks(context, params, dense, kMostQueries, [](const RowTask& task) {
    thread_local Scratch scratch;
    const Workspace work = Carve(scratch, task.num_queries(), task.head_dim());
    if (task.params.geometry.dtype == DType::kFloat16) {
      Attend<true>(task, work);
    } else {
      Attend<false>(task, work);
    }
  });
}

}  // namespace
}  // namespace HWY_NAMESPACE

void AmxPrefillAttention(const Context& context, const AttentionParams& params) {
  HWY_NAMESPACE::AmxPrefillAttentionOnTarget(context, params);
}

}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // AVX-512
