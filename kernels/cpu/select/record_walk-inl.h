// Walks over the records of a decode row's blocks, one record per lane, for the target that is
// being compiled. It gives the sums of every query head over a block: of q * mu, q^2 * sigma^2 and,
// of kind outlier, q * k_out. A record comes from memory once for all heads of the group. SIMD
// sources include this file after "hwy/foreach_target.h"; it is read once per target.
#if defined(ETA_KERNELS_CPU_SELECT_RECORD_WALK_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_SELECT_RECORD_WALK_INL_H_
#undef ETA_KERNELS_CPU_SELECT_RECORD_WALK_INL_H_
#else
#define ETA_KERNELS_CPU_SELECT_RECORD_WALK_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <span>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/select/block_scores-inl.h"
#include "kernels/cpu/select/select_group.h"
#include "kernels/cpu/simd/kv_elements-inl.h"
#include "kernels/cpu/simd/transpose_sum-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = RecordFloats;
using Vector = RecordVector;
constexpr size_t kRecordLanes = hn::MaxLanes(Floats());
// Heads whose sums over two records stay in registers together.
constexpr size_t kHeadsAtOnce = HWY_MAX_BYTES == 64 ? 4 : 2;

// The vectors of a record as float32: mu, sigma and, of kind outlier, the outlier. Those of kind
// outlier are in steps, less the centre.
struct MomentVectors {
  static constexpr size_t kSums = 2;
  static HWY_INLINE Vector Mean(const std::byte* record, size_t /*d*/, size_t i) {
    return LoadElements(Float16Elements(), Floats(), reinterpret_cast<const uint16_t*>(record) + i);
  }
  static HWY_INLINE Vector Deviation(const std::byte* record, size_t d, size_t i) {
    return Mean(record, d, d + i);
  }
};
struct OutlierVectors {
  static constexpr size_t kSums = 3;
  static HWY_INLINE Vector Mean(const std::byte* record, size_t /*d*/, size_t i) {
    return LoadBytes(Floats(), reinterpret_cast<const int8_t*>(record) + i);
  }
  static HWY_INLINE Vector Deviation(const std::byte* record, size_t d, size_t i) {
    return LoadBytes(Floats(), reinterpret_cast<const uint8_t*>(record) + d + i);
  }
  static HWY_INLINE Vector Outlier(const std::byte* record, size_t d, size_t i) {
    return Mean(record, d, 2 * d + i);
  }
};

// Computes the sums of two records and kHeads heads, still spread over lanes.
template <class Vectors, size_t kHeads>
HWY_INLINE void MultiplyRecords(const std::byte* HWY_RESTRICT record0,
                                const std::byte* HWY_RESTRICT record1,
                                const float* HWY_RESTRICT queries,
                                const float* HWY_RESTRICT squares, size_t d,
                                float* HWY_RESTRICT products) {
  const Floats df;
  constexpr size_t kSums = Vectors::kSums;
  Vector sums[kHeads][kSums][2];
#pragma GCC unroll 8
  for (size_t h = 0; h < kHeads; ++h) {
#pragma GCC unroll 3
    for (size_t s = 0; s < kSums; ++s) sums[h][s][0] = sums[h][s][1] = hn::Zero(df);
  }
  for (size_t i = 0; i < d; i += kRecordLanes) {
    const Vector mean0 = Vectors::Mean(record0, d, i);
    const Vector mean1 = Vectors::Mean(record1, d, i);
    const Vector deviation0 = Vectors::Deviation(record0, d, i);
    const Vector deviation1 = Vectors::Deviation(record1, d, i);
    const Vector variance0 = hn::Mul(deviation0, deviation0);
    const Vector variance1 = hn::Mul(deviation1, deviation1);
#pragma GCC unroll 8
    for (size_t h = 0; h < kHeads; ++h) {
      const Vector q = hn::Load(df, queries + h * kMaxHeadDim + i);
      const Vector q2 = hn::Load(df, squares + h * kMaxHeadDim + i);
      sums[h][0][0] = hn::MulAdd(q, mean0, sums[h][0][0]);
      sums[h][0][1] = hn::MulAdd(q, mean1, sums[h][0][1]);
      sums[h][1][0] = hn::MulAdd(q2, variance0, sums[h][1][0]);
      sums[h][1][1] = hn::MulAdd(q2, variance1, sums[h][1][1]);
    }
    if constexpr (kSums == 3) {
      const Vector outlier0 = Vectors::Outlier(record0, d, i);
      const Vector outlier1 = Vectors::Outlier(record1, d, i);
#pragma GCC unroll 8
      for (size_t h = 0; h < kHeads; ++h) {
        const Vector q = hn::Load(df, queries + h * kMaxHeadDim + i);
        sums[h][2][0] = hn::MulAdd(q, outlier0, sums[h][2][0]);
        sums[h][2][1] = hn::MulAdd(q, outlier1, sums[h][2][1]);
      }
    }
  }
#pragma GCC unroll 8
  for (size_t h = 0; h < kHeads; ++h) {
#pragma GCC unroll 3
    for (size_t s = 0; s < kSums; ++s) {
      float* to = products + (h * kSums + s) * kRecordLanes * kRecordLanes;
      hn::Store(sums[h][s][0], df, to);
      hn::Store(sums[h][s][1], df, to + kRecordLanes);
    }
  }
}

// Up to one record per lane. Lanes from `count` on repeat the last record and are not used.
struct RecordLanes {
  int32_t first;  // ordinal of lane 0
  int32_t count;
  const std::byte* records[kRecordLanes];
};

