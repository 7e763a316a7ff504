// MeasureShadow tells, for chosen decode rows and per query head, what reading less cost: the share
// of full attention's softmax on the keys that the head attended to (mass [rows, HQ]), and the
// distance of its output from full attention's (error [rows, HQ]; eta-semantics.md, "What is
// counted").
//
// A task is one row and KV head. It reads every key and value once for all heads of the group, as
// full attention does. The output that a head got is the one that DecodeAttention wrote.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/calibration/shadow.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <cmath>
#include <limits>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/calibration/whole_row-inl.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/simd/block_softmax-inl.h"
#include "kernels/cpu/tempered.h"

#ifndef ETA_KERNELS_CPU_SHADOW_ONCE_
#define ETA_KERNELS_CPU_SHADOW_ONCE_
namespace eta::cpu {

// One chosen row and KV head.
struct ShadowTask {
  const SequenceRows* sequence;
  int32_t row;
  int32_t num_keys;  // T
  int32_t kv_head;
  size_t place;  // of the row among the chosen ones
};

// One thread's working memory. Rows are kTileRowStride apart.
struct ShadowScratch {
  alignas(64) float queries[kMaxGroup * kTileRowStride];  // times s
  alignas(64) float weights[kMaxGroup * kTileRowStride];  // scores, then weights
  alignas(64) float sums[kMaxGroup * kTileRowStride];     // sum of weight * V
  alignas(64) float totals[kMaxGroup * 16];               // sum of weights, by lane
  alignas(64) float kept[kMaxGroup * 16];                 // of them those of attended keys
  float bases[kMaxGroup];                                 // weights are 2^(logit * log2(e) - base)
  float limits[kMaxGroup];                                // a logit above it renews the base
};

}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

template <class Elements>
class ShadowRow {
 public:
  ShadowRow(const ShadowParams& params, const ShadowTask& task, ShadowScratch& scratch)
      : params_(params),
        attention_(params.attention),
        task_(task),
        scratch_(scratch),
        row_(attention_, *task.sequence, task.row, task.num_keys, task.kv_head),
        d_(row_.head_dim()),
        num_heads_(row_.num_heads()),
        slope_(attention_.beta * kLog2E) {}

  void Run() {
    Start();
    row_.ForEachBlock(
        [this](size_t ordinal, size_t valid, uint32_t mask) { ReadBlock(ordinal, valid, mask); });
    Finish();
  }

 private:
  void Start() {
    row_.ScaleQueries(scratch_.queries);
    for (size_t h = 0; h < num_heads_; ++h) {
      SetBase(h, -std::numeric_limits<float>::infinity());
      std::fill_n(scratch_.sums + h * kTileRowStride, d_, 0.0f);
      std::fill_n(scratch_.totals + h * 16, 16, 0.0f);
      std::fill_n(scratch_.kept + h * 16, 16, 0.0f);
    }
  }

  void SetBase(size_t h, float max) {
    scratch_.bases[h] = max * kLog2E;
    scratch_.limits[h] = max + kMaxSlack;
  }

  HWY_NOINLINE void RenewBase(size_t h, Vector max) {
    const float before = scratch_.bases[h];
    SetBase(h, hn::GetLane(hn::MaxOfLanes(Floats(), max)));
    const float factor = Exp2Scalar(before - scratch_.bases[h]);
    Scale(scratch_.sums + h * kTileRowStride, d_, factor);
    Scale(scratch_.totals + h * 16, hn::MaxLanes(Floats()), factor);
    Scale(scratch_.kept + h * 16, hn::MaxLanes(Floats()), factor);
  }

  // Bit h of `mask`: head h attended to the block.
  void ReadBlock(size_t ordinal, size_t valid, uint32_t mask) {
    const Floats df;
    const size_t b = row_.block_size();
    const size_t padded = (valid + 15) / 16 * 16;
    const size_t last = static_cast<size_t>(task_.num_keys) - 1;
    const size_t own = last / b == ordinal ? last % b : kTileRowStride;
    const bool gated = attention_.gate == Gate::kSilu;
    row_.Score(ordinal, valid, scratch_.queries, scratch_.weights);
    if (gated) {
      // A score of 0 is a gated logit of 0, whatever the threshold.
      ForEachTempered(task_.sequence->tempered, ordinal * b, valid, own, [&](size_t token) {
        for (size_t h = 0; h < num_heads_; ++h) {
          scratch_.weights[h * kTileRowStride + token] = 0.0f;
        }
      });
    }
    for (size_t h = 0; h < num_heads_; ++h) {
      float* weights = scratch_.weights + h * kTileRowStride;
      const Vector max =
          GateBlock(weights, padded, valid, own, gated, {slope_, slope_ * row_.Threshold(h)});
      if (!hn::AllFalse(df, hn::Gt(max, hn::Set(df, scratch_.limits[h])))) RenewBase(h, max);
      alignas(64) float total[16] = {};
      WeighLogits(weights, padded, scratch_.bases[h], /*floor=*/0.0f, total);
      AddLanes(total, scratch_.totals + h * 16);
      if ((mask >> h & 1) != 0) AddLanes(total, scratch_.kept + h * 16);
    }
    row_.AddValues(ordinal, valid, scratch_.weights, scratch_.sums);
  }

