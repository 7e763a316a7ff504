// Screening of rows of sparse prefill, a tile of them at a time (eta-semantics.md, "Selection",
// steps 1 to 4, and "Relative thresholds").
//
// A tile's queries meet the same records, so screening is a matrix product: queries times the
// records' vectors, which are widened and transposed once for the tile. A decode row has few
// queries, and walks over its records instead (record_walk-inl.h).
//
// With AMX the scores of keys that are always read, which relative thresholds need, are products of
// tiles as those of prefill's softmax are. All that compares with records is in float32.
//
// A query's sums run in an order that the query alone fixes: panels begin at the first block that
// is not a sink, whatever the tile.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/select/prefill_screen.cc"
#include "hwy/foreach_target.h"  // IWYU pragma: keep
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <cmath>
#include <iterator>
#include <limits>
#include <vector>

#include "hwy/highway.h"
#include "kernels/block_bound.h"
#include "kernels/cpu/select/always_read-inl.h"
#include "kernels/cpu/select/block_scores-inl.h"
#include "kernels/cpu/select/mask_bits.h"
#include "kernels/cpu/select/mass_sum-inl.h"
#include "kernels/cpu/select/record_panel-inl.h"
#include "kernels/cpu/select/select_tile.h"
#include "kernels/cpu/select/tile_queries-inl.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/kv_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {
namespace {

HWY_INLINE uint64_t BitsOf(hn::Mask<Float> mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(Float(), mask, bytes);
  return bytes[0] | static_cast<uint64_t>(bytes[1]) << 8;
}

template <bool kOutlier>
class TileScreen : TileQueries {
 public:
  TileScreen(const SelectPrefillParams& params, const SelectTile& tile, TileScratch& scratch)
      : TileQueries(params, tile, scratch.rows),
        relative_(IsRelative(*tile.sequence, params.geometry)),
        tiles_(scratch.amx ? &scratch.tiles : nullptr),
        first_free_(rows_.back().first_free),
        end_free_(rows_.back().first_pinned) {
    const size_t num_panels =
        (static_cast<size_t>(end_free_ - first_free_) + kPanelBlocks - 1) / kPanelBlocks;
    const size_t query_floats = (num_queries_ + kQueries - 1) / kQueries * kQueries * d_;
    mass_stride_ = num_panels * kPanelBlocks;
    const size_t sizes[] = {num_panels * panel_floats(),
                            query_floats,
                            query_floats,
                            kSums * kProducts,
                            kProducts,
                            kProducts,
                            num_queries_ * kLanes,
                            num_queries_ * kLanes,
                            kQueries * mass_stride_,
                            d_ * kMaxBlockSize};
    size_t total = 0;
    for (const size_t size : sizes) total += size;
    auto* next = scratch.floats.Reserve<float>(total);
    float* arrays[std::size(sizes)];
    for (size_t i = 0; i < std::size(sizes); ++i) {
      arrays[i] = next;
      next += sizes[i];
    }
    panels_ = arrays[0];
    queries_ = arrays[1];
    squares_ = arrays[2];
    products_ = arrays[3];
    best_bounds_ = arrays[4];
    best_ordinals_ = reinterpret_cast<int32_t*>(arrays[5]);
    row_masses_ = {arrays[6], arrays[7]};
    masses_ = arrays[8];
    keys_ = arrays[9];
  }

  void Run() {
    LoadQueries();
    for (int32_t first = first_free_; first < end_free_; first += kPanelStep) LoadPanel(first);
    if (relative_) {
      for (size_t query = 0; query < num_queries_; ++query) row_masses_.Of(query).Clear();
      AlwaysReadKeys(*this, row_masses_, queries_, products_, keys_, tiles_).Run();
    }
    for (size_t first = 0; first < num_queries_; first += kQueries) {
      const size_t end = std::min(first + kQueries, num_queries_);
      if constexpr (kOutlier) {
        if (relative_) {
          AdmitByMass(first, end);
          continue;
        }
      }
      AdmitByBound(first, end);
    }
    for (size_t query = 0; query < num_queries_; ++query) {
      const RowBlocks& row = RowOf(query);
      SetBits(MaskOf(query), 0, row.first_free);
      SetBits(MaskOf(query), row.first_pinned, row.full_blocks);
    }
  }

