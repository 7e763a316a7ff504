// Ranks the tokens of one row by logit, ties by lowest id, and cuts the ranking at a wanted place.
// One CTA does it. top_k, top_p, the draw and the alternatives all ask the same question: how far
// down the ranking is a count or a mass reached?
//
// Nothing is sorted for the answer. A histogram over bins of equal width in the logit, narrow
// against the temperature, finds the bin where the answer lies. Further histograms split that bin's
// range of keys until one token is left; usually one or two are enough. Sums are exact; see
// sampling.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cub/block/block_reduce.cuh>
#include <cub/block/block_scan.cuh>

#include "kernels/cuda/rows/sampling.h"

namespace eta::cuda::ranking {

constexpr int32_t kThreads = 512;
constexpr int32_t kBinsPerThread = 4;
constexpr int32_t kBins = kThreads * kBinsPerThread;
constexpr int32_t kBinBits = 11;
static_assert(kBins == 1 << kBinBits);

// Bins per temperature. kBins of them reach so far down that tokens beyond weigh nothing:
// exp(-34.1) is less than half a unit of 2^-48.
constexpr float kBinsPerTemperature = 60.0f;
constexpr int32_t kMaxWeightBits = 48;

constexpr int32_t kPowers = 32;  // table of 2^(i/32)
constexpr int32_t kPowerBits = 5;

// A number of tokens, and the sum of their weights.
struct Tally {
  uint64_t mass;
  uint32_t count;
};

struct Add {
  __device__ Tally operator()(const Tally& a, const Tally& b) const {
    return {a.mass + b.mass, a.count + b.count};
  }
};

struct Larger {
  __device__ uint64_t operator()(uint64_t a, uint64_t b) const { return a > b ? a : b; }
};

// The measure of a prefix of the ranking.
enum class Measure { kCount, kMass };

__device__ __forceinline__ uint64_t Of(const Tally& tally, Measure measure) {
  return measure == Measure::kCount ? tally.count : tally.mass;
}

// Maps a float to an integer of the same order; -0 equals +0.
__device__ __forceinline__ uint32_t Ordered(float value) {
  const uint32_t bits = __float_as_uint(__fadd_rn(value, 0.0f));
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}
__device__ __forceinline__ float FromOrdered(uint32_t ordered) {
  return __uint_as_float((ordered & 0x80000000u) != 0 ? ordered ^ 0x80000000u : ~ordered);
}

// The logits of a row at one temperature.
struct View {
  const float* logits;  // [vocab]
  int32_t vocab;
  int32_t id_bits;      // of the largest id
  int32_t weight_bits;  // S: weights count units of 2^-S
  float best;           // the largest logit, finite
  float bins_per_logit;
  double powers_per_logit;  // kPowers / (ln 2 * temperature)

  __device__ uint64_t Key(float logit, int32_t id) const {
    const uint32_t mask = (1u << id_bits) - 1;
    return (uint64_t{Ordered(logit)} << id_bits) | (mask - static_cast<uint32_t>(id));
  }
  // The lowest key of the tokens with this logit.
  __device__ uint64_t LowestKey(float logit) const { return uint64_t{Ordered(logit)} << id_bits; }
  __device__ int32_t IdOf(uint64_t key) const {
    const uint32_t mask = (1u << id_bits) - 1;
    return static_cast<int32_t>(mask - (static_cast<uint32_t>(key) & mask));
  }

  // 0 for the best logit, kBins for logits that weigh nothing.
  __device__ int32_t CoarseBin(float logit) const {
    const float bin = __fmul_rn(__fsub_rn(best, logit), bins_per_logit);
    return bin < static_cast<float>(kBins) ? static_cast<int32_t>(bin) : kBins;
  }

