// Gate and online softmax of prefill queries whose scores come from AMX tiles and whose weights go
// back to them. Two queries at a time, operation by operation: eight vectors hide one another's
// latency.
//
// Where a query's 64 scores lay, its weights are left: the four vectors of row r of 32 are 64 bytes
// each in the four parts of 2 KiB (amx_tile-inl.h), scores by key, then low and high words of
// either step.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_AMX_SOFTMAX_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_AMX_SOFTMAX_INL_H_
#undef ETA_KERNELS_CPU_AMX_SOFTMAX_INL_H_
#else
#define ETA_KERNELS_CPU_AMX_SOFTMAX_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "hwy/highway.h"
#include "kernels/cpu/prefill/row_attention-inl.h"
#include "kernels/cpu/prefill/sparse_rows-inl.h"
#include "kernels/cpu/simd/amx_tile-inl.h"

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

inline constexpr size_t kChunkSteps = kChunkKeys / kAmxDepth;
inline constexpr size_t kScorePart = 2 * kAmxTileBytes / sizeof(float);  // from vector to vector
inline constexpr size_t kPairVectors = 2 * kChunkKeys / kLanes;          // of two queries
using PairVectors = Floats[kPairVectors];
inline constexpr size_t kQueryVectors = kPairVectors / 2;  // of one

// Every element is set before it is read; clearing them first takes a tenth of the time.
#define ETA_UNSET __attribute__((uninitialized))

// Exp2 (simd_math-inl.h) of each vector.
HWY_INLINE void Exp2Each(PairVectors& x) {
  const Float d;
  ETA_UNSET PairVectors r;
  ETA_UNSET PairVectors p;
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    r[i] = Floats{_mm512_reduce_ps(x[i].raw, _MM_FROUND_TO_NEG_INF | _MM_FROUND_NO_EXC)};
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    p[i] = hn::MulAdd(hn::Set(d, 1.8671301e-3f), r[i], hn::Set(d, 9.0170303e-3f));
  }
#pragma GCC unroll 4
  for (const float coefficient : {5.5799913e-2f, 2.4016445e-1f, 6.9315131e-1f, 1.0f}) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairVectors; ++i) {
      p[i] = hn::MulAdd(p[i], r[i], hn::Set(d, coefficient));
    }
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) x[i] = Floats{_mm512_scalef_ps(p[i].raw, x[i].raw)};
}

// x / (1 + 2^y) by an estimate and a step of Newton's: a division takes as long as all the rest.
HWY_INLINE void GateEach(PairVectors& x, PairVectors& y) {
  const Float d;
  const Floats one = hn::Set(d, 1.0f);
  Exp2Each(y);
  ETA_UNSET PairVectors estimate;
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    // Infinity would become NaN. NaN stays: x86 returns the second operand.
    y[i] = hn::Min(hn::Set(d, 0x1p126f), hn::Add(one, y[i]));
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) estimate[i] = hn::ApproximateReciprocal(y[i]);
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) y[i] = hn::NegMulAdd(y[i], estimate[i], one);
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    x[i] = hn::Mul(x[i], hn::MulAdd(estimate[i], y[i], estimate[i]));
  }
}

// What one of two queries brings: the keys of the chunk that it sees, what its gate subtracts, and
// where it gathers.
struct PairQuery {
  SeenKeys seen{0, kPrefillChunk};
  float gate_offset = 0.0f;  // slope * tau_eff
  bool floor = false;        // its pruned keys weigh exp(0)
  float* maximum = nullptr;  // null: there is no such query, or it sees no key
  float* sums = nullptr;     // [lanes]
  float* output = nullptr;   // [width]

  void Gather(const Gathered& gathered, int32_t query) {
    const auto at = static_cast<size_t>(query);
    maximum = gathered.maxima + at;
    sums = gathered.sums + at * kLanes;
    output = gathered.output + at * gathered.width;
  }
};

// Gates the scores of two queries. kSome: as below.
template <bool kSome>
HWY_INLINE void GatePair(const PairQuery (&queries)[2], float slope, PairVectors& x) {
  const Float d;
  ETA_UNSET PairVectors y;
  ETA_UNSET PairVectors gated;
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    gated[i] = x[i];
    y[i] =
        hn::NegMulAdd(hn::Set(d, slope), x[i], hn::Set(d, queries[i / kQueryVectors].gate_offset));
  }
  GateEach(gated, y);
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    if constexpr (kSome) {
      const auto own = hn::Set(d, static_cast<float>(queries[i / kQueryVectors].seen.own));
      const auto key = hn::Iota(d, static_cast<float>(i % kQueryVectors * kLanes));
      x[i] = hn::IfThenElse(hn::Eq(key, own), x[i], gated[i]);
    } else {
      x[i] = gated[i];
    }
  }
}

