// The rule of relative thresholds (eta-semantics.md, "Relative thresholds"): from q [HQ * d] and
// the records, l_j of every block and the row's Lhat; then the blocks whose l_j reaches
// Lhat + c - a.
//
// There are two phases, since Lhat needs all blocks. Tasks over ranges of blocks write l_j and sum
// exponentials: of records, and of the scores of every key that is read in any case. The last task
// of a row and KV head adds the sums, in the order of ranges, and admits. Ranges and lanes do not
// depend on threads, so the sums do not either.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/estimated_mass.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/select/mass_sum-inl.h"
#include "kernels/cpu/select/record_walk-inl.h"
#include "kernels/cpu/select/select_group.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/cpu/simd/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

class Estimate {
 public:
  Estimate(const SelectBlocksParams& params, const SelectGroup& group, SelectScratch& scratch)
      : params_(params),
        group_(group),
        scratch_(scratch),
        tile_(params.geometry),
        rule_(params.geometry.block_size) {}

  // The blocks of ordinals begin .. end - 1; the last range takes the tail too.
  void Run(int32_t begin, int32_t end, ScreenResult& result) {
    const RecordWalk<OutlierVectors> walk(params_, group_, scratch_);
    num_heads_ = walk.num_heads();
    walk.Start();
    for (size_t h = 0; h < num_heads_; ++h) SumOf(h).Clear();
    walk.Run(group_.FreeBegin(begin), group_.FreeEnd(end), *this);
    switch (params_.geometry.dtype) {
      case DType::kFloat16:
        ScoreKeys<Float16Elements>(begin, end);
        break;
      case DType::kBFloat16:
        ScoreKeys<BFloat16Elements>(begin, end);
        break;
      default:
        ScoreKeys<Float32Elements>(begin, end);
    }
    for (size_t h = 0; h < num_heads_; ++h) result.mass[h] = SumOf(h).Log();
  }

  // Called by the walk.
  HWY_INLINE void Begin(const RecordLanes& lanes) {
    first_ = lanes.first;
    count_ = lanes.count;
    scores_ = ScoresOf(tile_, lanes);
  }

  HWY_INLINE void Head(size_t head, const Vector* sums) {
    const Floats df;
    const MassRule::Mass mass =
        rule_.Estimate(scores_, scratch_.terms[head].centre, sums, params_.softmax_scale);
    StoreMass(head, mass.block);

    const auto valid = hn::FirstN(df, static_cast<size_t>(count_));
    const Vector none = hn::Set(df, -std::numeric_limits<float>::infinity());
    const Vector exponents[2] = {hn::IfThenElse(valid, mass.others, none),
                                 hn::IfThenElse(valid, mass.outlier, none)};
    SumOf(head).Add(exponents, hn::Max(exponents[0], exponents[1]));
  }

  HWY_INLINE void End() const {}

 private:
  MassSum SumOf(size_t head) const {
    return {scratch_.mass_bases + head * kRecordLanes, scratch_.mass_sums + head * kRecordLanes};
  }

  HWY_INLINE void StoreMass(size_t head, Vector mass) const {
    float* to = group_.masses + head * group_.mass_stride + first_;
    if (HWY_LIKELY(count_ == static_cast<int32_t>(kRecordLanes))) {
      hn::StoreU(mass, Floats(), to);
      return;
    }
    // What follows may be another task's.
    alignas(64) float lanes[kRecordLanes];
    hn::Store(mass, Floats(), lanes);
    std::copy_n(lanes, count_, to);
  }

  // Adds the scores of all keys of the range that are read in any case.
  template <class Elements>
  void ScoreKeys(int32_t begin, int32_t end) {
    const int32_t sinks_end = std::min(end, group_.first_free);
    const int32_t pinned_begin = std::max(begin, group_.first_pinned);
    const int32_t tail = group_.num_keys - group_.full_blocks * tile_.block_size;
    const bool has_tail = end == group_.full_blocks && tail > 0;
    if (begin >= sinks_end && pinned_begin >= end && !has_tail) return;
    ScaleQueries();
    for (int32_t j = begin; j < sinks_end; ++j) ScoreBlock<Elements>(j, tile_.block_size);
    for (int32_t j = pinned_begin; j < end; ++j) ScoreBlock<Elements>(j, tile_.block_size);
    if (has_tail) ScoreBlock<Elements>(group_.full_blocks, tail);
  }

  void ScaleQueries() const {
    const Floats df;
    for (size_t h = 0; h < num_heads_; ++h) {
      for (size_t i = 0; i < static_cast<size_t>(tile_.head_dim); i += kRecordLanes) {
        const Vector query = hn::Load(df, scratch_.queries + h * kMaxHeadDim + i);
        hn::Store(hn::Mul(query, hn::Set(df, params_.softmax_scale)), df,
                  scratch_.scaled + h * kTileRowStride + i);
      }
    }
  }

