// Writes a block's record of kind outlier (eta-semantics.md, "Index kinds"), for the target that is
// being compiled: the key that stands out in the metric of scores, and mean and deviation of the
// others, rounded to 8 bits. SIMD sources include this file after "hwy/foreach_target.h"; it is
// read once per target.
//
// The choice of the outlier takes d^2 / 2 products per key. So the metric's symmetry is used, and
// sums over 4 coordinates stay in registers. For mean and deviation, sums over the tokens of
// several coordinates are finished together.
#if defined(ETA_KERNELS_CPU_OUTLIER_RECORD_INL_H_) == defined(HWY_TARGET_TOGGLE)
#ifdef ETA_KERNELS_CPU_OUTLIER_RECORD_INL_H_
#undef ETA_KERNELS_CPU_OUTLIER_RECORD_INL_H_
#else
#define ETA_KERNELS_CPU_OUTLIER_RECORD_INL_H_
#endif

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/simd/kv_elements-inl.h"
#include "kernels/cpu/simd/transpose_sum-inl.h"
#include "kernels/dtype.h"
#include "kernels/quantize.h"

#ifndef ETA_KERNELS_CPU_OUTLIER_RECORD_ONCE_
#define ETA_KERNELS_CPU_OUTLIER_RECORD_ONCE_
namespace eta::cpu {

// One thread's working memory.
struct OutlierScratch {
  alignas(64) float centred[kMaxHeadDim * kMaxBlockSize];  // [d][key_stride], keys less their mean
  alignas(64) float distances[kMaxBlockSize];              // [key_stride]
  alignas(64) float others[kMaxBlockSize];                 // [key_stride], 1 for keys that count
  alignas(64) float means[kMaxHeadDim];                    // of all keys
  alignas(64) float mu[kMaxHeadDim];
  alignas(64) float sigma[kMaxHeadDim];
  alignas(64) float outlier[kMaxHeadDim];
};

}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// Calls visit(i) for every coordinate i of [begin, begin + lanes), which returns a vector. The
// result has the sum (AddOp) of each vector's lanes.
template <class Op, class Visit>
HWY_INLINE hn::Vec<hn::ScalableTag<float>> ReduceCoordinates(size_t begin, const Visit& visit) {
  const hn::ScalableTag<float> df;
  constexpr size_t kCoordinates = hn::MaxLanes(df);
  alignas(64) float table[kCoordinates * kCoordinates];
  for (size_t c = 0; c < kCoordinates; ++c) {
    hn::Store(visit(begin + c), df, table + c * kCoordinates);
  }
  return TransposeReduce<Op>(table);
}

// Widens a block's keys less their mean into scratch.centred [d][stride], padding zero.
template <class Elements>
void CentreKeys(const KvTile& tile, const typename Elements::Stored* keys,
                OutlierScratch& scratch) {
  const hn::ScalableTag<float> df;
  const size_t lanes = hn::Lanes(df);
  const auto b = static_cast<size_t>(tile.block_size);
  const auto stride = static_cast<size_t>(tile.key_stride);
  const size_t whole = b / lanes * lanes;
  for (size_t i = 0; i < static_cast<size_t>(tile.head_dim); i += lanes) {
    const auto sum = ReduceCoordinates<AddOp>(i, [&](size_t c) HWY_ATTR {
      const typename Elements::Stored* coordinate = keys + c * stride;
      auto total = hn::Zero(df);
      for (size_t t = 0; t < whole; t += lanes) {
        total = hn::Add(total, LoadElements(Elements(), df, coordinate + t));
      }
      if (whole == b) return total;
      const auto rest = LoadElements(Elements(), df, coordinate + whole);
      return hn::Add(total, hn::IfThenElseZero(hn::FirstN(df, b - whole), rest));
    });
    hn::Store(hn::Div(sum, hn::Set(df, static_cast<float>(b))), df, scratch.means + i);
    for (size_t c = i; c < i + lanes; ++c) {
      const typename Elements::Stored* coordinate = keys + c * stride;
      float* to = scratch.centred + c * stride;
      const auto mean = hn::Set(df, scratch.means[c]);
      for (size_t t = 0; t < whole; t += lanes) {
        hn::Store(hn::Sub(LoadElements(Elements(), df, coordinate + t), mean), df, to + t);
      }
      for (size_t t = whole; t < stride; t += lanes) {
        const auto valid = t < b ? hn::FirstN(df, b - t) : hn::FirstN(df, 0);
        const auto centred = hn::Sub(LoadElements(Elements(), df, coordinate + t), mean);
        hn::Store(hn::IfThenElseZero(valid, centred), df, to + t);
      }
    }
  }
}

