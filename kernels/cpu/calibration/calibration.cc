// CollectCalibration adds every causal score of the calibrating prefill rows to cells
// [HQ, CalibrationCells::size()]: a histogram of scores, the sum of gates, and the z that each
// above-threshold key needs (the paper's Algorithm 1; eta-semantics.md, "Profile" and "Per-head z";
// kernels/calibration_cells.h).
//
// A task is a share of the prompt rows and all query heads of one KV head. It counts into cells of
// its own, so that threads share nothing. The first share of a head counts into the caller's cells,
// and the cells of the others are added at the end. Cells are integers, so the result does not
// depend on how rows are shared.
//
// The queries of a few rows meet one block of keys at a time. First come the scores (a product).
// Then each query finds bins, gates and keys above the threshold (vectors of keys), and adds to its
// cells (one by one). No part binds alone: the product takes a third of the time and the cells a
// quarter.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/calibration/calibration.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/simd/simd_math-inl.h"
#include "kernels/cpu/simd/tile_product-inl.h"

#ifndef ETA_KERNELS_CPU_CALIBRATION_ONCE_
#define ETA_KERNELS_CPU_CALIBRATION_ONCE_
namespace eta::cpu {

inline constexpr size_t kTileQueries = 32;
inline constexpr size_t kMaxCalibrationBlock = 128;
static_assert(kTileQueries >= kMaxGroup);

// Rows [begin, begin + count) of a sequence. Rows times heads of a group: at most kTileQueries.
struct CalibrationRows {
  const SequenceRows* sequence;
  int32_t begin;
  int32_t count;

  int32_t position(int32_t i) const { return sequence->position + begin + i; }
  int64_t row(int32_t i) const { return int64_t{sequence->row_begin} + begin + i; }
  int32_t num_keys() const { return position(count - 1) + 1; }
  int64_t pairs() const { return int64_t{count} * num_keys(); }
};

// The bins in float32. The bin of a score is floor(score * inverse_width + fraction) + first. With
// the default bins this is exact (calibration/solvers/score_histogram.h).
struct FloatBins {
  float low;  // a score is below ScoreBins::low exactly if it is below this; high likewise
  float high;
  float inverse_width;
  float fraction;
  int32_t first;
  int32_t last;  // the last bin
};

// One query against the keys of one block.
struct CalibrationQuery {
  const float* q;  // [d], not scaled
  uint64_t* cells;
  uint64_t weight;  // the weight of one key
  int32_t position;
  int32_t sinks_end;     // blocks before this ordinal, and from first_pinned on, are admitted at
  int32_t first_pinned;  // any z
  float threshold;       // tau_eff
  float norm;            // |q|, of outlier records |q|_1; negative: not computed yet
  float centre;          // <q, k_0>, once the norm is computed
  double gate;           // sum of m
};

// One thread's working memory.
struct CalibrationScratch {
  alignas(64) float queries[kTileQueries * kTileRowStride];
  alignas(64) float scores[kTileQueries * kTileRowStride];
  alignas(64) int32_t bins[kMaxCalibrationBlock];
  std::array<CalibrationQuery, kTileQueries> state;
};

}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE float Total(hn::Vec<hn::ScalableTag<float>> v) {
  const hn::ScalableTag<float> df;
  return hn::GetLane(hn::SumOfLanes(df, v));
}

// The sums over one query's scores against one block.
struct BlockScores {
  float gate = 0.0f;    // sum of m
  int64_t above = 0;    // keys with S >= tau_eff
  bool inside = false;  // every score has a bin
};