 private:
  static constexpr size_t kSums = kOutlier ? 3 : 2;
  static constexpr size_t kProducts = kQueries * kPanelBlocks;
  static constexpr auto kPanelStep = static_cast<int32_t>(kPanelBlocks);

  size_t panel_floats() const { return PanelFloats(kSums, d_); }
  Panel PanelAt(int32_t first) const {
    const auto at = static_cast<size_t>(first - first_free_) / kPanelBlocks;
    float* const vectors = panels_ + at * panel_floats();
    return {vectors, vectors + kSums * d_ * kPanelBlocks};
  }

  // Queries and their squares, [d][kQueries] each.
  void LoadQueries() const {
    const size_t padded = (num_queries_ + kQueries - 1) / kQueries * kQueries;
    for (size_t query = 0; query < padded; ++query) {
      const float* from = query < num_queries_ ? Query(query) : nullptr;
      const size_t at = query / kQueries * kQueries * d_ + query % kQueries;
      for (size_t i = 0; i < d_; ++i) {
        const float x = from != nullptr ? from[i] : 0.0f;
        queries_[at + i * kQueries] = x;
        squares_[at + i * kQueries] = x * x;
      }
    }
  }

  void LoadPanel(int32_t first) const {
    const int32_t count = std::min(kPanelStep, end_free_ - first);
    const Panel panel = PanelAt(first);
    if (count < kPanelStep) std::fill_n(panel.vectors, panel_floats(), 0.0f);
    for (int32_t r = 0; r < count; ++r) {
      const int32_t block = tile_.sequence->table(params_.kv.table)[static_cast<size_t>(first + r)];
      LoadRecord<kOutlier>(layout_, layout_.Record(params_.kv, block, tile_.kv_head),
                           static_cast<size_t>(r), panel);
    }
  }

  // The sums of queries from `first` on over the records of a panel.
  void MultiplyPanel(size_t first, const Panel& panel) const {
    const size_t at = first * d_;
    for (size_t s = 0; s < kSums; ++s) {
      MultiplyQueries((s == 1 ? squares_ : queries_) + at, d_,
                      {panel.vectors + s * d_ * kPanelBlocks, kPanelBlocks},
                      products_ + s * kProducts);
    }
  }

  // Of query `r` of a product: its sums over the records of half a panel.
  HWY_INLINE void LoadSums(size_t r, size_t half, Floats (&sums)[kSums]) const {
#pragma GCC unroll 3
    for (size_t s = 0; s < kSums; ++s) {
      sums[s] = hn::Load(Float(), products_ + s * kProducts + r * kPanelBlocks + half * kLanes);
    }
  }

  HWY_INLINE OutlierScores ScoresOf(const Panel& panel, size_t half) const {
    const Float d;
    return {hn::Load(d, panel.scales + half * kLanes),
            hn::Load(d, panel.scales + kPanelBlocks + half * kLanes)};
  }

  HWY_INLINE Floats Bound(const Panel& panel, const QueryTerms& query, size_t half,
                          const Floats (&sums)[kSums]) const {
    if constexpr (kOutlier) {
      return OutlierBounds(ScoresOf(panel, half)).Bound(query, sums, params_.softmax_scale);
    } else {
      return MomentBounds(hn::Load(Float(), panel.scales + half * kLanes))
          .Bound(query, sums, params_.softmax_scale);
    }
  }

  // Bits of the ordinals [first, first + kLanes) before `end`.
  static uint64_t Before(int32_t first, int32_t end) {
    const auto lanes = static_cast<int32_t>(kLanes);
    return (uint64_t{1} << std::clamp(end - first, 0, lanes)) - 1;
  }

