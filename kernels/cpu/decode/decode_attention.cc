// DecodeAttention computes attention of each decode row over the blocks that SelectBlocks listed,
// and the tail: gate, softmax, and the floor of the pruned keys, from q [R, HQ * d] to out
// [R, HQ * d] (eta-semantics.md, "Gate", "Special keys", "Selection", steps 5 to 7, "Confirmed
// reads", "Windows" and "Learned sinks").
//
// Memory binds: K and V of a listed block are read once for all heads of the group, and V is left
// alone where reads are confirmed and no head keeps the block. A list is cut into segments, one
// task each; the last task of a list to end merges the partial results.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/decode/decode_attention.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <array>
#include <atomic>
#include <bit>
#include <cmath>
#include <limits>

#include "hwy/highway.h"
#include "kernels/cpu/decode/decode_plan.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/simd/block_softmax-inl.h"
#include "kernels/cpu/simd/tile_product-inl.h"
#include "kernels/cpu/tempered.h"

#ifndef ETA_KERNELS_CPU_DECODE_DECODE_ATTENTION_ONCE_
#define ETA_KERNELS_CPU_DECODE_DECODE_ATTENTION_ONCE_
namespace eta::cpu {

// One thread's working memory. Rows are kTileRowStride apart.
struct DecodeScratch {
  alignas(64) float queries[kMaxGroup * kTileRowStride];   // all heads, times s
  alignas(64) float admitted[kMaxGroup * kTileRowStride];  // all heads that admitted the block
  alignas(64) float weights[kMaxGroup * kTileRowStride];   // scores, then weights, of those heads
  alignas(64) float sums[kMaxGroup * kTileRowStride];      // all heads, sum of weight * V
  alignas(64) float totals[kMaxGroup * 16];                // all heads, sum of weights, by lane
  float offsets[kMaxGroup];                                // beta * log2(e) * tau_eff
  float bases[kMaxGroup];                                  // weights are 2^(logit * log2(e) - base)
  float limits[kMaxGroup];                                 // a logit above it renews the base
  float floors[kMaxGroup];                                 // weight of a pruned key; 0: no floor
  float thresholds[kMaxGroup];                             // tau_eff
};

}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

// The heads whose pruned keys keep the floor's weight. A head that pruned no key must go without
// the floor: its sum of e^S~ - floor would cancel against the floor that the merge adds.
uint32_t FloorHeads(const AttentionParams& params, const DecodeGroup& group) {
  const bool floor = group.sequence->attention.uniform_floor && params.gate == Gate::kSilu;
  return floor ? group.pruning_heads : 0;
}

// Reads one segment of a row's list for the G heads of one KV head. The last segment takes the tail
// too.
template <class Elements>
class SegmentReader {
 public:
  SegmentReader(const AttentionParams& params, const DecodeGroup& group, DecodeScratch& scratch)
      : params_(params),
        group_(group),
        scratch_(scratch),
        tile_(params.geometry),
        d_(static_cast<size_t>(tile_.head_dim)),
        b_(static_cast<size_t>(tile_.block_size)),
        key_stride_(static_cast<size_t>(tile_.key_stride)),
        num_heads_(static_cast<size_t>(params.num_query_heads / tile_.num_kv_heads)),
        all_heads_(num_heads_ == 32 ? ~uint32_t{0} : (uint32_t{1} << num_heads_) - 1),
        floor_heads_(FloorHeads(params, group)),
        gated_(params.gate == Gate::kSilu && params.window == 0),
        slope_(params.beta * kLog2E) {}

  void Read(int32_t begin, int32_t end, bool with_tail, float* partial) {
    Start();
    const int32_t full_blocks = group_.num_keys / tile_.block_size;
    const auto tail = static_cast<size_t>(group_.num_keys % tile_.block_size);
    for (int32_t i = begin; i < end; ++i) {
      const int32_t ordinal = group_.ordinal(i);
      int32_t next = ordinal;
      if (i + 1 < end) {
        next = group_.ordinal(i + 1);
      } else if (with_tail && tail > 0) {
        next = full_blocks;
      }
      const uint32_t mask = group_.heads != nullptr ? group_.heads[i] : all_heads_;
      const uint32_t kept = ReadBlock(ordinal, mask, b_, next);
      if (group_.rescued != nullptr) group_.heads[i] = kept;
    }
    if (with_tail && tail > 0) ReadBlock(full_blocks, all_heads_, tail, full_blocks);
    Finish(partial);
  }