// Measures `count` scores and writes their bins. kWhole: `count` is a multiple of the lanes.
template <bool kGated, bool kWhole>
HWY_NOINLINE BlockScores MeasureScores(const float* HWY_RESTRICT scores, size_t count,
                                       float threshold, float slope, const FloatBins& bins,
                                       int32_t* HWY_RESTRICT to) {
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const auto low = hn::Set(df, bins.low);
  const auto high = hn::Set(df, bins.high);
  auto gate = hn::Zero(df);
  auto outside = hn::Not(hn::Eq(gate, gate));  // no lane is outside yet
  int64_t above = 0;
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    auto score = hn::Load(df, scores + i);
    const auto valid = hn::FirstN(df, count - i);
    if constexpr (!kWhole) score = hn::IfThenElse(valid, score, low);
    const auto has_bin = hn::And(hn::Ge(score, low), hn::Lt(score, high));
    outside = hn::Or(outside, hn::Not(has_bin));
    const auto place =
        hn::Floor(hn::MulAdd(score, hn::Set(df, bins.inverse_width), hn::Set(df, bins.fraction)));
    auto bin = hn::Add(hn::ConvertTo(di, place), hn::Set(di, bins.first));
    bin = hn::Min(hn::Max(bin, hn::Zero(di)), hn::Set(di, bins.last));
    hn::Store(bin, di, to + i);
    auto reaches = hn::Ge(score, hn::Set(df, threshold));
    if constexpr (!kWhole) reaches = hn::And(reaches, valid);
    above += static_cast<int64_t>(hn::CountTrue(df, reaches));
    if constexpr (kGated) {
      const auto distance = hn::Sub(hn::Set(df, threshold), score);
      auto m = Gated(df, hn::Set(df, 1.0f), hn::Mul(hn::Set(df, slope), distance));
      if constexpr (!kWhole) m = hn::IfThenElseZero(valid, m);
      gate = hn::Add(gate, m);
    }
  }
  return {.gate = kGated ? Total(gate) : 0.0f, .above = above, .inside = hn::AllFalse(df, outside)};
}

template <class Elements>
class Collector {
 public:
  Collector(const CalibrationParams& params, const FloatBins& bins, int32_t kv_head,
            uint64_t* cells, CalibrationScratch& scratch)
      : params_(params),
        bins_(bins),
        at_(params.bins),
        kv_head_(kv_head),
        cells_(cells),
        scratch_(scratch),
        tile_(params.geometry),
        d_(static_cast<size_t>(tile_.head_dim)),
        group_(params.num_query_heads / tile_.num_kv_heads),
        slope_(params.beta * kLog2E) {}

  void Run(const CalibrationRows& rows) {
    Start(rows);
    for (int32_t first = 0, ordinal = 0; first < rows.num_keys();
         first += tile_.block_size, ++ordinal) {
      const int32_t block = rows.sequence->table(params_.kv.table)[static_cast<size_t>(ordinal)];
      Score(block, std::min(tile_.block_size, rows.num_keys() - first));
      const std::byte* record = tile_.Record(params_.kv, block, kv_head_);
      for (size_t i = 0; i < num_queries_; ++i) {
        const int32_t keys = scratch_.state[i].position + 1 - first;
        if (keys <= 0) continue;
        Count(scratch_.state[i], scratch_.scores + i * kTileRowStride, ordinal,
              static_cast<size_t>(std::min(keys, tile_.block_size)), record);
      }
    }
    Finish();
  }

 private:
  // Queries of one head stand side by side, so that the head's cells are used many times in a row.
  void Start(const CalibrationRows& rows) {
    const hn::ScalableTag<float> df;
    const AttentionOptions& options = rows.sequence->attention;
    num_queries_ = 0;
    for (int32_t g = 0; g < group_; ++g) {
      const int32_t head = kv_head_ * group_ + g;
      for (int32_t i = 0; i < rows.count; ++i) {
        const int32_t keys = rows.position(i) + 1;
        const int32_t full = keys / tile_.block_size;
        const float* q = params_.q.row(rows.row(i)) + static_cast<size_t>(head) * d_;
        scratch_.state[num_queries_] = {
            .q = q,
            .cells = cells_ + head * at_.size(),
            .weight = CalibrationWeight(keys),
            .position = rows.position(i),
            .sinks_end = options.sink_blocks,
            .first_pinned = full - std::clamp(options.pinned_blocks, 0, full),
            .threshold = params_.thresholds.row(rows.row(i))[head] - options.offset,
            .norm = -1.0f,
            .centre = 0.0f,
            .gate = 0.0};
        float* to = scratch_.queries + num_queries_ * kTileRowStride;
        for (size_t k = 0; k < d_; k += hn::Lanes(df)) {
          const auto scaled = hn::Mul(hn::LoadU(df, q + k), hn::Set(df, params_.softmax_scale));
          hn::Store(scaled, df, to + k);
        }
        targets_[num_queries_] = static_cast<uint8_t>(num_queries_);
        ++num_queries_;
      }
    }
  }