  static HWY_INLINE void AddLanes(const float* from, float* to) {
    const Floats df;
    hn::Store(hn::Add(hn::Load(df, to), hn::Load(df, from)), df, to);
  }

  static HWY_INLINE float Sum(const float* lanes) {
    return hn::GetLane(hn::SumOfLanes(Floats(), hn::Load(Floats(), lanes)));
  }

  void Finish() const {
    const Floats df;
    const size_t first_head = row_.first_head();
    const float* got = attention_.out.row(task_.row) + first_head * d_;
    const size_t to = task_.place * static_cast<size_t>(attention_.num_query_heads) + first_head;
    for (size_t h = 0; h < num_heads_; ++h) {
      float total = Sum(scratch_.totals + h * 16);
      float kept = Sum(scratch_.kept + h * 16);
      float factor = 1.0f;  // of the sums, which are relative to an older base
      if (attention_.sinks != nullptr) {
        const float sink = attention_.sinks[first_head + h] * kLog2E;
        const float base = std::max(scratch_.bases[h], sink);
        factor = Exp2Scalar(scratch_.bases[h] - base);
        total = total * factor + Exp2Scalar(sink - base);
        kept = kept * factor + Exp2Scalar(sink - base);
      }
      Vector distance = hn::Zero(df);
      Vector norm = hn::Zero(df);
      for (size_t i = 0; i < d_; i += hn::Lanes(df)) {
        const Vector sum =
            hn::Mul(hn::Load(df, scratch_.sums + h * kTileRowStride + i), hn::Set(df, factor));
        const Vector full = hn::Div(sum, hn::Set(df, total));
        const Vector difference = hn::Sub(hn::LoadU(df, got + h * d_ + i), full);
        distance = hn::MulAdd(difference, difference, distance);
        norm = hn::MulAdd(full, full, norm);
      }
      const float size = hn::GetLane(hn::SumOfLanes(df, norm));
      params_.mass[to + h] = kept / total;
      params_.error[to + h] =
          size == 0.0f ? 0.0f : std::sqrt(hn::GetLane(hn::SumOfLanes(df, distance)) / size);
    }
  }

  const ShadowParams& params_;
  const AttentionParams& attention_;
  const ShadowTask& task_;
  ShadowScratch& scratch_;
  const WholeRow<Elements> row_;
  const size_t d_;
  const size_t num_heads_;
  const float slope_;
};

void MeasureTask(const ShadowParams& params, const ShadowTask& task, ShadowScratch& scratch) {
  switch (params.attention.geometry.dtype) {
    case DType::kFloat16:
      return ShadowRow<Float16Elements>(params, task, scratch).Run();
    case DType::kBFloat16:
      return ShadowRow<BFloat16Elements>(params, task, scratch).Run();
    default:
      return ShadowRow<Float32Elements>(params, task, scratch).Run();
  }
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(MeasureTask);

void MeasureShadow(const Context& context, const ShadowParams& params) {
  std::vector<ShadowTask> tasks;
  size_t place = 0;
  for (const SequenceRows& sequence : context.batch.sequences) {
    if (sequence.kind != RowKind::kDecode) continue;
    for (int32_t i = 0; i < sequence.num_rows && place < params.rows.size(); ++i) {
      const int32_t row = sequence.row_begin + i;
      if (params.rows[place] != row) continue;
      for (int32_t kv_head = 0; kv_head < params.attention.geometry.num_kv_heads; ++kv_head) {
        tasks.push_back({&sequence, row, sequence.position + i + 1, kv_head, place});
      }
      ++place;
    }
  }
  if (tasks.empty()) return;
  static thread_local Scratch memory;
  auto* scratch = memory.Reserve<ShadowScratch>(static_cast<size_t>(context.workers.num_threads()));
  const auto measure = HWY_DYNAMIC_DISPATCH(MeasureTask);
  context.workers.Run(static_cast<int64_t>(tasks.size()), [&](int64_t index, int thread) {
    measure(params, tasks[static_cast<size_t>(index)], scratch[thread]);
  });
}

}  // namespace eta::cpu
#endif
