// AppendKv stores K and V [R, HKV * d] of the step's rows in the cache, rounded to its type. It
// writes the record of every block that this fills: per KV head mu [d], sigma [d], M and the
// running sum of V [d] (eta-semantics.md, "Block index"; simd/outlier_record-inl.h has the other
// kind). With the record a query can bound its scores against the block without reading the keys.
//
// A task is one sequence and KV head. A full block's keys are read twice (for mean and norm, then
// for the deviation) and its values once: little beside attention, which reads many blocks a row.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/block_index.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <cmath>
#include <span>

#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/simd/kv_elements-inl.h"
#include "kernels/cpu/simd/outlier_record-inl.h"

#ifndef ETA_KERNELS_CPU_BLOCK_INDEX_ONCE_
#define ETA_KERNELS_CPU_BLOCK_INDEX_ONCE_
namespace eta::cpu {

// One thread's working memory.
struct AppendScratch {
  alignas(64) float keys[128 * 256];     // [tokens][d], stored form; 16-bit keys use the first half
  alignas(64) float distances[128];      // [key_stride], squared distances
  alignas(64) float squared_norms[128];  // [key_stride]
  OutlierScratch outlier;
};

}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Elements>
void StoreRow(const float* from, size_t d, typename Elements::Stored* to) {
  const hn::ScalableTag<float> df;
  for (size_t i = 0; i < d; i += hn::Lanes(df)) {
    StoreElements(Elements(), df, hn::LoadU(df, from + i), to + i);
  }
}

// Writes mu, sigma and M of a full block from its stored keys.
template <class Elements>
void WriteKeyStatistics(const KvTile& tile, const typename Elements::Stored* keys,
                        int32_t sub_block, std::byte* record, AppendScratch& scratch) {
  const hn::ScalableTag<float> df;
  const size_t lanes = hn::Lanes(df);
  const auto d = static_cast<size_t>(tile.head_dim);
  const auto b = static_cast<size_t>(tile.block_size);
  const auto stride = static_cast<size_t>(tile.key_stride);
  const size_t part = sub_block > 0 ? static_cast<size_t>(sub_block) : b;
  std::fill_n(scratch.squared_norms, stride, 0.0f);
  for (size_t i = 0; i < d; ++i) {
    const typename Elements::Stored* coordinate = keys + i * stride;
    auto sum = hn::Zero(df);
    for (size_t t = 0; t < b; t += lanes) {
      const auto key =
          hn::IfThenElseZero(hn::FirstN(df, b - t), LoadElements(Elements(), df, coordinate + t));
      sum = hn::Add(sum, key);
      float* norms = scratch.squared_norms + t;
      hn::Store(hn::MulAdd(key, key, hn::Load(df, norms)), df, norms);
    }
    const float mean = hn::GetLane(hn::SumOfLanes(df, sum)) / static_cast<float>(b);
    for (size_t t = 0; t < b; t += lanes) {
      const auto distance =
          hn::Sub(LoadElements(Elements(), df, coordinate + t), hn::Set(df, mean));
      hn::Store(hn::Mul(distance, distance), df, scratch.distances + t);
    }
    float largest = 0.0f;
    for (size_t begin = 0; begin < b; begin += part) {
      float squares = 0.0f;
      for (size_t t = begin; t < begin + part; ++t) squares += scratch.distances[t];
      largest = std::max(largest, squares);
    }
    tile.Mu(record)[i] = FloatToHalf(mean);
    tile.Sigma(record)[i] = FloatToHalf(std::sqrt(largest / static_cast<float>(part)));
  }
  *tile.MaxNorm(record) =
      std::sqrt(*std::max_element(scratch.squared_norms, scratch.squared_norms + b));
}

// v_total = total of the block before + sum of this block's values. `before` is null for the first
// block.
template <class Elements>
void WriteValueTotal(const KvTile& tile, const typename Elements::Stored* values,
                     const float* before, float* total) {
  const hn::ScalableTag<float> df;
  const auto d = static_cast<size_t>(tile.head_dim);
  for (size_t i = 0; i < d; i += hn::Lanes(df)) {
    auto sum = hn::Zero(df);
    for (size_t t = 0; t < static_cast<size_t>(tile.block_size); ++t) {
      sum = hn::Add(sum, LoadElements(Elements(), df, values + t * d + i));
    }
    if (before != nullptr) sum = hn::Add(hn::LoadU(df, before + i), sum);
    hn::StoreU(sum, df, total + i);
  }
}