template <class Vectors>
class RecordWalk {
 public:
  RecordWalk(const SelectBlocksParams& params, const SelectGroup& group, SelectScratch& scratch)
      : params_(params),
        group_(group),
        table_(group.sequence->table(params.kv.table)),
        scratch_(scratch),
        tile_(params.geometry),
        d_(static_cast<size_t>(tile_.head_dim)),
        num_heads_(static_cast<size_t>(params.num_query_heads / tile_.num_kv_heads)) {}

  size_t num_heads() const { return num_heads_; }

  // Loads the queries, with their norms, sizes, products with the centre, and z.
  void Start() const {
    const Floats df;
    const auto head = static_cast<size_t>(group_.kv_head);
    const float* q = params_.q.row(group_.row) + head * num_heads_ * d_;
    const float* centre = params_.kv.index_centre;
    if (centre != nullptr) centre += head * d_;
    const float* head_z = group_.sequence->head_z;
    if (head_z != nullptr) {
      head_z += static_cast<size_t>(params_.layer) * static_cast<size_t>(params_.num_query_heads) +
                head * num_heads_;
    }
    for (size_t h = 0; h < num_heads_; ++h) {
      for (size_t i = 0; i < d_; i += kRecordLanes) {
        const Vector query = hn::LoadU(df, q + h * d_ + i);
        hn::Store(query, df, scratch_.queries + h * kMaxHeadDim + i);
        hn::Store(hn::Mul(query, query), df, scratch_.squares + h * kMaxHeadDim + i);
      }
      scratch_.terms[h] = TermsOf(q + h * d_, centre, d_,
                                  head_z != nullptr ? head_z[h] : group_.sequence->attention.z);
    }
  }

  // For the blocks of ordinals [begin, end), a vector of them at a time: visit.Begin(lanes), then
  // visit.Head(head, sums) for every head, where sums[s] is a vector of lanes, then visit.End().
  template <class Visit>
  HWY_INLINE void Run(int32_t begin, int32_t end, Visit& visit) const {
    for (int32_t first = begin; first < end; first += static_cast<int32_t>(kRecordLanes)) {
      RecordLanes lanes;
      lanes.first = first;
      lanes.count = std::min(end - first, static_cast<int32_t>(kRecordLanes));
      for (size_t r = 0; r < kRecordLanes; ++r) {
        lanes.records[r] = Record(first + std::min(static_cast<int32_t>(r), lanes.count - 1));
      }
      visit.Begin(lanes);
      for (size_t head = 0; head < num_heads_; head += kHeadsAtOnce) {
        const size_t heads = std::min(kHeadsAtOnce, num_heads_ - head);
        for (size_t r = 0; r < kRecordLanes; r += 2) {
          if (head == 0) Prefetch(first + static_cast<int32_t>(kRecordLanes + r), end);
          Multiply(lanes.records[r], lanes.records[r + 1], head, heads,
                   scratch_.products + r * kRecordLanes);
        }
        for (size_t h = 0; h < heads; ++h) {
          Vector sums[Vectors::kSums];
          const float* products =
              scratch_.products + h * Vectors::kSums * kRecordLanes * kRecordLanes;
#pragma GCC unroll 3
          for (size_t s = 0; s < Vectors::kSums; ++s) {
            sums[s] = TransposeSum(products + s * kRecordLanes * kRecordLanes);
          }
          visit.Head(head + h, sums);
        }
      }
      visit.End();
    }
  }

 private:
  const std::byte* Record(int32_t ordinal) const {
    return tile_.Record(params_.kv, table_[static_cast<size_t>(ordinal)], group_.kv_head);
  }

  void Prefetch(int32_t ordinal, int32_t end) const {
    for (int32_t i = ordinal; i < std::min(ordinal + 2, end); ++i) {
      const std::byte* record = Record(i);
      for (size_t at = 0; at < tile_.screened_bytes; at += 64) hwy::Prefetch(record + at);
      // The largest norm stands behind the V total.
      if (tile_.index == IndexKind::kMoment) hwy::Prefetch(record + 8 * d_);
    }
  }

  HWY_INLINE void Multiply(const std::byte* record0, const std::byte* record1, size_t head,
                           size_t heads, float* products) const {
    const float* q = scratch_.queries + head * kMaxHeadDim;
    const float* q2 = scratch_.squares + head * kMaxHeadDim;
    switch (heads) {
      case 1:
        return MultiplyRecords<Vectors, 1>(record0, record1, q, q2, d_, products);
      case 2:
        return MultiplyRecords<Vectors, 2>(record0, record1, q, q2, d_, products);
#if HWY_MAX_BYTES == 64
      case 3:
        return MultiplyRecords<Vectors, 3>(record0, record1, q, q2, d_, products);
      case 4:
        return MultiplyRecords<Vectors, 4>(record0, record1, q, q2, d_, products);
#endif
    }
  }

  const SelectBlocksParams& params_;
  const SelectGroup& group_;
  const std::span<const int32_t> table_;
  SelectScratch& scratch_;
  const KvTile tile_;
  const size_t d_;
  const size_t num_heads_;
};

// Those of kind outlier, from their steps.
inline OutlierScores ScoresOf(const KvTile& tile, const RecordLanes& lanes) {
  const Floats df;
  alignas(64) uint16_t steps[2][kRecordLanes];
  for (size_t r = 0; r < kRecordLanes; ++r) {
    const uint16_t* of_record = tile.Steps(const_cast<std::byte*>(lanes.records[r]));
    steps[0][r] = of_record[0];
    steps[1][r] = of_record[1];
  }
  return {LoadElements(Float16Elements(), df, steps[0]),
          LoadElements(Float16Elements(), df, steps[1])};
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
