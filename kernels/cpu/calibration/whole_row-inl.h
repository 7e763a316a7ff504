// What ops that measure a decode row against full attention walk over: every key of the row, block
// by block, with the heads that attended to the block. SIMD sources include this file after
// "hwy/foreach_target.h"; it is read once per target.
#if defined(ETA_KERNELS_CPU_CALIBRATION_WHOLE_ROW_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_CALIBRATION_WHOLE_ROW_INL_H_
#undef ETA_KERNELS_CPU_CALIBRATION_WHOLE_ROW_INL_H_
#else
#define ETA_KERNELS_CPU_CALIBRATION_WHOLE_ROW_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/simd/tile_product-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// One decode row and KV head, with the G query heads of its group.
template <class Elements>
class WholeRow {
 public:
  WholeRow(const AttentionParams& params, const SequenceRows& sequence, int32_t row,
           int32_t num_keys, int32_t kv_head)
      : params_(params),
        sequence_(sequence),
        table_(sequence.table(params.kv.table)),
        tile_(params.geometry),
        row_(row),
        num_keys_(num_keys),
        kv_head_(kv_head),
        num_heads_(static_cast<size_t>(params.num_query_heads / tile_.num_kv_heads)) {}

  size_t head_dim() const { return static_cast<size_t>(tile_.head_dim); }
  size_t block_size() const { return static_cast<size_t>(tile_.block_size); }
  size_t num_heads() const { return num_heads_; }
  size_t first_head() const { return static_cast<size_t>(kv_head_) * num_heads_; }
  // tau_eff of head `h` of the group.
  float Threshold(size_t h) const {
    return params_.thresholds.row(row_)[first_head() + h] - sequence_.attention.offset;
  }

  // The queries of the group times s, kTileRowStride apart.
  void ScaleQueries(float* scaled) const {
    const hn::ScalableTag<float> df;
    const float* q = params_.q.row(row_) + first_head() * head_dim();
    for (size_t h = 0; h < num_heads_; ++h) {
      for (size_t i = 0; i < head_dim(); i += hn::Lanes(df)) {
        const auto query = hn::LoadU(df, q + h * head_dim() + i);
        hn::Store(hn::Mul(query, hn::Set(df, params_.softmax_scale)), df,
                  scaled + h * kTileRowStride + i);
      }
    }
  }

  // read(ordinal, valid, mask) for every block, the tail last: its number of keys, and a bit for
  // each head of the group that attended to it.
  template <class Read>
  void ForEachBlock(const Read& read) const {
    const BlockSelection& selection = params_.selection;
    const int64_t list = int64_t{row_} * tile_.num_kv_heads + kv_head_;
    const uint32_t* blocks = selection.blocks + list * selection.capacity;
    const uint32_t* heads = selection.heads + list * selection.capacity;
    const int32_t listed = selection.counts[list];
    const auto keys = static_cast<size_t>(num_keys_);
    int32_t at = 0;
    for (size_t first = 0, ordinal = 0; first < keys; first += block_size(), ++ordinal) {
      const size_t valid = std::min(block_size(), keys - first);
      uint32_t mask = 0;
      if (valid < block_size()) {
        mask = ~uint32_t{0};  // every head attends to the tail
      } else if (at < listed && blocks[at] == static_cast<uint32_t>(ordinal)) {
        mask = heads[at++];
      }
      read(ordinal, valid, mask);
    }
  }

  // Scores of the first keys of a block, `valid` rounded up to 16, from ScaleQueries() [G,
  // kTileRowStride].
  void Score(size_t ordinal, size_t valid, const float* scaled, float* scores) const {
    const auto* keys = reinterpret_cast<const typename Elements::Stored*>(
        tile_.K(params_.kv, table_[ordinal], kv_head_));
    const size_t padded = (valid + 15) / 16 * 16;
    Multiply<Elements, false>(
        scaled, Tile<Elements>{keys, static_cast<size_t>(tile_.key_stride), head_dim(), padded, 0},
        num_heads_, kIdentityRows.data(), scores);
  }

  // Adds weights [G, kTileRowStride] times the values of a block's first `valid` tokens to sums.
  void AddValues(size_t ordinal, size_t valid, const float* weights, float* sums) const {
    const auto* values = reinterpret_cast<const typename Elements::Stored*>(
        tile_.V(params_.kv, table_[ordinal], kv_head_));
    Multiply<Elements, true>(weights, Tile<Elements>{values, head_dim(), valid, head_dim(), 0},
                             num_heads_, kIdentityRows.data(), sums);
  }

 private:
  const AttentionParams& params_;
  const SequenceRows& sequence_;
  const std::span<const int32_t> table_;
  const KvTile tile_;
  const int32_t row_;
  const int32_t num_keys_;
  const int32_t kv_head_;
  const size_t num_heads_;
};

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