  // exp((logit - best) / temperature) in units of 2^-weight_bits, for logits in coarse bins. It is
  // 2^(x/32) = 2^(k>>5) * powers[k&31] * 2^(r/32) with k = round(x) and a series in r. Adding 2^52
  // leaves the rounded integer in the low bits. Rounding is written out, since a token must have
  // one weight wherever this is inlined.
  __device__ uint64_t Weight(float logit, const double* powers) const {
    constexpr double kToInteger = 0x1.8p52;
    constexpr double kStep = 0.693147180559945309417 / kPowers;
    const double x = __dmul_rn(__dsub_rn(logit, best), powers_per_logit);
    const double shifted = __dadd_rn(x, kToInteger);
    const int32_t k = __double2loint(shifted);
    const double y = __dmul_rn(__dsub_rn(x, __dsub_rn(shifted, kToInteger)), kStep);
    double series = __fma_rn(y, 1.0 / 120.0, 1.0 / 24.0);
    series = __fma_rn(series, y, 1.0 / 6.0);
    series = __fma_rn(series, y, 0.5);
    series = __fma_rn(series, y, 1.0);
    series = __fma_rn(series, y, 1.0);
    const double unit = __hiloint2double((1023 + weight_bits + (k >> kPowerBits)) << 20, 0);
    const double sum = __fma_rn(__dmul_rn(series, powers[k & (kPowers - 1)]), unit, 0x1p52);
    return static_cast<uint64_t>(__double_as_longlong(sum)) & ((uint64_t{1} << 52) - 1);
  }
};

// A part of the ranking and its division into bins: by the coarse bin; or, within one coarse bin or
// all tokens, by 2^shift keys a bin from `high` down.
struct Slice {
  static constexpr int32_t kByCoarse = -2;
  static constexpr int32_t kAll = -1;

  int32_t coarse;
  int32_t shift = 0;
  uint64_t high = 0;
  uint64_t low = 0;

  // The token's bin; kBins if it is not in the slice.
  __device__ int32_t Bin(const View& view, float logit, int32_t id) const {
    if (coarse != kAll) {
      const int32_t bin = view.CoarseBin(logit);
      if (coarse == kByCoarse || bin != coarse) return coarse == kByCoarse ? bin : kBins;
    }
    const uint64_t key = view.Key(logit, id);
    return key <= high && key >= low ? static_cast<int32_t>((high - key) >> shift) : kBins;
  }

  // Whether the token ranks at least as high as the slice's last token.
  __device__ bool Reaches(const View& view, float logit, int32_t id) const {
    if (coarse != kAll) {
      const int32_t bin = view.CoarseBin(logit);
      if (bin != coarse) return bin < coarse;
    }
    return view.Key(logit, id) >= low;
  }

  __device__ static Slice Keys(int32_t coarse, uint64_t high, uint64_t low) {
    const int32_t bits = 64 - __clzll(static_cast<long long>(high - low));
    return {coarse, bits > kBinBits ? bits - kBinBits : 0, high, low};
  }
  __device__ static Slice All(const View& view) {
    return Keys(kAll, view.Key(view.best, 0), view.LowestKey(-INFINITY));
  }