 private:
  using Stored = typename Elements::Stored;

  bool HasFloor(size_t head) const { return (floor_heads_ >> head & 1) != 0; }

  void Start() {
    const Floats df;
    const auto column = static_cast<size_t>(group_.kv_head) * num_heads_;
    const float* q = params_.q.row(group_.row) + column * d_;
    const bool windowed = params_.window > 0;
    const float* thresholds = windowed ? nullptr : params_.thresholds.row(group_.row) + column;
    for (size_t h = 0; h < num_heads_; ++h) {
      float* query = scratch_.queries + h * kTileRowStride;
      for (size_t i = 0; i < d_; i += hn::Lanes(df)) {
        const Vector scaled =
            hn::Mul(hn::LoadU(df, q + h * d_ + i), hn::Set(df, params_.softmax_scale));
        hn::Store(scaled, df, query + i);
      }
      scratch_.thresholds[h] =
          thresholds != nullptr ? thresholds[h] - group_.sequence->attention.offset : 0.0f;
      scratch_.offsets[h] = slope_ * scratch_.thresholds[h];
      // With a floor, pruned keys take part in the maximum; their logit is 0.
      SetBase(h, HasFloor(h) ? 0.0f : -std::numeric_limits<float>::infinity());
      std::fill_n(scratch_.sums + h * kTileRowStride, d_, 0.0f);
      std::fill_n(scratch_.totals + h * 16, 16, 0.0f);
    }
  }

  void SetBase(size_t h, float max) {
    scratch_.bases[h] = max * kLog2E;
    scratch_.limits[h] = max + kMaxSlack;
    scratch_.floors[h] = HasFloor(h) ? Exp2Scalar(-scratch_.bases[h]) : 0.0f;
  }

  HWY_NOINLINE void RenewBase(size_t h, Vector max) {
    const float before = scratch_.bases[h];
    SetBase(h, hn::GetLane(hn::MaxOfLanes(Floats(), max)));
    const float factor = Exp2Scalar(before - scratch_.bases[h]);
    Scale(scratch_.sums + h * kTileRowStride, d_, factor);
    Scale(scratch_.totals + h * 16, hn::MaxLanes(Floats()), factor);
  }

  // Packs the queries of the heads in `mask` and returns their address.
  const float* Admit(uint32_t mask) {
    if (mask != mask_) {
      mask_ = mask;
      num_admitted_ = 0;
      for (uint32_t rest = mask; rest != 0; rest &= rest - 1) {
        const auto h = static_cast<size_t>(std::countr_zero(rest));
        admitted_[num_admitted_] = static_cast<uint8_t>(h);
        if (mask != all_heads_) {
          std::copy_n(scratch_.queries + h * kTileRowStride, d_,
                      scratch_.admitted + num_admitted_ * kTileRowStride);
        }
        ++num_admitted_;
      }
    }
    return mask == all_heads_ ? scratch_.queries : scratch_.admitted;
  }