  void Score(int32_t block, int32_t keys) {
    const auto* from =
        reinterpret_cast<const typename Elements::Stored*>(tile_.K(params_.kv, block, kv_head_));
    const auto columns = static_cast<size_t>(keys + 15) / 16 * 16;
    Multiply<Elements, false>(
        scratch_.queries,
        Tile<Elements>{from, static_cast<size_t>(tile_.key_stride), d_, columns, 0}, num_queries_,
        targets_.data(), scratch_.scores);
  }

  void Count(CalibrationQuery& query, const float* scores, int32_t ordinal, size_t keys,
             const std::byte* record) {
    const BlockScores block = Measure(query, scores, keys);
    query.gate += block.gate;
    if (HWY_LIKELY(block.inside)) {
      for (size_t t = 0; t < keys; ++t) query.cells[scratch_.bins[t]] += query.weight;
    } else {
      CountOneByOne(query, scores, keys);
    }
    if (block.above == 0) return;
    const bool unconditional = ordinal < query.sinks_end || ordinal >= query.first_pinned;
    const int64_t cell = unconditional
                             ? at_.unconditional()
                             : at_.needed(NeededZBin(BoundOf(query, record), query.threshold));
    query.cells[cell] += static_cast<uint64_t>(block.above);
  }

  BlockScores Measure(const CalibrationQuery& query, const float* scores, size_t keys) {
    const bool gated = params_.gate == Gate::kSilu;
    if (HWY_LIKELY(keys % hn::Lanes(hn::ScalableTag<float>()) == 0)) {
      return gated ? MeasureScores<true, true>(scores, keys, query.threshold, slope_, bins_,
                                               scratch_.bins)
                   : MeasureScores<false, true>(scores, keys, query.threshold, slope_, bins_,
                                                scratch_.bins);
    }
    return gated ? MeasureScores<true, false>(scores, keys, query.threshold, slope_, bins_,
                                              scratch_.bins)
                 : MeasureScores<false, false>(scores, keys, query.threshold, slope_, bins_,
                                               scratch_.bins);
  }

  HWY_NOINLINE void CountOneByOne(const CalibrationQuery& query, const float* scores,
                                  size_t keys) const {
    for (size_t t = 0; t < keys; ++t) {
      if (!std::isfinite(scores[t])) {
        ++query.cells[at_.not_finite()];
      } else if (scores[t] < bins_.low) {
        ++query.cells[at_.below()];
        query.cells[at_.below_weight()] += query.weight;
      } else if (scores[t] >= bins_.high) {
        ++query.cells[at_.above()];
        query.cells[at_.above_weight()] += query.weight;
      } else {
        query.cells[scratch_.bins[t]] += query.weight;
      }
    }
  }

  BlockBound BoundOf(CalibrationQuery& query, const std::byte* record) const {
    return tile_.index == IndexKind::kOutlier ? OutlierBound(query, record)
                                              : MomentBound(query, record);
  }

  BlockBound MomentBound(CalibrationQuery& query, const std::byte* record) const {
    const hn::ScalableTag<float> df;
    const auto* mu = reinterpret_cast<const uint16_t*>(record);
    auto mean = hn::Zero(df);
    auto variance = hn::Zero(df);
    auto norm = hn::Zero(df);
    for (size_t i = 0; i < d_; i += hn::Lanes(df)) {
      const auto q = hn::LoadU(df, query.q + i);
      const auto square = hn::Mul(q, q);
      const auto sigma = LoadElements(Float16Elements(), df, mu + d_ + i);
      mean = hn::MulAdd(q, LoadElements(Float16Elements(), df, mu + i), mean);
      variance = hn::MulAdd(square, hn::Mul(sigma, sigma), variance);
      norm = hn::Add(norm, square);
    }
    if (query.norm < 0.0f) query.norm = std::sqrt(Total(norm));
    const float max_norm = *tile_.MaxNorm(const_cast<std::byte*>(record));
    return {.mean = Total(mean),
            .deviation = std::sqrt(Total(variance)),
            .ceiling = query.norm * max_norm,
            .scale = params_.softmax_scale};
  }

