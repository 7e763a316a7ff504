// What a block's record says of the scores of a query, one record per lane, from the query's sums
// over the record's vectors: of q * mu, q^2 * sigma^2 and, of kind outlier, q * k_out. For the
// target that is being compiled: SIMD sources include this file after "hwy/foreach_target.h"; it is
// read once per target.
#if defined(ETA_KERNELS_CPU_SELECT_BLOCK_SCORES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_SELECT_BLOCK_SCORES_INL_H_
#undef ETA_KERNELS_CPU_SELECT_BLOCK_SCORES_INL_H_
#else
#define ETA_KERNELS_CPU_SELECT_BLOCK_SCORES_INL_H_
#endif

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "hwy/highway.h"
#include "kernels/cpu/select/select_group.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/relative_threshold.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using RecordFloats = hn::ScalableTag<float>;
using RecordVector = hn::Vec<RecordFloats>;

// The terms of a query of `d` elements; `centre` [d], null: zero.
inline QueryTerms TermsOf(const float* q, const float* centre, size_t d, float z) {
  const RecordFloats df;
  RecordVector norm = hn::Zero(df);
  RecordVector size = hn::Zero(df);
  RecordVector middle = hn::Zero(df);
  for (size_t i = 0; i < d; i += hn::Lanes(df)) {
    const RecordVector query = hn::LoadU(df, q + i);
    norm = hn::MulAdd(query, query, norm);
    size = hn::Add(size, hn::Abs(query));
    if (centre != nullptr) middle = hn::MulAdd(query, hn::LoadU(df, centre + i), middle);
  }
  return {.norm = std::sqrt(hn::GetLane(hn::SumOfLanes(df, norm))),
          .size = hn::GetLane(hn::SumOfLanes(df, size)) / 2.0f,
          .centre = hn::GetLane(hn::SumOfLanes(df, middle)),
          .z = z};
}

// The bounds of moment records: s * min(<q, mu> + z * deviation, |q| M).
class MomentBounds {
 public:
  MomentBounds() : max_norms_(hn::Zero(RecordFloats())) {}
  explicit MomentBounds(RecordVector max_norms) : max_norms_(max_norms) {}

  HWY_INLINE RecordVector Bound(const QueryTerms& query, const RecordVector* sums,
                                float scale) const {
    const RecordFloats df;
    const RecordVector spread = hn::MulAdd(hn::Set(df, query.z), hn::Sqrt(sums[1]), sums[0]);
    const RecordVector ceiling = hn::Mul(hn::Set(df, query.norm), max_norms_);
    return hn::Mul(hn::Set(df, scale), hn::Min(spread, ceiling));
  }

 private:
  RecordVector max_norms_;
};

// The scores of records of kind outlier as they are stored: without the half steps that rounding
// may have taken.
class OutlierScores {
 public:
  OutlierScores() : OutlierScores(hn::Zero(RecordFloats()), hn::Zero(RecordFloats())) {}
  OutlierScores(RecordVector step, RecordVector outlier_step)
      : step_(step), outlier_step_(outlier_step) {}

  RecordVector step() const { return step_; }
  RecordVector outlier_step() const { return outlier_step_; }
  // <q, mu>, sqrt(sum_i q_i^2 sigma_i^2) and <q, k_out>. An infinite step makes them NaN, since its
  // vectors are zero.
  RecordVector Mean(const RecordVector* sums, RecordVector centre) const {
    return hn::MulAdd(step_, sums[0], centre);
  }
  RecordVector Deviation(const RecordVector* sums) const {
    return hn::Mul(step_, hn::Sqrt(sums[1]));
  }
  RecordVector Outlier(const RecordVector* sums, RecordVector centre) const {
    return hn::MulAdd(outlier_step_, sums[2], centre);
  }

 private:
  RecordVector step_;
  RecordVector outlier_step_;
};

// The bounds of outlier records: s * max(<q, mu> + z * deviation, <q, k_out>), each with half a
// step times |q|_1 for what rounding may have taken.
class OutlierBounds {
 public:
  OutlierBounds() : OutlierBounds(OutlierScores()) {}
  explicit OutlierBounds(const OutlierScores& scores)
      : scores_(scores),
        // 0, or NaN of a step that is infinite: Max() alone could lose it.
        not_finite_(hn::Add(hn::Sub(scores.step(), scores.step()),
                            hn::Sub(scores.outlier_step(), scores.outlier_step()))) {}

  HWY_INLINE RecordVector Bound(const QueryTerms& query, const RecordVector* sums,
                                float scale) const {
    const RecordFloats df;
    const RecordVector half = hn::Set(df, query.size);
    const RecordVector centre = hn::Set(df, query.centre);
    const RecordVector mean = hn::MulAdd(scores_.step(), half, scores_.Mean(sums, centre));
    const RecordVector others = hn::MulAdd(hn::Set(df, query.z), scores_.Deviation(sums), mean);
    const RecordVector outlier =
        hn::MulAdd(scores_.outlier_step(), half, scores_.Outlier(sums, centre));
    return hn::MulAdd(hn::Set(df, scale), hn::Max(others, outlier), not_finite_);
  }

 private:
  OutlierScores scores_;
  RecordVector not_finite_;
};

// The estimated mass of blocks (eta-semantics.md, "Relative thresholds"): what of a block goes into
// the row's mass, and l_j.
class MassRule {
 public:
  struct Mass {
    RecordVector others;   // the log of the other keys' part of the row's mass
    RecordVector outlier;  // that of the outlier
    RecordVector block;    // l_j
  };

  explicit MassRule(int32_t block_size) {
    const auto others = static_cast<float>(block_size - 1);
    log_others_ = std::log(others);
    reach_ = others > 1.0f ? std::sqrt(2.0f * log_others_) : 0.0f;
  }

  HWY_INLINE Mass Estimate(const OutlierScores& scores, float query_centre,
                           const RecordVector* sums, float softmax_scale) const {
    const RecordFloats df;
    const RecordVector scale = hn::Set(df, softmax_scale);
    const RecordVector centre = hn::Set(df, query_centre);
    const RecordVector deviation =
        hn::Mul(hn::Mul(scale, scores.Deviation(sums)), hn::Set(df, kOfEnvelope));
    const RecordVector outlier = hn::Mul(scale, scores.Outlier(sums, centre));
    const RecordVector others =
        hn::MulAdd(scale, scores.Mean(sums, centre), hn::Set(df, log_others_));
    // Up to g the mean of exp() grows by v/2, from there on by its tangent, since one key carries
    // the sum. The deviation is a factor, so a NaN stays one whatever Min() makes of it.
    const RecordVector gaussian = hn::Min(deviation, hn::Set(df, reach_));
    const RecordVector factor = hn::NegMulAdd(gaussian, hn::Set(df, 0.5f), deviation);
    return {others, outlier, LogAdd(df, hn::MulAdd(gaussian, factor, others), outlier)};
  }

 private:
  float log_others_;  // -infinity of none
  float reach_;       // g
};

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