  template <class Elements>
  void ScoreBlock(int32_t ordinal, int32_t keys) const {
    const Floats df;
    const int32_t block = group_.sequence->table(params_.kv.table)[static_cast<size_t>(ordinal)];
    const auto* from = reinterpret_cast<const typename Elements::Stored*>(
        tile_.K(params_.kv, block, group_.kv_head));
    const auto valid = static_cast<size_t>(keys);
    const size_t padded = (valid + 15) / 16 * 16;
    Multiply<Elements, false>(scratch_.scaled,
                              Tile<Elements>{from, static_cast<size_t>(tile_.key_stride),
                                             static_cast<size_t>(tile_.head_dim), padded, 0},
                              num_heads_, kIdentityRows.data(), scratch_.scores);
    const Vector none = hn::Set(df, -std::numeric_limits<float>::infinity());
    for (size_t h = 0; h < num_heads_; ++h) {
      const float* scores = scratch_.scores + h * kTileRowStride;
      for (size_t t = 0; t < valid; t += kRecordLanes) {
        const Vector score = hn::Load(df, scores + t);
        const Vector exponents[1] = {hn::IfThenElse(hn::FirstN(df, valid - t), score, none)};
        SumOf(h).Add(exponents, exponents[0]);
      }
    }
  }

  const SelectBlocksParams& params_;
  const SelectGroup& group_;
  SelectScratch& scratch_;
  const KvTile tile_;
  const MassRule rule_;
  size_t num_heads_ = 0;
  OutlierScores scores_;
  int32_t first_ = 0;
  int32_t count_ = 0;
};

void EstimateOnTarget(const SelectBlocksParams& params, const SelectGroup& group, int32_t range,
                      SelectScratch& scratch, ScreenResult& result) {
  const int32_t begin = range * kScreenBlocks;
  Estimate(params, group, scratch).Run(begin, group.End(begin), result);
}

// Sets the bit of each head whose mass reaches its effective threshold [G], in the blocks of which
// heads choose. Every head admits the others.
void WriteMasks(const SelectGroup& group, const float* thresholds, size_t num_heads) {
  const Floats df;
  const hn::RebindToUnsigned<Floats> du;
  const uint32_t all = AllHeads(num_heads);
  std::fill(group.heads, group.heads + group.first_free, all);
  std::fill(group.heads + group.first_pinned, group.heads + group.full_blocks, all);
  int32_t i = group.first_free;
  for (; i + static_cast<int32_t>(kRecordLanes) <= group.first_pinned;
       i += static_cast<int32_t>(kRecordLanes)) {
    auto bits = hn::Zero(du);
    for (size_t h = 0; h < num_heads; ++h) {
      const auto mass = hn::LoadU(df, group.masses + h * group.mass_stride + i);
      const auto admitted = hn::RebindMask(du, hn::Ge(mass, hn::Set(df, thresholds[h])));
      bits = hn::Or(bits, hn::IfThenElseZero(admitted, hn::Set(du, uint32_t{1} << h)));
    }
    hn::StoreU(bits, du, group.heads + i);
  }
  for (; i < group.first_pinned; ++i) {
    uint32_t bits = 0;
    for (size_t h = 0; h < num_heads; ++h) {
      const bool admitted =
          group.masses[h * group.mass_stride + static_cast<size_t>(i)] >= thresholds[h];
      bits |= admitted ? uint32_t{1} << h : 0;
    }
    group.heads[i] = bits;
  }
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(EstimateOnTarget);
HWY_EXPORT(WriteMasks);

namespace {

// Lhat of one head: the log of the sum over ranges, and the sink's logit (-infinity: none).
float RowMass(std::span<const ScreenResult> results, size_t head, float sink) {
  float max = sink;
  for (const ScreenResult& result : results) max = std::max(max, result.mass[head]);
  float sum = sink == -std::numeric_limits<float>::infinity() ? 0.0f : std::exp(sink - max);
  for (const ScreenResult& result : results) sum += std::exp(result.mass[head] - max);
  return max + std::log(sum);
}

// Makes a head that admitted none of the first blocks admit the one with the largest mass, the
// first of equals.
void RescueByMass(const SelectGroup& group, size_t head) {
  const uint32_t bit = uint32_t{1} << head;
  uint32_t admitted = 0;
  for (int32_t i = 0; i < group.rescue_end; ++i) admitted |= group.heads[i];
  if (group.rescue_end == 0 || (admitted & bit) != 0) return;
  const float* masses = group.masses + head * group.mass_stride;
  const auto* best = std::max_element(masses, masses + group.rescue_end);
  AdmitRescued(group, head, static_cast<int32_t>(best - masses));
}

}  // namespace

void EstimateRange(const SelectBlocksParams& params, const SelectGroup& group, int32_t range,
                   SelectScratch& scratch, ScreenResult& result) {
  HWY_DYNAMIC_DISPATCH(EstimateOnTarget)(params, group, range, scratch, result);
}

void AdmitByMass(const SelectBlocksParams& params, const SelectGroup& group,
                 std::span<const ScreenResult> results) {
  const auto num_heads = static_cast<size_t>(params.num_query_heads / params.geometry.num_kv_heads);
  const AttentionOptions& options = group.sequence->attention;
  float* thresholds =
      params.thresholds.row(group.row) + static_cast<size_t>(group.kv_head) * num_heads;
  std::array<float, kMaxGroup> effective;
  for (size_t h = 0; h < num_heads; ++h) {
    const float sink = params.sinks != nullptr
                           ? params.sinks[static_cast<size_t>(group.kv_head) * num_heads + h]
                           : -std::numeric_limits<float>::infinity();
    thresholds[h] = RowMass(results, h, sink) + options.relative_c;
    effective[h] = thresholds[h] - options.offset;
  }
  if (group.reads_all()) return;
  HWY_DYNAMIC_DISPATCH(WriteMasks)(group, effective.data(), num_heads);
  for (size_t h = 0; h < num_heads; ++h) RescueByMass(group, h);
}

}  // namespace eta::cpu
#endif