  // Absolute thresholds.
  void AdmitByBound(size_t first, size_t end) const {
    const Float d;
    const hn::RebindToSigned<Float> di;
    QueryTerms terms[kQueries];
    float thresholds[kQueries];
    int32_t rescue_end = 0;  // of any of them
    for (size_t query = first; query < end; ++query) {
      terms[query - first] = TermsOfQuery(query);
      thresholds[query - first] = Threshold(query) - options_.offset;
      rescue_end = std::max(rescue_end, RowOf(query).rescue_end);
    }
    std::fill_n(best_bounds_, kProducts, -std::numeric_limits<float>::infinity());
    std::fill_n(best_ordinals_, kProducts, -1);
    for (int32_t block = first_free_; block < RowOf(end - 1).first_pinned; block += kPanelStep) {
      const Panel panel = PanelAt(block);
      MultiplyPanel(first, panel);
      for (size_t query = first; query < end; ++query) {
        const size_t r = query - first;
        for (size_t half = 0; half < 2; ++half) {
          const int32_t ordinal = block + static_cast<int32_t>(half * kLanes);
          if (ordinal >= RowOf(query).first_pinned) break;
          Floats sums[kSums];
          LoadSums(r, half, sums);
          const Floats bound = Bound(panel, terms[r], half, sums);
          const uint64_t admitted = BitsOf(hn::Ge(bound, hn::Set(d, thresholds[r])));
          AddBits(MaskOf(query), ordinal, admitted & Before(ordinal, RowOf(query).first_pinned));
          if (ordinal < RowOf(query).rescue_end) {
            KeepBest(r * kPanelBlocks + half * kLanes, bound, hn::Iota(di, ordinal),
                     RowOf(query).rescue_end);
          }
        }
      }
    }
    if (rescue_end == 0) return;
    for (size_t query = first; query < end; ++query) {
      const RowBlocks& row = RowOf(query);
      if (row.rescue_end == 0 || HasBit(MaskOf(query), row.rescue_end)) continue;
      const int32_t best = Best(query - first);
      SetBits(MaskOf(query), best, best + 1);
    }
  }

  HWY_INLINE void KeepBest(size_t at, Floats bound, hn::Vec<hn::RebindToSigned<Float>> ordinal,
                           int32_t rescue_end) const {
    const Float d;
    const hn::RebindToSigned<Float> di;
    const auto best = hn::Load(d, best_bounds_ + at);
    const auto held = hn::Load(di, best_ordinals_ + at);
    // On a tie the first of a lane's ordinals is kept.
    const auto better =
        hn::Or(hn::RebindMask(di, hn::Gt(bound, best)), hn::Eq(held, hn::Set(di, -1)));
    const auto wins = hn::And(better, hn::Lt(ordinal, hn::Set(di, rescue_end)));
    hn::Store(hn::IfThenElse(hn::RebindMask(d, wins), bound, best), d, best_bounds_ + at);
    hn::Store(hn::IfThenElse(wins, ordinal, held), di, best_ordinals_ + at);
  }

  // The ordinal of the best bound, the first of equals.
  int32_t Best(size_t r) const {
    BestBlock best;
    for (size_t at = r * kPanelBlocks; at < (r + 1) * kPanelBlocks; ++at) {
      const BestBlock candidate{best_bounds_[at], best_ordinals_[at]};
      if (candidate.ordinal < 0) continue;
      if (best.ordinal < 0 || candidate.bound > best.bound ||
          (candidate.bound == best.bound && candidate.ordinal < best.ordinal)) {
        best = candidate;
      }
    }
    return best.ordinal;
  }

