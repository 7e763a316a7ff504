// Screening of rows of sparse prefill, a tile of them at a time (eta-semantics.md, "Selection",
// steps 1 to 4, and "Relative thresholds").
//
// A tile's queries meet the same records, so screening is a matrix product: queries times the
// records' vectors, which are widened and transposed once for the tile. A decode row has few
// queries, and walks over its records instead (record_walk-inl.h).
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
#include "kernels/cpu/select/block_scores-inl.h"
#include "kernels/cpu/select/mass_sum-inl.h"
#include "kernels/cpu/select/select_tile.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/kv_elements-inl.h"
#include "kernels/dtype.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {
namespace {

constexpr auto kQueries = static_cast<size_t>(kTileRows);  // of a product
constexpr size_t kPanelBlocks = 2 * kLanes;                // records of a product

// Two neighbouring vectors of a row-major matrix.
struct PanelColumns {
  const float* data;
  size_t stride;

  HWY_INLINE void Load(size_t k, Floats (&columns)[2]) const {
    const Float d;
    columns[0] = hn::Load(d, data + k * stride);
    columns[1] = hn::Load(d, data + k * stride + kLanes);
  }
};

// products [kQueries][kPanelBlocks] = queries [depth][kQueries] * columns [depth][...].
HWY_NOINLINE void Multiply(const float* queries, size_t depth, const PanelColumns& columns,
                           float* products) {
  const Float d;
  Floats acc[kTileRows][2];
  ClearTile(acc);
  MultiplyTile<kTileRows, 2, kQueries, 1>(queries, depth, columns, acc);
#pragma GCC unroll 16
  for (size_t r = 0; r < kQueries; ++r) {
    hn::Store(acc[r][0], d, products + r * kPanelBlocks);
    hn::Store(acc[r][1], d, products + r * kPanelBlocks + kLanes);
  }
}

void SetBits(uint64_t* words, int32_t begin, int32_t end) {
  for (int32_t j = begin; j < end; ++j) words[j / 64] |= uint64_t{1} << (j % 64);
}

// Adds bits of the blocks from `first` on.
HWY_INLINE void AddBits(uint64_t* words, int32_t first, uint64_t bits) {
  const int32_t shift = first % 64;
  words[first / 64] |= bits << shift;
  const uint64_t rest = shift > 0 ? bits >> (64 - shift) : 0;
  if (rest != 0) words[first / 64 + 1] |= rest;
}

bool HasBit(const uint64_t* words, int32_t end) {
  for (int32_t word = 0; word < end / 64; ++word) {
    if (words[word] != 0) return true;
  }
  return end % 64 != 0 && (words[end / 64] & ((uint64_t{1} << (end % 64)) - 1)) != 0;
}

HWY_INLINE uint64_t BitsOf(hn::Mask<Float> mask) {
  uint8_t bytes[8] = {};
  hn::StoreMaskBits(Float(), mask, bytes);
  return bytes[0] | static_cast<uint64_t>(bytes[1]) << 8;
}

// Records of consecutive blocks, one per column.
struct Panel {
  float* vectors;  // [sums][d][kPanelBlocks]: mu, sigma^2 and, of kind outlier, the outlier
  float* scales;   // [2][kPanelBlocks]: steps of kind outlier; else the largest norms
};

HWY_INLINE hn::Mask<Float> FirstLanes(int32_t count) {
  const auto lanes = static_cast<int32_t>(kLanes);
  return hn::FirstN(Float(), static_cast<size_t>(std::clamp(count, 0, lanes)));
}

template <bool kOutlier>
class TileScreen {
 public:
  TileScreen(const SelectPrefillParams& params, const SelectTile& tile, TileScratch& scratch)
      : params_(params),
        tile_(tile),
        rows_(scratch.rows),
        layout_(params.geometry),
        options_(tile.sequence->attention),
        relative_(IsRelative(*tile.sequence, params.geometry)),
        d_(static_cast<size_t>(params.geometry.head_dim)),
        group_(static_cast<size_t>(params.num_query_heads / params.geometry.num_kv_heads)),
        num_queries_(static_cast<size_t>(tile.num_rows()) * group_),
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
    mass_bases_ = arrays[6];
    mass_sums_ = arrays[7];
    masses_ = arrays[8];
    keys_ = arrays[9];
  }