// Adds the weights of two queries to their sums, and leaves them as terms where the scores lay.
template <bool kSome>
HWY_INLINE void StoreWeights(const PairQuery (&queries)[2], const PairVectors& x, float* scores) {
  const Float d;
  const hn::RebindToUnsigned<Float> du;
#pragma GCC unroll 2
  for (size_t q = 0; q < 2; ++q) {
    if (!kSome || queries[q].maximum != nullptr) {
      Floats sum = hn::Load(d, queries[q].sums);
#pragma GCC unroll 4
      for (size_t v = 0; v < kQueryVectors; ++v) sum = hn::Add(sum, x[q * kQueryVectors + v]);
      hn::Store(sum, d, queries[q].sums);
    }
#pragma GCC unroll 2
    for (size_t s = 0; s < kChunkSteps; ++s) {
      Words high;
      Words low;
      SplitTerms(x[q * kQueryVectors + 2 * s], x[q * kQueryVectors + 2 * s + 1], high, low);
      auto* words = reinterpret_cast<uint32_t*>(scores + q * kLanes + 2 * s * kScorePart);
      hn::Store(low, du, words);
      hn::Store(high, du, words + kScorePart);
    }
  }
}

// Scores of two queries become weights. kSome: one of the two does not see the whole chunk, or its
// own key is in it; an own logit is not gated. kFloor: weights may be less exp(0), which pruned
// keys weigh.
template <Gate kGate, bool kSome, bool kFloor>
HWY_INLINE void WeighPair(const PairQuery (&queries)[2], float slope, float* scores, size_t width) {
  const Float d;
  const Floats lowest = hn::Set(d, -std::numeric_limits<float>::infinity());

  ETA_UNSET PairVectors x;
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    x[i] = hn::Load(d, scores + i / kQueryVectors * kLanes + i % kQueryVectors * kScorePart);
  }
  if constexpr (kGate == Gate::kSilu) GatePair<kSome>(queries, slope, x);
  const auto seen = [&](size_t i) {
    return SeenLanes(queries[i / kQueryVectors].seen.keys, i % kQueryVectors * kLanes);
  };
  if constexpr (kSome) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairVectors; ++i) x[i] = hn::IfThenElse(seen(i), x[i], lowest);
  }

  // Indices are constants throughout: a pointer into a local array would keep it in memory.
  ETA_UNSET Floats shift[2];
#pragma GCC unroll 2
  for (size_t q = 0; q < 2; ++q) {
    const PairQuery& query = queries[q];
    shift[q] = hn::Zero(d);
    if (kSome && query.maximum == nullptr) continue;
    const size_t i = q * kQueryVectors;
    const Floats largest = hn::Max(hn::Max(x[i], x[i + 1]), hn::Max(x[i + 2], x[i + 3]));
    if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(largest, hn::Set(d, *query.maximum + kMaxSlack))))) {
      Rescale(hn::GetLane(hn::MaxOfLanes(d, largest)), *query.maximum, query.sums, query.output,
              width);
    }
    shift[q] = hn::Set(d, -*query.maximum * kLog2E);
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    x[i] = hn::MulAdd(x[i], hn::Set(d, kLog2E), shift[i / kQueryVectors]);
  }
  Exp2Each(x);
  if constexpr (kFloor) {
#pragma GCC unroll 2
    for (size_t q = 0; q < 2; ++q) {
      const Floats floor = queries[q].floor ? Exp2(d, shift[q]) : hn::Zero(d);
#pragma GCC unroll 4
      for (size_t v = 0; v < kQueryVectors; ++v) {
        x[q * kQueryVectors + v] = hn::Sub(x[q * kQueryVectors + v], floor);
      }
    }
  }
  if constexpr (kSome) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairVectors; ++i) x[i] = hn::IfThenElseZero(seen(i), x[i]);
  }
  StoreWeights<kSome>(queries, x, scores);
}

// Makes the scores of tempered keys 0, which is a gated logit of 0, whatever the threshold. Of a
// query that stands at row `row` of its tiles, but for its own key.
HWY_INLINE void TemperScores(const SequenceRows& sequence, int32_t chunk_begin,
                             const SeenKeys& seen, float* scores) {
  const auto count = static_cast<size_t>(std::min(seen.own + 1, kPrefillChunk));
  ForEachTempered(sequence.tempered, static_cast<size_t>(chunk_begin), count,
                  static_cast<size_t>(seen.own),
                  [&](size_t key) { scores[key / kLanes * kScorePart + key % kLanes] = 0.0f; });
}