  BlockBound OutlierBound(CalibrationQuery& query, const std::byte* bytes) const {
    const hn::ScalableTag<float> df;
    auto* record = const_cast<std::byte*>(bytes);
    auto mean = hn::Zero(df);
    auto variance = hn::Zero(df);
    auto outlier = hn::Zero(df);
    for (size_t i = 0; i < d_; i += hn::Lanes(df)) {
      const auto q = hn::LoadU(df, query.q + i);
      const auto sigma = LoadBytes(df, tile_.Sigma8(record) + i);
      mean = hn::MulAdd(q, LoadBytes(df, tile_.Mu8(record) + i), mean);
      variance = hn::MulAdd(hn::Mul(q, q), hn::Mul(sigma, sigma), variance);
      outlier = hn::MulAdd(q, LoadBytes(df, tile_.Outlier8(record) + i), outlier);
    }
    if (query.norm < 0.0f) MeasureForOutliers(query);
    const float step = HalfToFloat(tile_.Steps(record)[0]);
    const float outlier_step = HalfToFloat(tile_.Steps(record)[1]);
    const float half = query.norm / 2.0f;
    return {.mean = query.centre + step * Total(mean) + step * half,
            .deviation = step * std::sqrt(Total(variance)),
            .outlier = query.centre + outlier_step * Total(outlier) + outlier_step * half,
            .scale = params_.softmax_scale};
  }

  void MeasureForOutliers(CalibrationQuery& query) const {
    const hn::ScalableTag<float> df;
    const float* centre = params_.kv.index_centre;
    if (centre != nullptr) centre += static_cast<size_t>(kv_head_) * d_;
    auto size = hn::Zero(df);
    auto middle = hn::Zero(df);
    for (size_t i = 0; i < d_; i += hn::Lanes(df)) {
      const auto q = hn::LoadU(df, query.q + i);
      size = hn::Add(size, hn::Abs(q));
      if (centre != nullptr) middle = hn::MulAdd(q, hn::LoadU(df, centre + i), middle);
    }
    query.norm = Total(size);
    query.centre = Total(middle);
  }

  void Finish() const {
    for (size_t i = 0; i < num_queries_; ++i) {
      const CalibrationQuery& query = scratch_.state[i];
      if (std::isnan(query.gate)) continue;
      query.cells[at_.gate()] += static_cast<uint64_t>(
          std::llrint(kCalibrationUnit * query.gate / (query.position + 1.0)));
    }
  }

  const CalibrationParams& params_;
  const FloatBins& bins_;
  const CalibrationCells at_;
  const int32_t kv_head_;
  uint64_t* const cells_;  // [HQ, size]
  CalibrationScratch& scratch_;
  const KvTile tile_;
  const size_t d_;
  const int32_t group_;
  const float slope_;
  size_t num_queries_ = 0;
  std::array<uint8_t, kTileQueries> targets_{};
};

// Counts every `step`-th of the rows, beginning with row `begin`.
template <class Elements>
void CollectShareOf(const CalibrationParams& params, const FloatBins& bins,
                    std::span<const CalibrationRows> rows, size_t begin, size_t step,
                    int32_t kv_head, uint64_t* cells, CalibrationScratch& scratch) {
  Collector<Elements> collector(params, bins, kv_head, cells, scratch);
  for (size_t i = begin; i < rows.size(); i += step) collector.Run(rows[i]);
}