// Adds x_i (C x)_i over i in [0, d) to the distances of kVectors vectors of keys x. With C
// symmetric the products of two coordinates are taken once and doubled.
template <size_t kVectors>
HWY_INLINE void AddDistances(const float* HWY_RESTRICT centred, size_t stride,
                             const float* HWY_RESTRICT metric, size_t d,
                             float* HWY_RESTRICT distances) {
  const hn::ScalableTag<float> df;
  using V = hn::Vec<decltype(df)>;
  constexpr size_t kLanes = hn::MaxLanes(df);
  constexpr size_t kRows = 4;
  V total[kVectors];
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) total[v] = hn::Zero(df);
  for (size_t i = 0; i < d; i += kRows) {
    V along[kRows][kVectors];
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) along[r][v] = hn::Zero(df);
    }
    const auto multiply = [&](size_t j) HWY_ATTR {
      V x[kVectors];
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) x[v] = hn::Load(df, centred + j * stride + v * kLanes);
#pragma GCC unroll 4
      for (size_t r = 0; r < kRows; ++r) {
        const V c = hn::Set(df, metric[(i + r) * d + j]);
#pragma GCC unroll 4
        for (size_t v = 0; v < kVectors; ++v) along[r][v] = hn::MulAdd(c, x[v], along[r][v]);
      }
    };
    for (size_t j = 0; j < i; ++j) multiply(j);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) along[r][v] = hn::Add(along[r][v], along[r][v]);
    }
    for (size_t j = i; j < i + kRows; ++j) multiply(j);
#pragma GCC unroll 4
    for (size_t r = 0; r < kRows; ++r) {
#pragma GCC unroll 4
      for (size_t v = 0; v < kVectors; ++v) {
        const V x = hn::Load(df, centred + (i + r) * stride + v * kLanes);
        total[v] = hn::MulAdd(x, along[r][v], total[v]);
      }
    }
  }
#pragma GCC unroll 4
  for (size_t v = 0; v < kVectors; ++v) hn::Store(total[v], df, distances + v * kLanes);
}

// Without a metric: the squared Euclidean distance of one vector of keys.
HWY_INLINE void AddSquares(const float* HWY_RESTRICT centred, size_t stride, size_t d,
                           float* HWY_RESTRICT distances) {
  const hn::ScalableTag<float> df;
  auto total = hn::Zero(df);
  for (size_t i = 0; i < d; ++i) {
    const auto x = hn::Load(df, centred + i * stride);
    total = hn::MulAdd(x, x, total);
  }
  hn::Store(total, df, distances);
}

// The position in the block of the key that stands out: the first of those with the largest
// distance from the mean.
inline size_t FindOutlier(const KvTile& tile, const float* metric, OutlierScratch& scratch) {
  const hn::ScalableTag<float> df;
  constexpr size_t kVectors = HWY_MAX_BYTES == 64 ? 4 : 2;
  const size_t lanes = hn::Lanes(df);
  const auto d = static_cast<size_t>(tile.head_dim);
  const auto stride = static_cast<size_t>(tile.key_stride);
  size_t t = 0;
  if (metric != nullptr) {
    for (; t + kVectors * lanes <= stride; t += kVectors * lanes) {
      AddDistances<kVectors>(scratch.centred + t, stride, metric, d, scratch.distances + t);
    }
  }
  for (; t < stride; t += lanes) {
    if (metric != nullptr) {
      AddDistances<1>(scratch.centred + t, stride, metric, d, scratch.distances + t);
    } else {
      AddSquares(scratch.centred + t, stride, d, scratch.distances + t);
    }
  }
  size_t outlier = 0;
  for (size_t key = 1; key < static_cast<size_t>(tile.block_size); ++key) {
    if (scratch.distances[key] > scratch.distances[outlier]) outlier = key;
  }
  return outlier;
}

// The sums of every 4 lanes of v0 .. v3, in any order.
template <class V>
HWY_INLINE V SumQuads(V v0, V v1, V v2, V v3) {
  const hn::ScalableTag<float> df;
  const hn::RepartitionToWide<hn::RebindToUnsigned<decltype(df)>> d64;
  const auto pairs = [&](V a, V b) HWY_ATTR {
    const auto wide_a = hn::BitCast(d64, a);
    const auto wide_b = hn::BitCast(d64, b);
    return hn::Add(hn::BitCast(df, hn::InterleaveLower(d64, wide_a, wide_b)),
                   hn::BitCast(df, hn::InterleaveUpper(d64, wide_a, wide_b)));
  };
  const V a = pairs(v0, v1);
  const V b = pairs(v2, v3);
  return hn::Add(hn::OddEven(b, a), hn::Shuffle2301(hn::OddEven(a, b)));
}

