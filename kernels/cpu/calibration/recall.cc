// CountRecall counts, per query head, the keys of the decode rows with S >= tau_eff (above [HQ]),
// and those of them that stand in admitted blocks or the tail (above_admitted [HQ]). Their quotient
// is the recall of the selection (eta-semantics.md, "What is counted").
//
// It scores every key of every row, so it costs as much as full attention's first product. It is
// for evaluation only.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/calibration/recall.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <array>
#include <vector>

#include "hwy/highway.h"
#include "kernels/cpu/calibration/whole_row-inl.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/ops.h"

#ifndef ETA_KERNELS_CPU_RECALL_ONCE_
#define ETA_KERNELS_CPU_RECALL_ONCE_
namespace eta::cpu {

// One decode row and KV head.
struct RecallTask {
  const SequenceRows* sequence;
  int32_t row;
  int32_t num_keys;  // T
  int32_t kv_head;
  std::array<int64_t, kMaxGroup> above{};
  std::array<int64_t, kMaxGroup> above_admitted{};
};

// One thread's working memory.
struct RecallScratch {
  alignas(64) float queries[kMaxGroup * kTileRowStride];
  alignas(64) float scores[kMaxGroup * kTileRowStride];
};

}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

HWY_INLINE int64_t CountAbove(const float* scores, size_t count, float threshold) {
  const hn::ScalableTag<float> df;
  int64_t above = 0;
  for (size_t i = 0; i < count; i += hn::Lanes(df)) {
    const auto valid = hn::FirstN(df, count - i);
    const auto hit = hn::Ge(hn::Load(df, scores + i), hn::Set(df, threshold));
    above += static_cast<int64_t>(hn::CountTrue(df, hn::And(valid, hit)));
  }
  return above;
}

template <class Elements>
void CountRow(const AttentionParams& params, RecallTask& task, RecallScratch& scratch) {
  const WholeRow<Elements> row(params, *task.sequence, task.row, task.num_keys, task.kv_head);
  row.ScaleQueries(scratch.queries);
  row.ForEachBlock([&](size_t ordinal, size_t valid, uint32_t mask) {
    row.Score(ordinal, valid, scratch.queries, scratch.scores);
    for (size_t h = 0; h < row.num_heads(); ++h) {
      const int64_t above =
          CountAbove(scratch.scores + h * kTileRowStride, valid, row.Threshold(h));
      task.above[h] += above;
      if ((mask >> h & 1) != 0) task.above_admitted[h] += above;
    }
  });
}

void CountTask(const AttentionParams& params, RecallTask& task, RecallScratch& scratch) {
  switch (params.geometry.dtype) {
    case DType::kFloat16:
      return CountRow<Float16Elements>(params, task, scratch);
    case DType::kBFloat16:
      return CountRow<BFloat16Elements>(params, task, scratch);
    default:
      return CountRow<Float32Elements>(params, task, scratch);
  }
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(CountTask);

void CountRecall(const Context& context, const RecallParams& params) {
  const AttentionParams& attention = params.attention;
  const int32_t kv_heads = attention.geometry.num_kv_heads;
  std::vector<RecallTask> tasks;
  for (const SequenceRows& sequence : context.batch.sequences) {
    if (sequence.kind != RowKind::kDecode) continue;
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        tasks.push_back(
            {&sequence, sequence.row_begin + i, sequence.position + i + 1, kv_head, {}, {}});
      }
    }
  }
  Scratch memory;
  auto* scratch = memory.Reserve<RecallScratch>(static_cast<size_t>(context.workers.num_threads()));
  const auto count = HWY_DYNAMIC_DISPATCH(CountTask);
  context.workers.Run(static_cast<int64_t>(tasks.size()), [&](int64_t index, int thread) {
    count(attention, tasks[static_cast<size_t>(index)], scratch[thread]);
  });
  const int32_t group = attention.num_query_heads / kv_heads;
  for (const RecallTask& task : tasks) {
    for (int32_t h = 0; h < group; ++h) {
      params.above[task.kv_head * group + h] += task.above[static_cast<size_t>(h)];
      params.above_admitted[task.kv_head * group + h] +=
          task.above_admitted[static_cast<size_t>(h)];
    }
  }
}

}  // namespace eta::cpu
#endif