  // The slice of one bin.
  __device__ Slice Narrow(const View& view, int32_t bin) const {
    if (coarse == kByCoarse) {
      // The slack is wider than the rounding in CoarseBin().
      constexpr double kSlack = 0x1p-20;
      const double width = 1.0 / view.bins_per_logit;
      const double first = view.best - bin * width * (1.0 - kSlack);
      const double last = view.best - (bin + 1) * width * (1.0 + kSlack);
      return Keys(bin, view.Key(__double2float_ru(first), 0),
                  view.LowestKey(__double2float_rd(last)));
    }
    const uint64_t first = high - (static_cast<uint64_t>(bin) << shift);
    const uint64_t size = uint64_t{1} << shift;
    return Keys(coarse, first, first - low >= size ? first - size + 1 : low);
  }
};

// A histogram: each thread holds kBinsPerThread consecutive bins.
struct Bins {
  Tally before;  // all bins before the thread's first
  Tally own[kBinsPerThread];
  Tally total;
};

struct FoundBin {
  int32_t index;
  Tally before;
  Tally own;
};

using BlockReduce = cub::BlockReduce<uint64_t, kThreads>;
using BlockScan = cub::BlockScan<Tally, kThreads>;

struct Shared {
  double powers[kPowers];
  union {
    struct {
      uint32_t count[kBins];
      uint32_t mass_low[kBins];
      uint32_t mass_high[kBins];
    } bins;
    uint64_t listed[kMaxAlternatives];
  };
  union {
    BlockReduce::TempStorage reduce;
    BlockScan::TempStorage scan;
  };
  View view;
  FoundBin found;
  uint64_t reduced;
  int32_t num_listed;
  int32_t token;
};
constexpr size_t kSharedBytes = (sizeof(Shared) + 15) / 16 * 16;

// The CTA's dynamic shared memory. A row's logits follow the first kSharedBytes.
__device__ __forceinline__ Shared& BlockShared() {
  extern __shared__ __align__(16) std::byte shared_bytes[];
  return *reinterpret_cast<Shared*>(shared_bytes);
}
__device__ __forceinline__ float* CachedLogits() {
  return reinterpret_cast<float*>(reinterpret_cast<std::byte*>(&BlockShared()) + kSharedBytes);
}

template <class Op>
__device__ uint64_t Reduce(uint64_t value, const Op& op) {
  Shared& shared = BlockShared();
  const uint64_t reduced = BlockReduce(shared.reduce).Reduce(value, op);
  if (threadIdx.x == 0) shared.reduced = reduced;
  __syncthreads();
  const uint64_t result = shared.reduced;
  __syncthreads();
  return result;
}

// Calls visit(id, logit) for every token, with ascending ids in each thread. If `copy` is given, it
// copies the row there.
template <int kUnroll, class Visit>
__device__ __forceinline__ void ForEachToken(const float* logits, int32_t vocab, float* copy,
                                             const Visit& visit) {
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const bool aligned = reinterpret_cast<uintptr_t>(logits) % sizeof(float4) == 0;
  const int32_t num_quads = aligned ? vocab / 4 : 0;
  const auto* quads = reinterpret_cast<const float4*>(logits);
  for (int32_t begin = thread; begin < num_quads; begin += kUnroll * kThreads) {
    float4 values[kUnroll];
#pragma unroll
    for (int32_t u = 0; u < kUnroll; ++u) {
      const int32_t i = begin + u * kThreads;
      if (i < num_quads) values[u] = quads[i];
    }
#pragma unroll
    for (int32_t u = 0; u < kUnroll; ++u) {
      const int32_t i = begin + u * kThreads;
      if (i >= num_quads) continue;
      if (copy != nullptr) reinterpret_cast<float4*>(copy)[i] = values[u];
      visit(4 * i, values[u].x);
      visit(4 * i + 1, values[u].y);
      visit(4 * i + 2, values[u].z);
      visit(4 * i + 3, values[u].w);
    }
  }
  for (int32_t id = 4 * num_quads + thread; id < vocab; id += kThreads) {
    const float logit = logits[id];
    if (copy != nullptr) copy[id] = logit;
    visit(id, logit);
  }
}

struct Largest {
  float logit;
  int32_t id;     // the lowest with this logit
  bool drawable;  // no NaN, no +infinity, at least one above -infinity
};

__device__ __forceinline__ Largest FindLargest(const float* logits, int32_t vocab, float* copy) {
  float best = -INFINITY;
  int32_t best_id = 0;
  bool below = true;
  ForEachToken<8>(logits, vocab, copy, [&](int32_t id, float logit) {
    below = below && logit < INFINITY;
    if (logit > best) {
      best = logit;
      best_id = id;
    }
  });
  below = __syncthreads_and(below) != 0;
  const uint64_t key =
      Reduce((uint64_t{Ordered(best)} << 32) | ~static_cast<uint32_t>(best_id), Larger());
  const float largest = FromOrdered(static_cast<uint32_t>(key >> 32));
  return {largest, static_cast<int32_t>(~static_cast<uint32_t>(key)), below && largest > -INFINITY};
}

__device__ void SetView(const float* logits, int32_t vocab, float best, float temperature) {
  Shared& shared = BlockShared();
  if (threadIdx.x == 0) {
    // Beyond these bounds the width of a bin is no normal number, and logits do not differ so much.
    const float bounded = fminf(fmaxf(temperature, 1e-30f), 1e30f);
    const int32_t id_bits = 32 - __clz(vocab - 1);
    shared.view = {.logits = logits,
                   .vocab = vocab,
                   .id_bits = id_bits,
                   .weight_bits = min(kMaxWeightBits, 63 - id_bits),
                   .best = best,
                   .bins_per_logit = kBinsPerTemperature / bounded,
                   .powers_per_logit = kPowers / (0.693147180559945309417 * bounded)};
  }
  __syncthreads();
}

// Counts and weighs the slice's tokens by bin.
__device__ __noinline__ Bins Histogram(const Slice slice) {
  Shared& shared = BlockShared();
  const View view = shared.view;
  auto& bins = shared.bins;
  for (int32_t i = threadIdx.x; i < kBins; i += kThreads) {
    bins.count[i] = 0;
    bins.mass_low[i] = 0;
    bins.mass_high[i] = 0;
  }
  __syncthreads();
  ForEachToken<1>(view.logits, view.vocab, nullptr, [&](int32_t id, float logit) {
    const int32_t bin = slice.Bin(view, logit, id);
    if (bin >= kBins) return;
    atomicAdd(&bins.count[bin], 1u);
    if (slice.coarse == Slice::kAll) return;
    const uint64_t weight = view.Weight(logit, shared.powers);
    const auto low = static_cast<uint32_t>(weight);
    const uint32_t old = atomicAdd(&bins.mass_low[bin], low);
    const uint32_t high = static_cast<uint32_t>(weight >> 32) + (old + low < old ? 1 : 0);
    if (high != 0) atomicAdd(&bins.mass_high[bin], high);
  });
  __syncthreads();
  Bins result;
  Tally sum = {0, 0};
  for (int32_t i = 0; i < kBinsPerThread; ++i) {
    const int32_t bin = threadIdx.x * kBinsPerThread + i;
    result.own[i] = {(uint64_t{bins.mass_high[bin]} << 32) + bins.mass_low[bin], bins.count[bin]};
    sum = Add()(sum, result.own[i]);
  }
  BlockScan(shared.scan).ExclusiveScan(sum, result.before, Tally{0, 0}, Add(), result.total);
  __syncthreads();
  return result;
}

// Finds the bin in which `needed`, 1 to the total, is reached.
__device__ FoundBin Find(const Bins& bins, uint64_t needed, Measure measure) {
  Shared& shared = BlockShared();
  Tally before = bins.before;
#pragma unroll
  for (int32_t i = 0; i < kBinsPerThread; ++i) {
    const Tally through = Add()(before, bins.own[i]);
    if (Of(before, measure) < needed && needed <= Of(through, measure)) {
      const auto index = static_cast<int32_t>(threadIdx.x) * kBinsPerThread + i;
      shared.found = {index, before, bins.own[i]};
    }
    before = through;
  }
  __syncthreads();
  const FoundBin found = shared.found;
  __syncthreads();
  return found;
}

// The shortest prefix of the ranking that holds the needed measure.
struct Prefix {
  uint64_t mass;
  Slice last;  // its last token, alone
};

__device__ __noinline__ Prefix Reach(Slice slice, Bins bins, uint64_t needed, Measure measure) {
  uint64_t mass = 0;
  for (;;) {
    const FoundBin found = Find(bins, needed, measure);
    needed -= Of(found.before, measure);
    mass += found.before.mass;
    slice = slice.Narrow(BlockShared().view, found.index);
    if (found.own.count == 1) return {mass + found.own.mass, slice};
    bins = Histogram(slice);
  }
}

}  // namespace eta::cuda::ranking