// The squared distances of the other keys of coordinate `centred` [stride] from `mean`, zero for
// the outlier: token t and those after it, as a vector.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> OtherSquares(const float* centred, const float* others,
                                                        float mean, size_t t) {
  const hn::ScalableTag<float> df;
  const auto distance = hn::Sub(hn::Load(df, centred + t), hn::Set(df, mean));
  const auto counted = hn::Mul(distance, hn::Load(df, others + t));
  return hn::Mul(counted, counted);
}

// The largest sum of squares over a sub-block of `part` tokens.
inline float LargestSubBlock(const float* centred, const KvTile& tile, size_t part, float mean,
                             OutlierScratch& scratch) {
  const hn::ScalableTag<float> df;
  const auto b = static_cast<size_t>(tile.block_size);
  for (size_t t = 0; t < b; t += hn::Lanes(df)) {
    hn::Store(OtherSquares(centred, scratch.others, mean, t), df, scratch.distances + t);
  }
  float largest = 0.0f;
  for (size_t begin = 0; begin < b; begin += part) {
    float sum = 0.0f;
    for (size_t t = begin; t < begin + part; ++t) sum += scratch.distances[t];
    largest = std::max(largest, sum);
  }
  return largest;
}

// The same for sub-blocks of 4 tokens: the largest lane of the result.
HWY_INLINE hn::Vec<hn::ScalableTag<float>> LargestQuads(const float* centred, size_t stride,
                                                        float mean, const float* others) {
  const hn::ScalableTag<float> df;
  const size_t lanes = hn::Lanes(df);
  auto largest = hn::Zero(df);
  size_t t = 0;
  for (; t + 4 * lanes <= stride; t += 4 * lanes) {
    largest = hn::Max(largest, SumQuads(OtherSquares(centred, others, mean, t),
                                        OtherSquares(centred, others, mean, t + lanes),
                                        OtherSquares(centred, others, mean, t + 2 * lanes),
                                        OtherSquares(centred, others, mean, t + 3 * lanes)));
  }
  for (; t < stride; t += lanes) {
    const auto none = hn::Zero(df);
    largest = hn::Max(largest, SumQuads(OtherSquares(centred, others, mean, t), none, none, none));
  }
  return largest;
}

// Mean and deviation of all keys but the outlier, from the centred keys.
inline void DescribeOthers(const KvTile& tile, size_t outlier, size_t part,
                           OutlierScratch& scratch) {
  const hn::ScalableTag<float> df;
  const size_t lanes = hn::Lanes(df);
  const auto b = static_cast<size_t>(tile.block_size);
  const auto stride = static_cast<size_t>(tile.key_stride);
  for (size_t t = 0; t < stride; ++t) scratch.others[t] = t < b && t != outlier ? 1.0f : 0.0f;
  const auto count = hn::Set(df, b > 1 ? static_cast<float>(b - 1) : 1.0f);
  const auto divisor = hn::Set(df, static_cast<float>(part));
  for (size_t i = 0; i < static_cast<size_t>(tile.head_dim); i += lanes) {
    const auto sum = ReduceCoordinates<AddOp>(i, [&](size_t c) HWY_ATTR {
      auto total = hn::Zero(df);
      for (size_t t = 0; t < stride; t += lanes) {
        const auto centred = hn::Load(df, scratch.centred + c * stride + t);
        total = hn::MulAdd(centred, hn::Load(df, scratch.others + t), total);
      }
      return total;
    });
    const auto shift = hn::Div(sum, count);
    alignas(64) float shifts[hn::MaxLanes(df)];
    hn::Store(shift, df, shifts);
    // The mean of no key is zero.
    const auto mean = b > 1 ? hn::Add(hn::Load(df, scratch.means + i), shift) : hn::Zero(df);
    hn::Store(mean, df, scratch.mu + i);
    const auto squares = ReduceCoordinates<MaxOp>(i, [&](size_t c) HWY_ATTR {
      const float* centred = scratch.centred + c * stride;
      if (part == 4) return LargestQuads(centred, stride, shifts[c - i], scratch.others);
      return hn::Set(df, LargestSubBlock(centred, tile, part, shifts[c - i], scratch));
    });
    hn::Store(hn::Sqrt(hn::Div(squares, divisor)), df, scratch.sigma + i);
  }
}