  // Returns the heads whose softmax sees the block.
  uint32_t ReadBlock(int32_t ordinal, uint32_t mask, size_t valid, int32_t next_ordinal) {
    const float* queries = Admit(mask);
    const auto table = group_.table;
    const std::byte* k = tile_.K(params_.kv, table[static_cast<size_t>(ordinal)], group_.kv_head);
    const std::byte* next =
        tile_.K(params_.kv, table[static_cast<size_t>(next_ordinal)], group_.kv_head);
    const ptrdiff_t distance = (next - k) / static_cast<ptrdiff_t>(sizeof(Stored));
    const auto* keys = reinterpret_cast<const Stored*>(k);
    const auto* values = reinterpret_cast<const Stored*>(k + tile_.tile_bytes);
    const size_t padded = (valid + 15) / 16 * 16;
    const bool last = ordinal == (group_.num_keys - 1) / tile_.block_size;
    const size_t own =
        last ? static_cast<size_t>((group_.num_keys - 1) % tile_.block_size) : kTileRowStride;
    // Keys of the block that lie before the window.
    const auto before =
        static_cast<size_t>(std::max(0, group_.first_key - ordinal * static_cast<int32_t>(b_)));

    Multiply<Elements, false>(queries, Tile<Elements>{keys, key_stride_, d_, padded, distance},
                              num_admitted_, kIdentityRows.data(), scratch_.weights);
    const uint8_t* heads = admitted_;
    size_t num_heads = num_admitted_;
    if (group_.rescued != nullptr && valid == b_) {
      const uint32_t kept = Confirm(ordinal, mask, own);
      if (kept == 0) return 0;
      if (kept != mask) {
        num_heads = KeepRows(kept);
        heads = kept_;
        mask = kept;
      }
    }
    if (gated_) SetTempered(static_cast<size_t>(ordinal), valid, own, num_heads, 0.0f);
    for (size_t r = 0; r < num_heads; ++r) {
      const Floats df;
      const size_t h = heads[r];
      std::fill_n(scratch_.weights + r * kTileRowStride, before,
                  -std::numeric_limits<float>::infinity());
      const Vector max = GateBlock(scratch_.weights + r * kTileRowStride, padded, valid, own,
                                   gated_, {slope_, scratch_.offsets[h]});
      const bool renew = !hn::AllFalse(df, hn::Gt(max, hn::Set(df, scratch_.limits[h])));
      if (HWY_UNLIKELY(renew)) RenewBase(h, max);
    }
    for (size_t r = 0; r < num_heads; ++r) {
      const size_t h = heads[r];
      // Tokens of the tail get no floor: the merge adds the total of full blocks only.
      const float floor = valid == b_ ? scratch_.floors[h] : 0.0f;
      WeighLogits(scratch_.weights + r * kTileRowStride, padded, scratch_.bases[h], floor,
                  scratch_.totals + h * 16);
      // A padding token got the weight 2^-infinity - floor; this takes it back.
      if (valid < padded) scratch_.totals[h * 16] += floor * static_cast<float>(padded - valid);
    }
    Multiply<Elements, true>(scratch_.weights + before,
                             Tile<Elements>{values + before * d_, d_, valid - before, d_, distance},
                             num_heads, heads, scratch_.sums);
    return mask;
  }

  // Gives the tempered keys of the first `num_heads` rows of scores one value. A score of 0 is a
  // gated logit of 0, whatever the threshold.
  void SetTempered(size_t ordinal, size_t valid, size_t own, size_t num_heads, float value) const {
    ForEachTempered(group_.sequence->tempered, ordinal * b_, valid, own, [&](size_t token) {
      for (size_t r = 0; r < num_heads; ++r) scratch_.weights[r * kTileRowStride + token] = value;
    });
  }

  // The heads in `mask` whose softmax sees full block `ordinal`, now that it is scored.
  uint32_t Confirm(int32_t ordinal, uint32_t mask, size_t own) const {
    const AttentionOptions& options = group_.sequence->attention;
    const int32_t full_blocks = group_.num_keys / tile_.block_size;
    if (IsAlwaysRead(options, ordinal, full_blocks)) return mask;
    uint32_t kept = mask & ~group_.pruning_heads;
    for (size_t h = 0; h < num_heads_; ++h) {
      if (group_.rescued[h] == ordinal) kept |= mask & uint32_t{1} << h;
    }
    if (options.shared_reads && kept != 0) return mask;
    if (params_.gate == Gate::kSilu) {
      SetTempered(static_cast<size_t>(ordinal), b_, own, num_admitted_,
                  -std::numeric_limits<float>::infinity());
    }
    for (size_t r = 0; r < num_admitted_; ++r) {
      const size_t h = admitted_[r];
      if (!Reaches(scratch_.weights + r * kTileRowStride, scratch_.thresholds[h])) continue;
      if (options.shared_reads) return mask;
      kept |= uint32_t{1} << h;
    }
    return kept;
  }

