// What attention of sparse prefill adds (eta-semantics.md, "Sparse prefill"): which queries of a
// tile attend to a chunk of keys, and what the keys that they pruned weigh.
//
// A chunk is multiplied with the queries that attend to it alone, gathered from the tile: so work
// follows what each row admits, not what its tile reads. What a query gets from a chunk depends on
// that query alone, as in full prefill.
//
// Included once per target (Highway's foreach_target).

#if defined(ETA_KERNELS_CPU_SPARSE_ROWS_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_SPARSE_ROWS_INL_H_
#undef ETA_KERNELS_CPU_SPARSE_ROWS_INL_H_
#else
#define ETA_KERNELS_CPU_SPARSE_ROWS_INL_H_
#endif

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/prefill/row_attention-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu {
namespace HWY_NAMESPACE {

// A query that attends to a chunk, and the keys of the chunk that it sees.
struct PickedQuery {
  int32_t query;
  SeenKeys seen;
};

struct SparseQuery {
  const uint64_t* admitted;  // mask over block ordinals
  float gate_offset;         // slope * tau_eff
  bool floor;                // it prunes keys, and these weigh exp(0)
};

// The queries of a task of sparse prefill. One object per thread, kept for its memory.
class SparseRows {
 public:
  // Also makes each query's maximum what its pruned keys have: the logit 0, or none.
  void Begin(const RowTask& task, const Gathered& gathered) {
    task_ = &task;
    queries_.clear();
    const AttentionParams& params = task.params;
    const AttentionOptions& options = task.tile.sequence->attention;
    const bool gated = params.gate == Gate::kSilu;
    const float slope = params.beta * kLog2E;
    for (int32_t i = 0; i < task.num_queries(); ++i) {
      const int64_t row = task.tile.row(i / task.group);
      SparseQuery query{};
      query.admitted = params.prefill.admitted +
                       (row * params.num_query_heads + task.head(i)) * params.prefill.words;
      query.floor = gated && options.uniform_floor && Prunes(query.admitted, FullBlocks(i));
      if (gated) {
        query.gate_offset = slope * (params.thresholds.row(row)[task.head(i)] - options.offset);
      }
      if (query.floor) gathered.maxima[i] = 0.0f;
      queries_.push_back(query);
    }
    picked_.resize(queries_.size());
  }

  const SparseQuery& operator[](int32_t query) const {
    return queries_[static_cast<size_t>(query)];
  }

  // The queries that attend to the chunk that begins with key `begin`, in order.
  std::span<const PickedQuery> Pick(int32_t begin) {
    const RowTile& tile = task_->tile;
    const int32_t b = task_->params.geometry.block_size;
    const int32_t block = begin / b;
    const int32_t first_row = std::max(0, begin - tile.position(0));  // the first that sees `begin`
    size_t count = 0;
    int32_t query = first_row * task_->group;
    for (int32_t row = first_row; row < tile.count; ++row) {
      const int32_t num_keys = tile.position(row) + 1;
      for (int32_t head = 0; head < task_->group; ++head, ++query) {
        const SparseQuery& of = queries_[static_cast<size_t>(query)];
        const uint64_t keys = b == kPrefillChunk ? BlockKeys(of, block, num_keys - begin)
                                                 : Keys(of, begin, block, num_keys);
        if (keys != 0) picked_[count++] = {query, {keys, num_keys - 1 - begin}};
      }
    }
    return std::span(picked_).first(count);
  }

  // Divides by the sums of weights, once pruned keys were added to both.
  void StoreOutput(const Gathered& gathered) {
    const Float d;
    const auto width = static_cast<size_t>(task_->head_dim());
    const bool floor = std::ranges::any_of(queries_, &SparseQuery::floor);
    totals_.assign(width, 0.0f);
    for (int32_t i = 0; i < task_->num_queries(); ++i) {
      const int32_t num_keys = task_->position(i) + 1;
      if (floor && i % task_->group == 0) SumValues(num_keys, i == 0);
      const float* sums = gathered.sums + static_cast<size_t>(i) * kLanes;
      const float sum = hn::GetLane(hn::SumOfLanes(d, hn::Load(d, sums)));
      const float weight =
          queries_[static_cast<size_t>(i)].floor ? std::exp(-gathered.maxima[i]) : 0.0f;
      const float scale = 1.0f / (sum + weight * static_cast<float>(num_keys) +
                                  task_->SinkWeight(i, gathered.maxima[i]));
      const float* from = gathered.output + static_cast<size_t>(i) * gathered.width;
      float* to = task_->params.out.row(task_->tile.row(i / task_->group)) +
                  task_->head(i) * task_->head_dim();
      for (size_t c = 0; c < width; ++c) {
        to[c] = (weight > 0.0f ? from[c] + weight * totals_[c] : from[c]) * scale;
      }
    }
  }

 private:
  int32_t FullBlocks(int32_t query) const {
    return (task_->position(query) + 1) / task_->params.geometry.block_size;
  }

  static bool Prunes(const uint64_t* admitted, int32_t full_blocks) {
    int32_t count = 0;
    for (int32_t word = 0; word * 64 < full_blocks; ++word) count += std::popcount(admitted[word]);
    return count < full_blocks;
  }

  static bool Admits(const SparseQuery& query, int32_t block) {
    return (query.admitted[block / 64] >> (block % 64) & 1) != 0;
  }

  // Keys of a chunk that is one block; `num_keys` counted from its first.
  static uint64_t BlockKeys(const SparseQuery& query, int32_t block, int32_t num_keys) {
    if (num_keys < kPrefillChunk) return (uint64_t{1} << num_keys) - 1;
    return Admits(query, block) ? ~uint64_t{0} : 0;
  }

  uint64_t Keys(const SparseQuery& query, int32_t begin, int32_t first_block,
                int32_t num_keys) const {
    const int32_t b = task_->params.geometry.block_size;
    const int32_t end = std::min(begin + kPrefillChunk, num_keys);
    uint64_t keys = 0;
    for (int32_t block = first_block; block * b < end; ++block) {
      const bool tail = (block + 1) * b > num_keys;
      if (!tail && !Admits(query, block)) continue;
      const int32_t from = std::max(block * b, begin) - begin;
      const int32_t to = std::min((block + 1) * b, end) - begin;
      const uint64_t below = to < 64 ? (uint64_t{1} << to) - 1 : ~uint64_t{0};
      keys |= below & ~((uint64_t{1} << from) - 1);
    }
    return keys;
  }

  // Makes the totals the sum of V over the first `num_keys` keys. In order: the last full block's
  // record, then the tail key by key. So a row's sum does not depend on the rows before it.
  void SumValues(int32_t num_keys, bool first_row) {
    const KvTile tile(task_->params.geometry);
    const int32_t full_blocks = num_keys / tile.block_size;
    int32_t at = num_keys - 1;
    if (first_row || num_keys % tile.block_size == 0) {
      at = full_blocks * tile.block_size;
      std::fill(totals_.begin(), totals_.end(), 0.0f);
      if (full_blocks > 0) {
        const float* total =
            tile.VTotal(tile.Record(task_->params.kv, Block(full_blocks - 1), task_->tile.kv_head));
        std::copy_n(total, totals_.size(), totals_.begin());
      }
    }
    for (; at < num_keys; ++at) AddValue(tile, at);
  }

  int32_t Block(int32_t ordinal) const { return task_->table()[static_cast<size_t>(ordinal)]; }

  void AddValue(const KvTile& tile, int32_t position) {
    switch (task_->params.geometry.dtype) {
      case DType::kFloat16:
        return AddValue<Float16Elements>(tile, position);
      case DType::kBFloat16:
        return AddValue<BFloat16Elements>(tile, position);
      default:
        return AddValue<Float32Elements>(tile, position);
    }
  }

  template <class Elements>
  void AddValue(const KvTile& tile, int32_t position) {
    const Float d;
    const auto* values =
        reinterpret_cast<const typename Elements::Stored*>(
            tile.V(task_->params.kv, Block(position / tile.block_size), task_->tile.kv_head)) +
        position % tile.block_size * tile.head_dim;
    for (size_t i = 0; i < totals_.size(); i += kLanes) {
      const Floats value = LoadElements(Elements(), d, values + i);
      hn::StoreU(hn::Add(hn::LoadU(d, totals_.data() + i), value), d, totals_.data() + i);
    }
  }

  const RowTask* task_ = nullptr;
  std::vector<SparseQuery> queries_;
  std::vector<PickedQuery> picked_;
  std::vector<float> totals_;  // [d]
};

}  // namespace HWY_NAMESPACE
}  // namespace eta::cpu
HWY_AFTER_NAMESPACE();

#endif  // include guard