// The largest magnitude of `values`, NaN if one is NaN.
HWY_INLINE float LargestOf(const float* values, size_t d) {
  const hn::ScalableTag<float> df;
  auto largest = hn::Zero(df);
  auto nan = hn::Zero(df);  // of which a lane is NaN if a value is NaN or infinite
  for (size_t i = 0; i < d; i += hn::Lanes(df)) {
    const auto value = hn::Load(df, values + i);
    largest = hn::Max(largest, hn::Abs(value));
    nan = hn::Add(nan, hn::Sub(value, value));
  }
  const float most = hn::GetLane(hn::MaxOfLanes(df, largest));
  return hn::AllTrue(df, hn::Eq(nan, nan)) ? most : std::numeric_limits<float>::quiet_NaN();
}

// Writes values / step, rounded to the nearest integer or up, as 8-bit ones; zeros for a step that
// divides nothing.
template <bool kUp, class Byte>
HWY_INLINE void WriteSteps(const float* values, size_t d, float step, Byte* to) {
  if (!(step > 0.0f) || !std::isfinite(step)) {
    std::fill_n(to, d, Byte{0});
    return;
  }
  const hn::ScalableTag<float> df;
  const hn::RebindToSigned<decltype(df)> di;
  const hn::Rebind<Byte, decltype(df)> d8;
  const auto least = hn::Set(di, kUp ? 0 : -127);
  const auto most = hn::Set(di, kUp ? 255 : 127);
  for (size_t i = 0; i < d; i += hn::Lanes(df)) {
    const auto steps = hn::Div(hn::Load(df, values + i), hn::Set(df, step));
    const auto whole = kUp ? hn::ConvertTo(di, hn::Ceil(steps)) : hn::NearestInt(steps);
    hn::StoreU(hn::DemoteTo(d8, hn::Min(hn::Max(whole, least), most)), d8, to + i);
  }
}

// Rounds as QuantizeOutlierRecord() does, about the centre [d] (null: zero).
inline void WriteRounded(const KvTile& tile, const float* centre, OutlierScratch& scratch,
                         std::byte* record) {
  const hn::ScalableTag<float> df;
  const auto d = static_cast<size_t>(tile.head_dim);
  for (size_t i = 0; centre != nullptr && i < d; i += hn::Lanes(df)) {
    const auto middle = hn::LoadU(df, centre + i);
    hn::Store(hn::Sub(hn::Load(df, scratch.mu + i), middle), df, scratch.mu + i);
    hn::Store(hn::Sub(hn::Load(df, scratch.outlier + i), middle), df, scratch.outlier + i);
  }
  const float step = std::max(HalfUp(LargestOf(scratch.mu, d) / 127.0f),
                              HalfUp(LargestOf(scratch.sigma, d) / 255.0f));
  const float outlier_step = HalfUp(LargestOf(scratch.outlier, d) / 127.0f);
  WriteSteps<false>(scratch.mu, d, step, tile.Mu8(record));
  WriteSteps<true>(scratch.sigma, d, step, tile.Sigma8(record));
  WriteSteps<false>(scratch.outlier, d, outlier_step, tile.Outlier8(record));
  tile.Steps(record)[0] = FloatToHalf(step);
  tile.Steps(record)[1] = FloatToHalf(outlier_step);
}

// Writes mu, sigma, outlier and steps of a full block from its stored keys [d][key_stride], for a
// KV head with the metric [d, d] (null: identity) and the centre [d] (null: zero).
template <class Elements>
void WriteOutlierRecord(const KvTile& tile, const typename Elements::Stored* keys,
                        int32_t sub_block, const float* metric, const float* centre,
                        OutlierScratch& scratch, std::byte* record) {
  const hn::ScalableTag<float> df;
  const auto d = static_cast<size_t>(tile.head_dim);
  const auto stride = static_cast<size_t>(tile.key_stride);
  CentreKeys<Elements>(tile, keys, scratch);
  const size_t outlier = FindOutlier(tile, metric, scratch);
  typename Elements::Stored chosen[kMaxHeadDim];
  for (size_t i = 0; i < d; ++i) chosen[i] = keys[i * stride + outlier];
  for (size_t i = 0; i < d; i += hn::Lanes(df)) {
    hn::Store(LoadElements(Elements(), df, chosen + i), df, scratch.outlier + i);
  }
  const auto part = static_cast<size_t>(sub_block > 0 ? sub_block : tile.block_size);
  DescribeOthers(tile, outlier, part, scratch);
  WriteRounded(tile, centre, scratch, record);
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#endif  // per-target include guard
