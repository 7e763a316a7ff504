// The queries of a tile of rows of sparse prefill, for the target that is being compiled: SIMD
// sources include this file after "hwy/foreach_target.h"; it is read once per target.
#if defined(ETA_KERNELS_CPU_SELECT_TILE_QUERIES_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_SELECT_TILE_QUERIES_INL_H_
#undef ETA_KERNELS_CPU_SELECT_TILE_QUERIES_INL_H_
#else
#define ETA_KERNELS_CPU_SELECT_TILE_QUERIES_INL_H_
#endif

#include <cstddef>
#include <cstdint>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/select/block_scores-inl.h"
#include "kernels/cpu/select/mass_sum-inl.h"
#include "kernels/cpu/select/select_tile.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

// Ordered by row, then by head of the group.
class TileQueries {
 public:
  TileQueries(const SelectPrefillParams& params, const SelectTile& tile,
              const std::vector<RowBlocks>& rows)
      : params_(params),
        tile_(tile),
        rows_(rows),
        layout_(params.geometry),
        options_(tile.sequence->attention),
        d_(static_cast<size_t>(params.geometry.head_dim)),
        group_(static_cast<size_t>(params.num_query_heads / params.geometry.num_kv_heads)),
        num_queries_(static_cast<size_t>(tile.num_rows()) * group_) {}

 protected:
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

  const SelectPrefillParams& params_;
  const SelectTile& tile_;
  const std::vector<RowBlocks>& rows_;  // [rows]
  const KvTile layout_;
  const AttentionOptions& options_;
  const size_t d_;
  const size_t group_;
  const size_t num_queries_;
};

// The mass of each query, so far.
struct TileMasses {
  float* bases;  // [queries][lanes]
  float* sums;   // likewise

  MassSum Of(size_t query) const {
    const size_t lanes = hn::Lanes(MassSum::Tag());
    return {bases + query * lanes, sums + query * lanes};
  }
};

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