  void Run() {
    LoadQueries();
    for (int32_t first = first_free_; first < end_free_; first += kPanelStep) BuildPanel(first);
    if (relative_) {
      for (size_t query = 0; query < num_queries_; ++query) SumOf(query).Clear();
      ScoreAlwaysRead();
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

  size_t panel_floats() const { return (kSums * d_ + 2) * kPanelBlocks; }
  Panel PanelAt(int32_t first) const {
    const auto at = static_cast<size_t>(first - first_free_) / kPanelBlocks;
    float* const vectors = panels_ + at * panel_floats();
    return {vectors, vectors + kSums * d_ * kPanelBlocks};
  }

  const RowBlocks& RowOf(size_t query) const { return rows_[query / group_]; }
  size_t HeadOf(size_t query) const {
    return static_cast<size_t>(tile_.kv_head) * group_ + query % group_;
  }
  int32_t StepRow(size_t query) const { return tile_.row(static_cast<int32_t>(query / group_)); }
  const float* Query(size_t query) const {
    return params_.q.row(StepRow(query)) + HeadOf(query) * d_;
  }
  float& Threshold(size_t query) const {
    return params_.thresholds.row(StepRow(query))[HeadOf(query)];
  }
  uint64_t* MaskOf(size_t query) const {
    const auto at = static_cast<int64_t>(StepRow(query)) * params_.num_query_heads +
                    static_cast<int64_t>(HeadOf(query));
    return params_.selection.admitted + at * params_.selection.words;
  }
  QueryTerms TermsOfQuery(size_t query) const {
    const float* centre = params_.kv.index_centre;
    if (centre != nullptr) centre += static_cast<size_t>(tile_.kv_head) * d_;
    const float* head_z = tile_.sequence->head_z;
    const size_t layer =
        static_cast<size_t>(params_.layer) * static_cast<size_t>(params_.num_query_heads);
    return TermsOf(Query(query), centre, d_,
                   head_z != nullptr ? head_z[layer + HeadOf(query)] : options_.z);
  }
  MassSum SumOf(size_t query) const {
    return {mass_bases_ + query * kLanes, mass_sums_ + query * kLanes};
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

  void BuildPanel(int32_t first) const {
    const Panel panel = PanelAt(first);
    const int32_t count = std::min(kPanelStep, end_free_ - first);
    if (count < kPanelStep) std::fill_n(panel.vectors, panel_floats(), 0.0f);
    for (int32_t r = 0; r < count; ++r) {
      const int32_t block = tile_.sequence->block_table[static_cast<size_t>(first + r)];
      std::byte* const record = layout_.Record(params_.kv, block, tile_.kv_head);
      float* const column = panel.vectors + r;
      float* const scale = panel.scales + r;
      if constexpr (kOutlier) {
        LoadColumn<false>([&](size_t i) { return LoadBytes(Float(), layout_.Mu8(record) + i); },
                          column);
        LoadColumn<true>([&](size_t i) { return LoadBytes(Float(), layout_.Sigma8(record) + i); },
                         column + d_ * kPanelBlocks);
        LoadColumn<false>(
            [&](size_t i) { return LoadBytes(Float(), layout_.Outlier8(record) + i); },
            column + 2 * d_ * kPanelBlocks);
        scale[0] = HalfToFloat(layout_.Steps(record)[0]);
        scale[kPanelBlocks] = HalfToFloat(layout_.Steps(record)[1]);
      } else {
        const auto half = [](const uint16_t* from) {
          return [from](size_t i) { return LoadElements(Float16Elements(), Float(), from + i); };
        };
        LoadColumn<false>(half(layout_.Mu(record)), column);
        LoadColumn<true>(half(layout_.Sigma(record)), column + d_ * kPanelBlocks);
        scale[0] = *layout_.MaxNorm(record);
      }
    }
  }

  // A vector of d elements becomes a column; kSquared: its squares.
  template <bool kSquared, class Load>
  HWY_INLINE void LoadColumn(const Load& load, float* column) const {
    const Float d;
    for (size_t i = 0; i < d_; i += kLanes) {
      alignas(64) float lanes[kLanes];
      const Floats values = load(i);
      hn::Store(kSquared ? hn::Mul(values, values) : values, d, lanes);
      for (size_t lane = 0; lane < kLanes; ++lane) column[(i + lane) * kPanelBlocks] = lanes[lane];
    }
  }

  // The sums of queries from `first` on over the records of a panel.
  void MultiplyPanel(size_t first, const Panel& panel) const {
    const size_t at = first * d_;
    for (size_t s = 0; s < kSums; ++s) {
      Multiply((s == 1 ? squares_ : queries_) + at, d_,
               {panel.vectors + s * d_ * kPanelBlocks, kPanelBlocks}, products_ + s * kProducts);
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
          SumOf(query).Add(exponents, hn::Max(exponents[0], exponents[1]));
        }
      }
    }
    for (size_t query = first; query < end; ++query) {
      Threshold(query) = SumOf(query).Log() + options_.relative_c;
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

  // Adds the scores of all keys that a row reads in any case to its mass, block by block.
  void ScoreAlwaysRead() const {
    const int32_t b = layout_.block_size;
    const int32_t pinned = rows_.front().first_pinned;
    const int32_t last = (tile_.num_keys(tile_.num_rows() - 1) + b - 1) / b;
    for (int32_t j = 0; j < first_free_; ++j) ScoreBlock(j);
    for (int32_t j = std::max(first_free_, pinned); j < last; ++j) ScoreBlock(j);
  }

  void ScoreBlock(int32_t ordinal) const {
    LoadKeys(ordinal);
    const auto stride = static_cast<size_t>(layout_.key_stride);
    for (size_t first = 0; first < num_queries_; first += kQueries) {
      const size_t end = std::min(first + kQueries, num_queries_);
      bool read = false;
      for (size_t query = first; query < end; ++query) read |= KeysAlwaysRead(query, ordinal) > 0;
      if (!read) continue;
      for (size_t key = 0; key < static_cast<size_t>(layout_.block_size); key += kPanelBlocks) {
        Multiply(queries_ + first * d_, d_, {keys_ + key, stride}, products_);
        for (size_t query = first; query < end; ++query) {
          const int32_t keys = KeysAlwaysRead(query, ordinal) - static_cast<int32_t>(key);
          if (keys > 0) AddScores(query, products_ + (query - first) * kPanelBlocks, keys);
        }
      }
    }
  }

  void AddScores(size_t query, const float* scores, int32_t keys) const {
    const Float d;
    const Floats none = hn::Set(d, -std::numeric_limits<float>::infinity());
    const Floats scale = hn::Set(d, params_.softmax_scale);
    Floats exponents[2];
    for (size_t half = 0; half < 2; ++half) {
      const auto valid = FirstLanes(keys - static_cast<int32_t>(half * kLanes));
      exponents[half] =
          hn::IfThenElse(valid, hn::Mul(scale, hn::Load(d, scores + half * kLanes)), none);
    }
    SumOf(query).Add(exponents, hn::Max(exponents[0], exponents[1]));
  }

  // How many keys of block `ordinal` the query's row reads in any case.
  int32_t KeysAlwaysRead(size_t query, int32_t ordinal) const {
    const RowBlocks& row = RowOf(query);
    if (ordinal == row.full_blocks) return row.num_keys - ordinal * layout_.block_size;
    const bool always = ordinal < row.first_free || ordinal >= row.first_pinned;
    return always && ordinal < row.full_blocks ? layout_.block_size : 0;
  }

  // The keys of a block as float32 [d][key_stride].
  void LoadKeys(int32_t ordinal) const {
    const int32_t block = tile_.sequence->block_table[static_cast<size_t>(ordinal)];
    const std::byte* const from = layout_.K(params_.kv, block, tile_.kv_head);
    switch (params_.geometry.dtype) {
      case DType::kFloat16:
        return LoadKeys<Float16Elements>(from);
      case DType::kBFloat16:
        return LoadKeys<BFloat16Elements>(from);
      default:
        return LoadKeys<Float32Elements>(from);
    }
  }

  template <class Elements>
  void LoadKeys(const std::byte* from) const {
    const auto* elements = reinterpret_cast<const typename Elements::Stored*>(from);
    const size_t count = d_ * static_cast<size_t>(layout_.key_stride);
    for (size_t i = 0; i < count; i += kLanes) {
      hn::Store(LoadElements(Elements(), Float(), elements + i), Float(), keys_ + i);
    }
  }

  const SelectPrefillParams& params_;
  const SelectTile& tile_;
  const std::vector<RowBlocks>& rows_;
  const KvTile layout_;
  const AttentionOptions& options_;
  const bool relative_;
  const size_t d_;
  const size_t group_;
  const size_t num_queries_;
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
  float* mass_bases_;       // [queries][kLanes]
  float* mass_sums_;        // likewise
  float* masses_;           // [kQueries][mass_stride_], l_j
  float* keys_;             // [d][key_stride]
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