// Writes the record of a full block from its stored keys and values. `before` is the V total of the
// block before.
template <class Elements>
void WriteRecord(const AppendKvParams& params, const KvTile& tile, int32_t kv_head, int32_t block,
                 const float* before, AppendScratch& scratch) {
  using Stored = typename Elements::Stored;
  const auto* keys = reinterpret_cast<const Stored*>(tile.K(params.kv, block, kv_head));
  const auto* values = reinterpret_cast<const Stored*>(tile.V(params.kv, block, kv_head));
  std::byte* record = tile.Record(params.kv, block, kv_head);
  if (tile.index == IndexKind::kOutlier) {
    const auto d = static_cast<size_t>(tile.head_dim);
    const auto head = static_cast<size_t>(kv_head);
    const float* metric = params.kv.index_metric;
    const float* centre = params.kv.index_centre;
    WriteOutlierRecord<Elements>(
        tile, keys, params.geometry.sub_block, metric != nullptr ? metric + head * d * d : nullptr,
        centre != nullptr ? centre + head * d : nullptr, scratch.outlier, record);
  } else {
    WriteKeyStatistics<Elements>(tile, keys, params.geometry.sub_block, record, scratch);
  }
  WriteValueTotal<Elements>(tile, values, before, tile.VTotal(record));
}

// Appends the rows of one sequence and KV head in order, since a record's V total needs the one
// before.
template <class Elements>
void AppendSequence(const AppendKvParams& params, const SequenceRows& sequence, int32_t kv_head,
                    AppendScratch& scratch) {
  using Stored = typename Elements::Stored;
  const KvTile tile(params.geometry);
  const auto d = static_cast<size_t>(tile.head_dim);
  const auto b = static_cast<size_t>(tile.block_size);
  const auto column = static_cast<int64_t>(kv_head) * tile.head_dim;
  const std::span<const int32_t> table = sequence.table(params.kv.table);
  auto* staged = reinterpret_cast<Stored*>(scratch.keys);

  int32_t row = 0;
  while (row < sequence.num_rows) {
    const int32_t position = sequence.position + row;
    const auto ordinal = static_cast<size_t>(position / tile.block_size);
    const auto slot = static_cast<size_t>(position % tile.block_size);
    const size_t count = std::min(b - slot, static_cast<size_t>(sequence.num_rows - row));
    const int32_t block = table[ordinal];
    auto* keys = reinterpret_cast<Stored*>(tile.K(params.kv, block, kv_head));
    auto* values = reinterpret_cast<Stored*>(tile.V(params.kv, block, kv_head));
    for (size_t t = 0; t < count; ++t) {
      const int64_t from = sequence.row_begin + row + static_cast<int64_t>(t);
      StoreRow<Elements>(params.k.row(from) + column, d, staged + t * d);
      StoreRow<Elements>(params.v.row(from) + column, d, values + (slot + t) * d);
    }
    const auto stride = static_cast<size_t>(tile.key_stride);
    for (size_t i = 0; i < d; ++i) {
      for (size_t t = 0; t < count; ++t) keys[i * stride + slot + t] = staged[t * d + i];
    }
    if (slot + count == b && params.kv.records != nullptr) {
      const float* before =
          ordinal > 0 ? tile.VTotal(tile.Record(params.kv, table[ordinal - 1], kv_head)) : nullptr;
      WriteRecord<Elements>(params, tile, kv_head, block, before, scratch);
    }
    row += static_cast<int32_t>(count);
  }
}

void AppendTask(const AppendKvParams& params, const SequenceRows& sequence, int32_t kv_head,
                AppendScratch& scratch) {
  switch (params.geometry.dtype) {
    case DType::kFloat16:
      return AppendSequence<Float16Elements>(params, sequence, kv_head, scratch);
    case DType::kBFloat16:
      return AppendSequence<BFloat16Elements>(params, sequence, kv_head, scratch);
    default:
      return AppendSequence<Float32Elements>(params, sequence, kv_head, scratch);
  }
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(AppendTask);

void AppendKv(const Context& context, const AppendKvParams& params) {
  static thread_local Scratch memory;
  auto* scratch = memory.Reserve<AppendScratch>(static_cast<size_t>(context.workers.num_threads()));
  const auto append = HWY_DYNAMIC_DISPATCH(AppendTask);
  const auto sequences = context.batch.sequences;
  const int64_t kv_heads = params.geometry.num_kv_heads;
  context.workers.Run(static_cast<int64_t>(sequences.size()) * kv_heads,
                      [&](int64_t task, int thread) {
                        append(params, sequences[static_cast<size_t>(task / kv_heads)],
                               static_cast<int32_t>(task % kv_heads), scratch[thread]);
                      });
}

}  // namespace eta::cpu
#endif
