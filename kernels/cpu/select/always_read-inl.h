// The scores of the keys that rows of a tile read in any case, those of sinks, pinned blocks and
// tails, as relative thresholds need them; for the target that is being compiled. SIMD sources
// include this file after "hwy/foreach_target.h"; it is read once per target.
//
// With AMX they are products of tiles, as the scores of prefill's softmax are.
#if defined(ETA_KERNELS_CPU_SELECT_ALWAYS_READ_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_SELECT_ALWAYS_READ_INL_H_
#undef ETA_KERNELS_CPU_SELECT_ALWAYS_READ_INL_H_
#else
#define ETA_KERNELS_CPU_SELECT_ALWAYS_READ_INL_H_
#endif

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/select/record_panel-inl.h"
#include "kernels/cpu/select/tile_queries-inl.h"
#include "kernels/cpu/simd/amx_tile-inl.h"
#include "kernels/cpu/simd/gemm_tile-inl.h"
#include "kernels/cpu/simd/kv_elements-inl.h"

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

class AlwaysReadKeys : TileQueries {
 public:
  // `queries`: tiles [d][kQueries] of them. `products` [kQueries][kPanelBlocks] and `keys`
  // [d][kMaxBlockSize]: room. `tiles`: room on AMX tiles; null: none.
  AlwaysReadKeys(const TileQueries& tile, const TileMasses& masses, const float* queries,
                 float* products, float* keys, Scratch* tiles)
      : TileQueries(tile), masses_(masses), queries_(queries), products_(products), keys_(keys) {
#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64
    const auto stride = static_cast<size_t>(layout_.key_stride);
    if (tiles == nullptr || stride % kAmxColumns != 0) return;
    const size_t steps = AmxSteps(d_);
    const size_t key_bytes = stride / kAmxColumns * steps * AmxColumnStepBytes(true);
    const size_t pairs = (num_queries_ + kAmxPairRows - 1) / kAmxPairRows;
    amx_keys_ = tiles->Reserve<std::byte>(key_bytes + pairs * steps * kAmxRowStepBytes);
    amx_queries_ = amx_keys_ + key_bytes;
    SplitQueries();
#else
    static_cast<void>(tiles);
#endif
  }

  // Adds the scores of all keys that a row reads in any case to its mass, block by block.
  void Run() const {
    const int32_t b = layout_.block_size;
    const int32_t first_free = rows_.back().first_free;
    const int32_t pinned = rows_.front().first_pinned;
    const int32_t last = (tile_.num_keys(tile_.num_rows() - 1) + b - 1) / b;
    for (int32_t j = 0; j < first_free; ++j) ScoreBlock(j);
    for (int32_t j = std::max(first_free, pinned); j < last; ++j) ScoreBlock(j);
  }

 private:
  void ScoreBlock(int32_t ordinal) const {
    LoadKeys(ordinal);
#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64
    if (amx_keys_ != nullptr) {
      if (params_.geometry.dtype == DType::kFloat16) {
        ScoreOnTiles<true>(ordinal);
      } else {
        ScoreOnTiles<false>(ordinal);
      }
      return;
    }
#endif
    const auto stride = static_cast<size_t>(layout_.key_stride);
    for (size_t first = 0; first < num_queries_; first += kQueries) {
      const size_t end = std::min(first + kQueries, num_queries_);
      if (!ReadsAlways(first, end, ordinal)) continue;
      for (size_t key = 0; key < static_cast<size_t>(layout_.block_size); key += kPanelBlocks) {
        MultiplyQueries(queries_ + first * d_, d_, {keys_ + key, stride}, products_);
        for (size_t query = first; query < end; ++query) {
          const int32_t keys = KeysAlwaysRead(query, ordinal) - static_cast<int32_t>(key);
          const float* scores = products_ + (query - first) * kPanelBlocks;
          if (keys > 0) AddScores(query, scores, keys, params_.softmax_scale);
        }
      }
    }
  }

#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64
  // Queries as tiles of rows, 32 at a time, scaled.
  void SplitQueries() const {
    const Float d;
    const hn::RebindToUnsigned<Float> du;
    const Floats scale = hn::Set(d, params_.softmax_scale);
    const size_t pair_bytes = AmxSteps(d_) * kAmxRowStepBytes;
    for (size_t query = 0; query < num_queries_; ++query) {
      const auto terms = [&](size_t at) {
        return at < d_ ? hn::Mul(hn::LoadU(d, Query(query) + at), scale) : hn::Zero(d);
      };
      std::byte* step = amx_queries_ + query / kAmxPairRows * pair_bytes;
      for (size_t at = 0; at < d_; at += kAmxDepth, step += kAmxRowStepBytes) {
        Words high;
        Words low;
        SplitTerms(terms(at), terms(at + kLanes), high, low);
        uint32_t* words = AmxRowWords(step, query % kAmxPairRows);
        hn::Store(low, du, words);
        hn::Store(high, du, words + 2 * kAmxTileWords);
      }
    }
  }