  // Whether the largest of a block's scores reaches the threshold; with relative thresholds, the
  // log-sum-exp of them.
  bool Reaches(const float* scores, float threshold) const {
    const Floats df;
    const Vector none = hn::Set(df, -std::numeric_limits<float>::infinity());
    const auto score = [&](size_t i) HWY_ATTR {
      return hn::IfThenElse(hn::FirstN(df, b_ - i), hn::Load(df, scores + i), none);
    };
    Vector largest = none;
    for (size_t i = 0; i < b_; i += hn::Lanes(df)) largest = hn::Max(largest, score(i));
    const float max = hn::GetLane(hn::MaxOfLanes(df, largest));
    if (max >= threshold) return true;
    // All keys together hold at most b times the largest.
    if (!group_.sequence->attention.relative ||
        !(max + std::log(static_cast<float>(b_)) >= threshold)) {
      return false;
    }
    const Vector base = hn::Set(df, max * kLog2E);
    Vector sum = hn::Zero(df);
    for (size_t i = 0; i < b_; i += hn::Lanes(df)) {
      sum = hn::Add(sum, Exp2(df, hn::MulSub(score(i), hn::Set(df, kLog2E), base)));
    }
    return max + std::log(hn::GetLane(hn::SumOfLanes(df, sum))) >= threshold;
  }

  // Moves the rows of scores of the heads in `kept` to the front and returns their number.
  size_t KeepRows(uint32_t kept) {
    size_t count = 0;
    for (size_t r = 0; r < num_admitted_; ++r) {
      const uint8_t h = admitted_[r];
      if ((kept >> h & 1) == 0) continue;
      if (count != r) {
        std::copy_n(scratch_.weights + r * kTileRowStride, kTileRowStride,
                    scratch_.weights + count * kTileRowStride);
      }
      kept_[count++] = h;
    }
    return count;
  }

  void Finish(float* partial) {
    const Floats df;
    for (size_t h = 0; h < num_heads_; ++h) {
      partial[h] = scratch_.bases[h];
      partial[num_heads_ + h] =
          hn::GetLane(hn::SumOfLanes(df, hn::Load(df, scratch_.totals + h * 16)));
      std::copy_n(scratch_.sums + h * kTileRowStride, d_, partial + 2 * num_heads_ + h * d_);
    }
  }

  const AttentionParams& params_;
  const DecodeGroup& group_;
  DecodeScratch& scratch_;
  const KvTile tile_;
  const size_t d_;
  const size_t b_;
  const size_t key_stride_;
  const size_t num_heads_;
  const uint32_t all_heads_;
  const uint32_t floor_heads_;
  const bool gated_;
  const float slope_;
  uint32_t mask_ = 0;
  size_t num_admitted_ = 0;
  uint8_t admitted_[kMaxGroup];
  uint8_t kept_[kMaxGroup];  // of a block that not all of them keep
};

