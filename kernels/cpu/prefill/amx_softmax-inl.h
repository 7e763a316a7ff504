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

#include "hwy/highway.h"
#include "kernels/cpu/prefill/row_attention-inl.h"
#include "kernels/cpu/simd/amx_tile-inl.h"

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

inline constexpr size_t kChunkSteps = kChunkKeys / kAmxDepth;
inline constexpr size_t kScorePart = 2 * kAmxTileBytes / sizeof(float);  // from vector to vector
inline constexpr size_t kPairVectors = 2 * kChunkKeys / kLanes;          // of two queries
using PairVectors = Floats[kPairVectors];

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

// What one of two queries brings: keys of the chunk that it sees, its own the last of them, and
// what its gate subtracts.
struct PairQuery {
  int32_t num_keys = 0;      // 0: none, or there is no such query
  float gate_offset = 0.0f;  // slope * tau_eff
};

// `scores` of query `query` of the task and of the next one become weights. kEdge: one of the two
// does not see the whole chunk, or its own key is in it; an own logit is not gated.
template <Gate kGate, bool kEdge>
HWY_INLINE void WeighPair(const PairQuery (&queries)[2], float slope, float* scores,
                          const Gathered& gathered, int32_t query) {
  const Float d;
  const hn::RebindToUnsigned<Float> du;
  constexpr size_t kVectors = kPairVectors / 2;
  const Floats lowest = hn::Set(d, -std::numeric_limits<float>::infinity());
  float* const sums = gathered.sums + static_cast<size_t>(query) * kLanes;
  float* const maxima = gathered.maxima + query;

  ETA_UNSET PairVectors x;
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    x[i] = hn::Load(d, scores + i / kVectors * kLanes + i % kVectors * kScorePart);
  }
  if constexpr (kGate == Gate::kSilu) {
    ETA_UNSET PairVectors y;
    ETA_UNSET PairVectors gated;
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairVectors; ++i) {
      gated[i] = x[i];
      y[i] = hn::NegMulAdd(hn::Set(d, slope), x[i], hn::Set(d, queries[i / kVectors].gate_offset));
    }
    GateEach(gated, y);
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairVectors; ++i) {
      if constexpr (kEdge) {
        const auto own = hn::Set(d, static_cast<float>(queries[i / kVectors].num_keys - 1));
        const auto key = hn::Iota(d, static_cast<float>(i % kVectors * kLanes));
        x[i] = hn::IfThenElse(hn::Eq(key, own), x[i], gated[i]);
      } else {
        x[i] = gated[i];
      }
    }
  }
  const auto seen = [&](size_t i) {
    const auto key = hn::Iota(d, static_cast<float>(i % kVectors * kLanes));
    return hn::Lt(key, hn::Set(d, static_cast<float>(queries[i / kVectors].num_keys)));
  };
  if constexpr (kEdge) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairVectors; ++i) x[i] = hn::IfThenElse(seen(i), x[i], lowest);
  }

  // Indices are constants throughout: a pointer into a local array would keep it in memory.
  ETA_UNSET Floats shift[2];
#pragma GCC unroll 2
  for (size_t q = 0; q < 2; ++q) {
    const size_t i = q * kVectors;
    const Floats largest = hn::Max(hn::Max(x[i], x[i + 1]), hn::Max(x[i + 2], x[i + 3]));
    if (HWY_UNLIKELY(!hn::AllFalse(d, hn::Gt(largest, hn::Set(d, maxima[q] + kMaxSlack))))) {
      Rescale(hn::GetLane(hn::MaxOfLanes(d, largest)), maxima[q], sums + q * kLanes,
              gathered.output + (static_cast<size_t>(query) + q) * gathered.width, gathered.width);
    }
    shift[q] = hn::Set(d, -maxima[q] * kLog2E);
  }
#pragma GCC unroll 8
  for (size_t i = 0; i < kPairVectors; ++i) {
    x[i] = hn::MulAdd(x[i], hn::Set(d, kLog2E), shift[i / kVectors]);
  }
  Exp2Each(x);
  if constexpr (kEdge) {
#pragma GCC unroll 8
    for (size_t i = 0; i < kPairVectors; ++i) x[i] = hn::IfThenElseZero(seen(i), x[i]);
  }
#pragma GCC unroll 2
  for (size_t q = 0; q < 2; ++q) {
    Floats sum = hn::Load(d, sums + q * kLanes);
#pragma GCC unroll 4
    for (size_t v = 0; v < kVectors; ++v) sum = hn::Add(sum, x[q * kVectors + v]);
    hn::Store(sum, d, sums + q * kLanes);
#pragma GCC unroll 2
    for (size_t s = 0; s < kChunkSteps; ++s) {
      Words high;
      Words low;
      SplitTerms(x[q * kVectors + 2 * s], x[q * kVectors + 2 * s + 1], high, low);
      auto* words = reinterpret_cast<uint32_t*>(scores + q * kLanes + 2 * s * kScorePart);
      hn::Store(low, du, words);
      hn::Store(high, du, words + kScorePart);
    }
  }
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
      queries[q].num_keys = num_keys;
      if constexpr (kGate == Gate::kSilu) {
        const int64_t row = task.tile.row((query + q) / task.group);
        const float threshold = task.params.thresholds.row(row)[task.head(query + q)];
        queries[q].gate_offset = slope * (threshold - sequence.attention.offset);
        // A score of 0 is a gated logit of 0, whatever the threshold.
        ForEachTempered(
            sequence.tempered, static_cast<size_t>(chunk_begin),
            static_cast<size_t>(std::min(num_keys, kPrefillChunk)),
            static_cast<size_t>(num_keys - 1), [&](size_t key) {
              scores[static_cast<size_t>(q) * kLanes + key / kLanes * kScorePart + key % kLanes] =
                  0.0f;
            });
      }
    }
    if (std::min(queries[0].num_keys, queries[1].num_keys) > kPrefillChunk) {
      WeighPair<kGate, false>(queries, slope, scores, gathered, query);
    } else {
      WeighPair<kGate, true>(queries, slope, scores, gathered, query);
    }
    beside();
  }
}

template <class Beside>
void WeighTiles(const RowTask& task, const Gathered& gathered, int32_t first, int32_t chunk_begin,
                float* scores, Beside& beside) {
  if (task.params.gate == Gate::kSilu) {
    WeighTiles<Gate::kSilu>(task, gathered, first, chunk_begin, scores, beside);
  } else {
    WeighTiles<Gate::kNone>(task, gathered, first, chunk_begin, scores, beside);
  }
}

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#undef ETA_UNSET

#endif  // AVX-512

#endif  // include guard