void CollectShare(const CalibrationParams& params, const FloatBins& bins,
                  std::span<const CalibrationRows> rows, size_t begin, size_t step, int32_t kv_head,
                  uint64_t* cells, CalibrationScratch& scratch) {
  switch (params.geometry.dtype) {
    case DType::kFloat16:
      return CollectShareOf<Float16Elements>(params, bins, rows, begin, step, kv_head, cells,
                                             scratch);
    case DType::kBFloat16:
      return CollectShareOf<BFloat16Elements>(params, bins, rows, begin, step, kv_head, cells,
                                              scratch);
    default:
      return CollectShareOf<Float32Elements>(params, bins, rows, begin, step, kv_head, cells,
                                             scratch);
  }
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(CollectShare);

namespace {

// The rows of sequences that calibrate, the most expensive first.
std::vector<CalibrationRows> TakingPart(const BatchView& batch, int32_t group) {
  const int32_t height = std::max(1, static_cast<int32_t>(kTileQueries) / group);
  std::vector<CalibrationRows> rows;
  for (const SequenceRows& sequence : batch.sequences) {
    if (sequence.kind != RowKind::kPrefill || !sequence.calibrate) continue;
    for (int32_t begin = 0; begin < sequence.num_rows; begin += height) {
      rows.push_back({&sequence, begin, std::min(height, sequence.num_rows - begin)});
    }
  }
  std::stable_sort(
      rows.begin(), rows.end(),
      [](const CalibrationRows& a, const CalibrationRows& b) { return a.pairs() > b.pairs(); });
  return rows;
}

// The number of shares per KV head: enough to keep every thread busy, few enough that adding up the
// shares' cells costs little beside counting.
size_t NumShares(std::span<const CalibrationRows> rows, int32_t num_kv_heads, int64_t cells,
                 int num_threads) {
  int64_t pairs = 0;
  for (const CalibrationRows& part : rows) pairs += part.pairs();
  const auto most = std::min<int64_t>(static_cast<int64_t>(rows.size()), pairs / (4 * cells));
  int64_t shares = 1;
  while (shares < most && shares * num_kv_heads < 4 * num_threads &&
         shares * num_kv_heads % num_threads != 0) {
    ++shares;
  }
  return static_cast<size_t>(shares);
}

FloatBins InFloat(const ScoreBins& bins) {
  const auto at_least = [](double value) {
    const auto rounded = static_cast<float>(value);
    return rounded < value ? std::nextafter(rounded, std::numeric_limits<float>::infinity())
                           : rounded;
  };
  const double first = std::floor(-bins.low / bins.width());
  return {.low = at_least(bins.low),
          .high = at_least(bins.high),
          .inverse_width = static_cast<float>(1.0 / bins.width()),
          .fraction = static_cast<float>(-bins.low / bins.width() - first),
          .first = static_cast<int32_t>(first),
          .last = bins.count - 1};
}

}  // namespace

void CollectCalibration(const Context& context, const CalibrationParams& params) {
  const int32_t kv_heads = params.geometry.num_kv_heads;
  const std::vector<CalibrationRows> rows =
      TakingPart(context.batch, params.num_query_heads / kv_heads);
  if (rows.empty()) return;
  const int64_t head_cells = CalibrationCells(params.bins).size();
  const auto step_cells = static_cast<size_t>(params.num_query_heads * head_cells);
  const size_t shares = NumShares(rows, kv_heads, head_cells, context.workers.num_threads());
  const FloatBins bins = InFloat(params.bins);
  Scratch copies_memory;
  Scratch scratch_memory;
  auto* copies = copies_memory.Reserve<uint64_t>((shares - 1) * step_cells);
  auto* scratch = scratch_memory.Reserve<CalibrationScratch>(
      static_cast<size_t>(context.workers.num_threads()));
  const auto collect = HWY_DYNAMIC_DISPATCH(CollectShare);
  const auto num_shares = static_cast<int64_t>(shares);
  context.workers.Run(kv_heads * num_shares, [&](int64_t index, int thread) {
    const auto share = static_cast<size_t>(index % num_shares);
    const auto kv_head = static_cast<int32_t>(index / num_shares);
    uint64_t* cells = params.cells;
    if (share > 0) {
      cells = copies + (share - 1) * step_cells;
      const auto group_cells = static_cast<size_t>(params.num_query_heads / kv_heads * head_cells);
      std::fill_n(cells + static_cast<size_t>(kv_head) * group_cells, group_cells, uint64_t{0});
    }
    collect(params, bins, rows, share, shares, kv_head, cells, scratch[thread]);
  });
  if (shares == 1) return;
  context.workers.Run(params.num_query_heads, [&](int64_t head, int) {
    uint64_t* to = params.cells + head * head_cells;
    for (size_t share = 1; share < shares; ++share) {
      const uint64_t* from = copies + (share - 1) * step_cells + head * head_cells;
      for (int64_t i = 0; i < head_cells; ++i) to[i] += from[i];
    }
  });
}

}  // namespace eta::cpu
#endif