  template <bool kHasLow>
  void ScoreOnTiles(int32_t ordinal) const {
    const AmxTiles in_use;
    const size_t steps = AmxSteps(d_);
    const auto stride = static_cast<size_t>(layout_.key_stride);
    AmxSplitColumns<kHasLow>(keys_, d_, stride, amx_keys_);
    alignas(64) float scores[kAmxPairRows * kAmxColumns];
    for (size_t first = 0; first < num_queries_; first += kAmxPairRows) {
      const size_t end = std::min(first + kAmxPairRows, num_queries_);
      if (!ReadsAlways(first, end, ordinal)) continue;
      for (size_t key = 0; key < static_cast<size_t>(layout_.block_size); key += kAmxColumns) {
        AmxZeroSums();
        AmxMultiplyPair<kHasLow>(
            amx_queries_ + first / kAmxPairRows * steps * kAmxRowStepBytes,
            amx_keys_ + key / kAmxColumns * steps * AmxColumnStepBytes(kHasLow), steps, []{});
        AmxStoreSums(scores, kAmxColumns * sizeof(float));
        for (size_t query = first; query < end; ++query) {
          const int32_t keys = KeysAlwaysRead(query, ordinal) - static_cast<int32_t>(key);
          if (keys > 0) AddScores(query, scores + (query - first) * kAmxColumns, keys, 1.0f);
        }
      }
    }
  }
#endif

  bool ReadsAlways(size_t first, size_t end, int32_t ordinal) const {
    for (size_t query = first; query < end; ++query) {
      if (KeysAlwaysRead(query, ordinal) > 0) return true;
    }
    return false;
  }

  void AddScores(size_t query, const float* scores, int32_t keys, float factor) const {
    const Float d;
    const Floats none = hn::Set(d, -std::numeric_limits<float>::infinity());
    const Floats scale = hn::Set(d, factor);
    Floats exponents[2];
    for (size_t half = 0; half < 2; ++half) {
      const auto valid = FirstLanes(keys - static_cast<int32_t>(half * kLanes));
      exponents[half] =
          hn::IfThenElse(valid, hn::Mul(scale, hn::Load(d, scores + half * kLanes)), none);
    }
    masses_.Of(query).Add(exponents, hn::Max(exponents[0], exponents[1]));
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
    const int32_t block = tile_.sequence->table(params_.kv.table)[static_cast<size_t>(ordinal)];
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

  const TileMasses masses_;
  const float* queries_;
  float* products_;
  float* keys_;  // [d][key_stride]
#if HWY_TARGET == HWY_AVX3 && HWY_ARCH_X86_64
  std::byte* amx_keys_ = nullptr;     // tiles of columns; null: no tiles
  std::byte* amx_queries_ = nullptr;  // tiles of rows
#endif
};

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