// The scores of queries [first, first + 32) for the chunk that begins with key `chunk_begin` become
// weights; those of queries that do not exist or do not see the chunk become zeros. `beside` is
// called 16 times in between.
template <Gate kGate, class Beside>
HWY_NOINLINE void WeighTiles(const RowTask& task, const Gathered& gathered, int32_t first,
                             int32_t chunk_begin, float* scores, Beside& beside) {
  const float slope = task.params.beta * kLog2E;
  const SequenceRows& sequence = *task.tile.sequence;
  for (int32_t query = first; query < first + static_cast<int32_t>(kAmxPairRows);
       query += 2, scores += 2 * kLanes) {
    PairQuery queries[2];
    for (int32_t q = 0; q < 2 && query + q < task.num_queries(); ++q) {
      const int32_t num_keys = task.position(query + q) + 1 - chunk_begin;
      if (num_keys <= 0) continue;
      const int32_t first_key = task.first_key(query + q) - chunk_begin;
      if (first_key >= kPrefillChunk) continue;
      queries[q].Gather(gathered, query + q);
      queries[q].seen = SeenKeys::Causal(num_keys, first_key);
      if constexpr (kGate == Gate::kSilu) {
        const int64_t row = task.tile.row((query + q) / task.group);
        const float threshold = task.params.thresholds.row(row)[task.head(query + q)];
        queries[q].gate_offset = slope * (threshold - sequence.attention.offset);
        TemperScores(sequence, chunk_begin, queries[q].seen,
                     scores + static_cast<size_t>(q) * kLanes);
      }
    }
    if (queries[0].seen.all() && queries[1].seen.all()) {
      WeighPair<kGate, false, false>(queries, slope, scores, gathered.width);
    } else {
      WeighPair<kGate, true, false>(queries, slope, scores, gathered.width);
    }
    beside();
  }
}

template <class Beside>
void WeighTiles(const RowTask& task, const Gathered& gathered, int32_t first, int32_t chunk_begin,
                float* scores, Beside& beside) {
  if (task.gated()) {
    WeighTiles<Gate::kSilu>(task, gathered, first, chunk_begin, scores, beside);
  } else {
    WeighTiles<Gate::kNone>(task, gathered, first, chunk_begin, scores, beside);
  }
}

// The same for picked queries of sparse prefill, at most 32. Weights of rows behind them stay
// undefined.
template <Gate kGate, class Beside>
HWY_NOINLINE void WeighPicked(const RowTask& task, const SparseRows& rows, const Gathered& gathered,
                              std::span<const PickedQuery> picked, int32_t chunk_begin,
                              float* scores, Beside& beside) {
  const float slope = task.params.beta * kLog2E;
  for (size_t first = 0; first < picked.size(); first += 2, scores += 2 * kLanes) {
    PairQuery queries[2];
    bool all = first + 1 < picked.size();
    bool floor = false;
    for (size_t q = 0; q < 2 && first + q < picked.size(); ++q) {
      const PickedQuery& pick = picked[first + q];
      const SparseQuery& query = rows[pick.query];
      queries[q].Gather(gathered, pick.query);
      queries[q].seen = pick.seen;
      queries[q].gate_offset = query.gate_offset;
      queries[q].floor = query.floor;
      all = all && pick.seen.all();
      floor = floor || query.floor;
      if constexpr (kGate == Gate::kSilu) {
        TemperScores(*task.tile.sequence, chunk_begin, pick.seen, scores + q * kLanes);
      }
    }
    if (!floor) {
      all ? WeighPair<kGate, false, false>(queries, slope, scores, gathered.width)
          : WeighPair<kGate, true, false>(queries, slope, scores, gathered.width);
    } else {
      all ? WeighPair<kGate, false, true>(queries, slope, scores, gathered.width)
          : WeighPair<kGate, true, true>(queries, slope, scores, gathered.width);
    }
    beside();
  }
}

template <class Beside>
void WeighPicked(const RowTask& task, const SparseRows& rows, const Gathered& gathered,
                 std::span<const PickedQuery> picked, int32_t chunk_begin, float* scores,
                 Beside& beside) {
  if (task.params.gate == Gate::kSilu) {
    WeighPicked<Gate::kSilu>(task, rows, gathered, picked, chunk_begin, scores, beside);
  } else {
    WeighPicked<Gate::kNone>(task, rows, gathered, picked, chunk_begin, scores, beside);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#undef ETA_UNSET

#endif  // AVX-512

#endif  // include guard