  // Relative thresholds.
  void AdmitByMass(size_t first, size_t end) const {
    const Float d;
    const MassRule rule(layout_.block_size);
    QueryTerms terms[kQueries];
    for (size_t query = first; query < end; ++query) terms[query - first] = TermsOfQuery(query);
    for (int32_t block = first_free_; block < RowOf(end - 1).first_pinned; block += kPanelStep) {
      const Panel panel = PanelAt(block);
      MultiplyPanel(first, panel);
      for (size_t query = first; query < end; ++query) {
        float* const masses = MassesOf(query - first) + (block - first_free_);
        for (size_t half = 0; half < 2; ++half) {
          const int32_t ordinal = block + static_cast<int32_t>(half * kLanes);
          const int32_t left = RowOf(query).first_pinned - ordinal;
          if (left <= 0) break;
          Floats sums[kSums];
          LoadSums(query - first, half, sums);
          const MassRule::Mass mass = rule.Estimate(
              ScoresOf(panel, half), terms[query - first].centre, sums, params_.softmax_scale);
          hn::Store(mass.block, d, masses + half * kLanes);
          const auto valid = FirstLanes(left);
          const Floats none = hn::Set(d, -std::numeric_limits<float>::infinity());
          const Floats exponents[2] = {hn::IfThenElse(valid, mass.others, none),
                                       hn::IfThenElse(valid, mass.outlier, none)};
          row_masses_.Of(query).Add(exponents, hn::Max(exponents[0], exponents[1]));
        }
      }
    }
    for (size_t query = first; query < end; ++query) {
      float mass = row_masses_.Of(query).Log();
      if (params_.sinks != nullptr) mass = eta::LogAdd(mass, params_.sinks[HeadOf(query)]);
      Threshold(query) = mass + options_.relative_c;
      CompareMasses(query, MassesOf(query - first));
    }
  }

  float* MassesOf(size_t r) const {
    return masses_ + r * mass_stride_;
  }

  // Sets the bits of the blocks whose mass reaches the effective threshold, and the rescued one.
  void CompareMasses(size_t query, const float* masses) const {
    const Float d;
    const RowBlocks& row = RowOf(query);
    uint64_t* const mask = MaskOf(query);
    const Floats threshold = hn::Set(d, Threshold(query) - options_.offset);
    for (int32_t j = first_free_; j < row.first_pinned; j += static_cast<int32_t>(kLanes)) {
      const uint64_t admitted = BitsOf(hn::Ge(hn::Load(d, masses + (j - first_free_)), threshold));
      AddBits(mask, j, admitted & Before(j, row.first_pinned));
    }
    if (row.rescue_end == 0 || HasBit(mask, row.rescue_end)) return;
    const auto best =
        static_cast<int32_t>(std::max_element(masses, masses + row.rescue_end) - masses);
    SetBits(mask, best, best + 1);
  }

  const bool relative_;
  Scratch* const tiles_;
  // Of the ordinals [first_free_, end_free_) some row chooses.
  const int32_t first_free_;
  const int32_t end_free_;
  size_t mass_stride_ = 0;
  float* panels_;
  float* queries_;          // [tiles of kQueries][d][kQueries]
  float* squares_;          // likewise
  float* products_;         // [sums][kQueries][kPanelBlocks]
  float* best_bounds_;      // [kQueries][kPanelBlocks]
  int32_t* best_ordinals_;  // likewise
  TileMasses row_masses_;
  float* masses_;  // [kQueries][mass_stride_], l_j
  float* keys_;    // [d][kMaxBlockSize]
};

void ScreenTileOnTarget(const SelectPrefillParams& params, const SelectTile& tile,
                        TileScratch& scratch) {
  if (params.geometry.index == IndexKind::kOutlier) {
    TileScreen<true>(params, tile, scratch).Run();
  } else {
    TileScreen<false>(params, tile, scratch).Run();
  }
}

}  // namespace
}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(ScreenTileOnTarget);

void ScreenTile(const SelectPrefillParams& params, const SelectTile& tile, TileScratch& scratch) {
  HWY_DYNAMIC_DISPATCH(ScreenTileOnTarget)(params, tile, scratch);
}

}  // namespace eta::cpu
#endif
