// Screening for absolute thresholds: a query head admits a block if the bound on its scores, from q
// [HQ * d] and the block's record, reaches tau_eff (eta-semantics.md, "Selection", steps 1 and 2).

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/screen.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/select/record_walk-inl.h"
#include "kernels/cpu/select/select_group.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The bounds of the records in the lanes, by their kind.
struct MomentRecords {
  using Vectors = MomentVectors;
  using Bounds = MomentBounds;
  static Bounds Of(const KvTile& tile, const RecordLanes& lanes) {
    alignas(64) float max_norms[kRecordLanes];
    for (size_t r = 0; r < kRecordLanes; ++r) {
      max_norms[r] = *tile.MaxNorm(const_cast<std::byte*>(lanes.records[r]));
    }
    return Bounds(hn::Load(Floats(), max_norms));
  }
};
struct OutlierRecords {
  using Vectors = OutlierVectors;
  using Bounds = OutlierBounds;
  static Bounds Of(const KvTile& tile, const RecordLanes& lanes) {
    return Bounds(ScoresOf(tile, lanes));
  }
};

// Compares bounds with thresholds, one record per lane, and keeps the best for the rescue.
template <class Records>
class Screen {
 public:
  Screen(const SelectBlocksParams& params, const SelectGroup& group, SelectScratch& scratch)
      : params_(params), group_(group), scratch_(scratch), tile_(params.geometry) {}

  // Writes the masks of the full blocks begin .. end - 1.
  void Run(int32_t begin, int32_t end, ScreenResult& result) {
    const RecordWalk<typename Records::Vectors> walk(params_, group_, scratch_);
    walk.Start();
    Start(walk.num_heads());
    walk.Run(group_.FreeBegin(begin), group_.FreeEnd(end), *this);
    const uint32_t all = AllHeads(walk.num_heads());
    for (int32_t i = begin; i < std::min(end, group_.first_free); ++i) group_.heads[i] = all;
    for (int32_t i = std::max(begin, group_.first_pinned); i < end; ++i) group_.heads[i] = all;
    Finish(walk.num_heads(), result);
  }

  // Called by the walk.
  HWY_INLINE void Begin(const RecordLanes& lanes) {
    first_ = lanes.first;
    count_ = lanes.count;
    bounds_ = Records::Of(tile_, lanes);
    bits_ = hn::Zero(hn::RebindToUnsigned<Floats>());
  }

  // Bit `head` of a lane is set if the head admits.
  HWY_INLINE void Head(size_t head, const Vector* sums) {
    const Floats df;
    const hn::RebindToUnsigned<Floats> du;
    const Vector bound = bounds_.Bound(scratch_.terms[head], sums, params_.softmax_scale);
    if (first_ < group_.rescue_end) KeepBest(head, bound);
    const auto admitted = hn::Ge(bound, hn::Set(df, Threshold(head)));
    bits_ = hn::Or(
        bits_, hn::IfThenElseZero(hn::RebindMask(du, admitted), hn::Set(du, uint32_t{1} << head)));
  }

  HWY_INLINE void End() {
    alignas(64) uint32_t lanes[kRecordLanes];
    hn::Store(bits_, hn::RebindToUnsigned<Floats>(), lanes);
    std::copy_n(lanes, count_, group_.heads + first_);
    for (int32_t i = first_; i < std::min(first_ + count_, group_.rescue_end); ++i) {
      admitted_early_ |= lanes[i - first_];
    }
  }

 private:
  void Start(size_t num_heads) {
    const Floats df;
    const hn::RebindToSigned<Floats> di;
    for (size_t h = 0; h < num_heads; ++h) {
      hn::Store(hn::Set(df, -std::numeric_limits<float>::infinity()), df,
                scratch_.best_bounds + h * kRecordLanes);
      hn::Store(hn::Set(di, -1), di, scratch_.best_ordinals + h * kRecordLanes);
    }
  }

  float Threshold(size_t head) const {
    const auto first_head = static_cast<size_t>(group_.kv_head) *
                            static_cast<size_t>(params_.num_query_heads / tile_.num_kv_heads);
    return params_.thresholds.row(group_.row)[first_head + head] -
           group_.sequence->attention.offset;
  }

  HWY_INLINE void KeepBest(size_t head, Vector bound) {
    const Floats df;
    const hn::RebindToSigned<Floats> di;
    float* bounds = scratch_.best_bounds + head * kRecordLanes;
    int32_t* ordinals = scratch_.best_ordinals + head * kRecordLanes;
    const auto ordinal = hn::Iota(di, first_);
    const auto best = hn::Load(df, bounds);
    const auto held = hn::Load(di, ordinals);
    // On a tie the first of a lane's ordinals is kept.
    const auto better =
        hn::Or(hn::RebindMask(di, hn::Gt(bound, best)), hn::Eq(held, hn::Set(di, -1)));
    const auto wins = hn::And(better, hn::Lt(ordinal, hn::Set(di, group_.rescue_end)));
    hn::Store(hn::IfThenElse(hn::RebindMask(df, wins), bound, best), df, bounds);
    hn::Store(hn::IfThenElse(wins, ordinal, held), di, ordinals);
  }

  void Finish(size_t num_heads, ScreenResult& result) const {
    result.admitted_early = admitted_early_;
    for (size_t h = 0; h < num_heads; ++h) {
      BestBlock best;
      for (size_t lane = h * kRecordLanes; lane < (h + 1) * kRecordLanes; ++lane) {
        const BestBlock candidate{scratch_.best_bounds[lane], scratch_.best_ordinals[lane]};
        if (candidate.ordinal < 0) continue;
        if (best.ordinal < 0 || candidate.bound > best.bound ||
            (candidate.bound == best.bound && candidate.ordinal < best.ordinal)) {
          best = candidate;
        }
      }
      result.best[h] = best;
    }
  }

  const SelectBlocksParams& params_;
  const SelectGroup& group_;
  SelectScratch& scratch_;
  const KvTile tile_;
  typename Records::Bounds bounds_;
  int32_t first_ = 0;
  int32_t count_ = 0;
  hn::Vec<hn::RebindToUnsigned<Floats>> bits_;
  uint32_t admitted_early_ = 0;
};

void ScreenOnTarget(const SelectBlocksParams& params, const SelectGroup& group, int32_t range,
                    SelectScratch& scratch, ScreenResult& result) {
  const int32_t begin = range * kScreenBlocks;
  if (params.geometry.index == IndexKind::kOutlier) {
    Screen<OutlierRecords>(params, group, scratch).Run(begin, group.End(begin), result);
  } else {
    Screen<MomentRecords>(params, group, scratch).Run(begin, group.End(begin), result);
  }
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(ScreenOnTarget);

void ScreenRange(const SelectBlocksParams& params, const SelectGroup& group, int32_t range,
                 SelectScratch& scratch, ScreenResult& result) {
  HWY_DYNAMIC_DISPATCH(ScreenOnTarget)(params, group, range, scratch, result);
}

}  // namespace eta::cpu
#endif