// Adds the partial results in the order of segments, then the floor and the head's sink, then
// divides.
void MergeSegments(const AttentionParams& params, const DecodeGroup& group, const float* partials) {
  const Floats df;
  const KvTile tile(params.geometry);
  const auto d = static_cast<size_t>(tile.head_dim);
  const auto heads = static_cast<size_t>(params.num_query_heads / tile.num_kv_heads);
  const int32_t full_blocks = group.num_keys / tile.block_size;
  const uint32_t floor_heads = FloorHeads(params, group);
  const float* v_total =
      floor_heads != 0
          ? tile.VTotal(tile.Record(params.kv, group.table[static_cast<size_t>(full_blocks) - 1],
                                    group.kv_head))
          : nullptr;
  float* out = params.out.row(group.row) + static_cast<size_t>(group.kv_head) * heads * d;
  const size_t stride = PartialFloats(heads, d);
  for (size_t h = 0; h < heads; ++h, out += d) {
    float base = -std::numeric_limits<float>::infinity();
    for (int32_t s = 0; s < group.num_tasks; ++s) {
      base = std::max(base, partials[static_cast<size_t>(s) * stride + h]);
    }
    std::fill_n(out, d, 0.0f);
    if (base == -std::numeric_limits<float>::infinity()) continue;  // no key at all
    float sink = -std::numeric_limits<float>::infinity();
    if (params.sinks != nullptr) {
      sink = params.sinks[static_cast<size_t>(group.kv_head) * heads + h] * kLog2E;
      base = std::max(base, sink);
    }
    float total = 0.0f;
    const auto add = [&](const float* sums, float weight, float factor) {
      total += weight * factor;
      for (size_t i = 0; i < d; ++i) out[i] += sums[i] * factor;
    };
    for (int32_t s = 0; s < group.num_tasks; ++s) {
      const float* partial = partials + static_cast<size_t>(s) * stride;
      add(partial + 2 * heads + h * d, partial[heads + h], Exp2Scalar(partial[h] - base));
    }
    if ((floor_heads >> h & 1) != 0) {
      add(v_total, static_cast<float>(full_blocks * tile.block_size), Exp2Scalar(-base));
    }
    if (params.sinks != nullptr) total += Exp2Scalar(sink - base);
    for (size_t i = 0; i < d; i += hn::Lanes(df)) {
      hn::StoreU(hn::Div(hn::LoadU(df, out + i), hn::Set(df, total)), df, out + i);
    }
  }
}

void ReadSegment(const AttentionParams& params, const DecodeGroup& group, int32_t segment,
                 DecodeScratch& scratch, float* partial) {
  const int32_t length = kSegmentTokens / params.geometry.block_size;
  const int32_t begin = segment * length;
  const int32_t end = std::min(group.count, begin + length);
  const bool last = segment == group.num_tasks - 1;
  switch (params.geometry.dtype) {
    case DType::kFloat16:
      SegmentReader<Float16Elements>(params, group, scratch).Read(begin, end, last, partial);
      return;
    case DType::kBFloat16:
      SegmentReader<BFloat16Elements>(params, group, scratch).Read(begin, end, last, partial);
      return;
    default:
      SegmentReader<Float32Elements>(params, group, scratch).Read(begin, end, last, partial);
  }
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(ReadSegment);
HWY_EXPORT(MergeSegments);

void DecodeAttention(const Context& context, const AttentionParams& params) {
  static thread_local DecodePlan plan;
  plan.Build(context.batch, params);
  if (plan.tasks.empty()) return;
  const size_t partial_floats =
      PartialFloats(static_cast<size_t>(params.num_query_heads / params.geometry.num_kv_heads),
                    static_cast<size_t>(params.geometry.head_dim));
  auto* partials = plan.partials.Reserve<float>(plan.tasks.size() * partial_floats);
  auto* scratch =
      plan.scratch.Reserve<DecodeScratch>(static_cast<size_t>(context.workers.num_threads()));
  const auto read = HWY_DYNAMIC_DISPATCH(ReadSegment);
  const auto merge = HWY_DYNAMIC_DISPATCH(MergeSegments);
  DecodePlan& shared = plan;
  context.workers.Run(static_cast<int64_t>(shared.tasks.size()), [&](int64_t index, int thread) {
    const DecodeTask& task = shared.tasks[static_cast<size_t>(index)];
    const auto g = static_cast<size_t>(task.group);
    const DecodeGroup& group = shared.groups[g];
    float* const of_group = partials + static_cast<size_t>(group.first_partial) * partial_floats;
    read(params, group, task.segment, scratch[thread],
         of_group + static_cast<size_t>(task.segment) * partial_floats);
    if (shared.unfinished[g].fetch_sub(1, std::memory_order_acq_rel) == 1) {
      merge(params, group, of_group);
      if (group.rescued != nullptr) CountValues(group, params.geometry.block_size);
    }
  });
}

}  // namespace eta::cpu
#endif
