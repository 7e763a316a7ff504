// SelectBlocks decides which full blocks each decode row reads. A query head admits a block if the
// bound on its scores, from q [R, HQ * d] and the block's record, reaches tau_eff. The last blocks
// are pinned, and an empty head rescues its best block. The result is one ascending list of blocks
// per (row, KV head), with the heads of the group that admitted each (eta-semantics.md,
// "Selection", steps 1 to 4).
//
// A task screens up to kScreenBlocks blocks of one row and KV head. mu and sigma of a block come
// from memory once for all heads of the group. The last task of a row and KV head to end rescues,
// pins and compacts the list.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/block_select.cc"
#include "hwy/foreach_target.h"
// The target list must come before any header that includes Highway.
#include <algorithm>
#include <array>
#include <atomic>
#include <cmath>
#include <limits>
#include <memory>
#include <vector>

#include "hwy/cache_control.h"
#include "hwy/highway.h"
#include "kernels/cpu/kv_tile.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/scratch.h"
#include "kernels/cpu/simd/kv_elements-inl.h"
#include "kernels/cpu/simd/transpose_sum-inl.h"

#ifndef ETA_KERNELS_CPU_BLOCK_SELECT_ONCE_
#define ETA_KERNELS_CPU_BLOCK_SELECT_ONCE_
namespace eta::cpu {

inline constexpr size_t kMaxScreenDim = 256;
// Blocks that one task screens.
inline constexpr int32_t kScreenBlocks = 512;

// A head's best block within one task's range, among the first `rescue_chunk` blocks.
struct BestBlock {
  float bound = -std::numeric_limits<float>::infinity();
  int32_t ordinal = -1;
};

// The result of a task, beside the head masks.
struct ScreenResult {
  uint32_t admitted_early = 0;  // heads that admitted one of the first rescue_chunk blocks
  std::array<BestBlock, kMaxGroup> best;
};

// One decode row and KV head. Screening writes the mask of every full block to heads[ordinal].
// Compaction then turns blocks and heads into the list.
struct SelectGroup {
  const SequenceRows* sequence;
  int32_t row;
  int32_t num_keys;  // T
  int32_t kv_head;
  int32_t full_blocks;   // N
  int32_t first_pinned;  // first ordinal that every head admits
  int32_t rescue_end;    // the rescue looks at the ordinals before this one
  uint32_t* blocks;
  uint32_t* heads;
  int32_t first_task;
  int32_t num_tasks;
};

struct SelectTask {
  int32_t group;
  int32_t range;
};

// One thread's working memory.
struct SelectScratch {
  alignas(64) float queries[kMaxGroup * kMaxScreenDim];
  alignas(64) float squares[kMaxGroup * kMaxScreenDim];
  alignas(64) float products[2 * 4 * 16 * 16];    // [mean or variance of a head][record][lane]
  alignas(64) float best_bounds[kMaxGroup * 16];  // [head][lane]
  alignas(64) int32_t best_ordinals[kMaxGroup * 16];
  float norms[kMaxGroup];
  float z[kMaxGroup];
};

inline uint32_t AllHeads(size_t count) {
  return count == 32 ? ~uint32_t{0} : (uint32_t{1} << count) - 1;
}

}  // namespace eta::cpu
#endif

HWY_BEFORE_NAMESPACE();
namespace eta::cpu::HWY_NAMESPACE {

namespace hn = hwy::HWY_NAMESPACE;

using Floats = hn::ScalableTag<float>;
using Vector = hn::Vec<Floats>;
constexpr size_t kLanes = hn::MaxLanes(Floats());
// Heads whose sums over two records stay in registers together.
constexpr size_t kHeadsAtOnce = HWY_MAX_BYTES == 64 ? 4 : 2;

// Computes the sums of q * mu and of q^2 * sigma^2 for two records and kHeads heads, still spread
// over lanes.
template <size_t kHeads>
HWY_INLINE void MultiplyRecords(const uint16_t* HWY_RESTRICT record0,
                                const uint16_t* HWY_RESTRICT record1,
                                const float* HWY_RESTRICT queries,
                                const float* HWY_RESTRICT squares, size_t d,
                                float* HWY_RESTRICT products) {
  const Floats df;
  Vector means[kHeads][2];
  Vector variances[kHeads][2];
#pragma GCC unroll 8
  for (size_t h = 0; h < kHeads; ++h) {
    means[h][0] = means[h][1] = hn::Zero(df);
    variances[h][0] = variances[h][1] = hn::Zero(df);
  }
  for (size_t i = 0; i < d; i += kLanes) {
    const Vector mu0 = LoadElements(Float16Elements(), df, record0 + i);
    const Vector mu1 = LoadElements(Float16Elements(), df, record1 + i);
    const Vector sigma0 = LoadElements(Float16Elements(), df, record0 + d + i);
    const Vector sigma1 = LoadElements(Float16Elements(), df, record1 + d + i);
    const Vector variance0 = hn::Mul(sigma0, sigma0);
    const Vector variance1 = hn::Mul(sigma1, sigma1);
#pragma GCC unroll 8
    for (size_t h = 0; h < kHeads; ++h) {
      const Vector q = hn::Load(df, queries + h * kMaxScreenDim + i);
      const Vector q2 = hn::Load(df, squares + h * kMaxScreenDim + i);
      means[h][0] = hn::MulAdd(q, mu0, means[h][0]);
      means[h][1] = hn::MulAdd(q, mu1, means[h][1]);
      variances[h][0] = hn::MulAdd(q2, variance0, variances[h][0]);
      variances[h][1] = hn::MulAdd(q2, variance1, variances[h][1]);
    }
  }
  constexpr size_t kTable = kLanes * kLanes;
#pragma GCC unroll 8
  for (size_t h = 0; h < kHeads; ++h) {
    hn::Store(means[h][0], df, products + 2 * h * kTable);
    hn::Store(means[h][1], df, products + 2 * h * kTable + kLanes);
    hn::Store(variances[h][0], df, products + (2 * h + 1) * kTable);
    hn::Store(variances[h][1], df, products + (2 * h + 1) * kTable + kLanes);
  }
}

class Screen {
 public:
  Screen(const SelectBlocksParams& params, const SelectGroup& group, SelectScratch& scratch)
      : params_(params),
        group_(group),
        scratch_(scratch),
        tile_(params.geometry),
        d_(static_cast<size_t>(tile_.head_dim)),
        num_heads_(static_cast<size_t>(params.num_query_heads / tile_.num_kv_heads)) {}

  // Writes the masks of the full blocks begin .. end - 1.
  void Run(int32_t begin, int32_t end, ScreenResult& result) {
    Start();
    for (int32_t first = begin; first < end; first += static_cast<int32_t>(kLanes)) {
      Group(first, std::min(end - first, static_cast<int32_t>(kLanes)), end);
    }
    Finish(result);
  }

 private:
  void Start() {
    const Floats df;
    const hn::RebindToSigned<Floats> di;
    const auto column = static_cast<size_t>(group_.kv_head) * num_heads_ * d_;
    const float* q = params_.q.row(group_.row) + column;
    const float* head_z = group_.sequence->head_z;
    if (head_z != nullptr) {
      head_z += static_cast<size_t>(params_.layer) * static_cast<size_t>(params_.num_query_heads) +
                static_cast<size_t>(group_.kv_head) * num_heads_;
    }
    for (size_t h = 0; h < num_heads_; ++h) {
      Vector norm = hn::Zero(df);
      for (size_t i = 0; i < d_; i += kLanes) {
        const Vector query = hn::LoadU(df, q + h * d_ + i);
        const Vector square = hn::Mul(query, query);
        hn::Store(query, df, scratch_.queries + h * kMaxScreenDim + i);
        hn::Store(square, df, scratch_.squares + h * kMaxScreenDim + i);
        norm = hn::Add(norm, square);
      }
      scratch_.norms[h] = std::sqrt(hn::GetLane(hn::SumOfLanes(df, norm)));
      scratch_.z[h] = head_z != nullptr ? head_z[h] : group_.sequence->attention.z;
      hn::Store(hn::Set(df, -std::numeric_limits<float>::infinity()), df,
                scratch_.best_bounds + h * kLanes);
      hn::Store(hn::Set(di, -1), di, scratch_.best_ordinals + h * kLanes);
    }
  }

  std::byte* Record(int32_t ordinal) const {
    return tile_.Record(params_.kv, group_.sequence->block_table[static_cast<size_t>(ordinal)],
                        group_.kv_head);
  }

  // Screens up to one record per lane. Lanes from `count` on repeat the last record and are not
  // used.
  void Group(int32_t first, int32_t count, int32_t end) {
    const Floats df;
    const hn::RebindToUnsigned<Floats> du;
    alignas(64) float max_norms[kLanes];
    const std::byte* records[kLanes];
    for (size_t r = 0; r < kLanes; ++r) {
      std::byte* record = Record(first + std::min(static_cast<int32_t>(r), count - 1));
      records[r] = record;
      max_norms[r] = *tile_.MaxNorm(record);
    }
    const int32_t next = first + static_cast<int32_t>(kLanes);
    auto bits = hn::Zero(du);
    for (size_t head = 0; head < num_heads_; head += kHeadsAtOnce) {
      const size_t heads = std::min(kHeadsAtOnce, num_heads_ - head);
      for (size_t r = 0; r < kLanes; r += 2) {
        if (head == 0) Prefetch(next + static_cast<int32_t>(r), end);
        Multiply(records[r], records[r + 1], head, heads, scratch_.products + r * kLanes);
      }
      for (size_t h = 0; h < heads; ++h) {
        bits = hn::Or(bits, Admit(head + h, h, first, hn::Load(df, max_norms)));
      }
    }
    StoreMasks(first, count, bits);
  }

  void Prefetch(int32_t ordinal, int32_t end) const {
    for (int32_t i = ordinal; i < std::min(ordinal + 2, end); ++i) {
      const std::byte* record = Record(i);
      for (size_t at = 0; at < 4 * d_; at += 64) hwy::Prefetch(record + at);
      hwy::Prefetch(record + 8 * d_);
    }
  }

  HWY_INLINE void Multiply(const std::byte* record0, const std::byte* record1, size_t head,
                           size_t heads, float* products) const {
    const auto* r0 = reinterpret_cast<const uint16_t*>(record0);
    const auto* r1 = reinterpret_cast<const uint16_t*>(record1);
    const float* q = scratch_.queries + head * kMaxScreenDim;
    const float* q2 = scratch_.squares + head * kMaxScreenDim;
    switch (heads) {
      case 1:
        return MultiplyRecords<1>(r0, r1, q, q2, d_, products);
      case 2:
        return MultiplyRecords<2>(r0, r1, q, q2, d_, products);
#if HWY_MAX_BYTES == 64
      case 3:
        return MultiplyRecords<3>(r0, r1, q, q2, d_, products);
      case 4:
        return MultiplyRecords<4>(r0, r1, q, q2, d_, products);
#endif
    }
  }

  // Compares the bound with the threshold, one record per lane. Bit `head` of a lane is set if it
  // admits.
  HWY_INLINE hn::Vec<hn::RebindToUnsigned<Floats>> Admit(size_t head, size_t slot, int32_t first,
                                                         Vector max_norms) {
    const Floats df;
    const hn::RebindToUnsigned<Floats> du;
    constexpr size_t kTable = kLanes * kLanes;
    const AttentionOptions& options = group_.sequence->attention;
    const Vector mean = TransposeSum(scratch_.products + 2 * slot * kTable);
    const Vector variance = TransposeSum(scratch_.products + (2 * slot + 1) * kTable);
    const Vector spread = hn::MulAdd(hn::Set(df, scratch_.z[head]), hn::Sqrt(variance), mean);
    const Vector ceiling = hn::Mul(hn::Set(df, scratch_.norms[head]), max_norms);
    const Vector bound = hn::Mul(hn::Set(df, params_.softmax_scale), hn::Min(spread, ceiling));
    if (first < group_.rescue_end) KeepBest(head, first, bound);
    const auto column = static_cast<size_t>(group_.kv_head) * num_heads_ + head;
    const float threshold = params_.thresholds.row(group_.row)[column] - options.offset;
    const auto admitted = hn::Ge(bound, hn::Set(df, threshold));
    return hn::IfThenElseZero(hn::RebindMask(du, admitted), hn::Set(du, uint32_t{1} << head));
  }

  HWY_INLINE void KeepBest(size_t head, int32_t first, Vector bound) {
    const Floats df;
    const hn::RebindToSigned<Floats> di;
    float* bounds = scratch_.best_bounds + head * kLanes;
    int32_t* ordinals = scratch_.best_ordinals + head * kLanes;
    const auto ordinal = hn::Iota(di, first);
    const auto best = hn::Load(df, bounds);
    const auto held = hn::Load(di, ordinals);
    // On a tie the first of a lane's ordinals is kept.
    const auto better =
        hn::Or(hn::RebindMask(di, hn::Gt(bound, best)), hn::Eq(held, hn::Set(di, -1)));
    const auto wins = hn::And(better, hn::Lt(ordinal, hn::Set(di, group_.rescue_end)));
    hn::Store(hn::IfThenElse(hn::RebindMask(df, wins), bound, best), df, bounds);
    hn::Store(hn::IfThenElse(wins, ordinal, held), di, ordinals);
  }

  void StoreMasks(int32_t first, int32_t count, hn::Vec<hn::RebindToUnsigned<Floats>> bits) {
    const hn::RebindToUnsigned<Floats> du;
    const hn::RebindToSigned<Floats> di;
    const auto ordinal = hn::Iota(di, first);
    const auto pinned = hn::RebindMask(du, hn::Gt(ordinal, hn::Set(di, group_.first_pinned - 1)));
    bits = hn::IfThenElse(pinned, hn::Set(du, AllHeads(num_heads_)), bits);
    alignas(64) uint32_t lanes[kLanes];
    hn::Store(bits, du, lanes);
    std::copy_n(lanes, count, group_.heads + first);
    for (int32_t i = first; i < std::min(first + count, group_.rescue_end); ++i) {
      admitted_early_ |= lanes[i - first];
    }
  }

  void Finish(ScreenResult& result) const {
    result.admitted_early = admitted_early_;
    for (size_t h = 0; h < num_heads_; ++h) {
      BestBlock best;
      for (size_t lane = h * kLanes; lane < (h + 1) * kLanes; ++lane) {
        const BestBlock candidate{scratch_.best_bounds[lane], scratch_.best_ordinals[lane]};
        if (candidate.ordinal < 0) continue;
        if (best.ordinal < 0 || candidate.bound > best.bound ||
            (candidate.bound == best.bound && candidate.ordinal < best.ordinal)) {
          best = candidate;
        }
      }
      result.best[h] = best;
    }
  }

  const SelectBlocksParams& params_;
  const SelectGroup& group_;
  SelectScratch& scratch_;
  const KvTile tile_;
  const size_t d_;
  const size_t num_heads_;
  uint32_t admitted_early_ = 0;
};

void ScreenRange(const SelectBlocksParams& params, const SelectGroup& group, int32_t range,
                 SelectScratch& scratch, ScreenResult& result) {
  const int32_t begin = range * kScreenBlocks;
  Screen(params, group, scratch)
      .Run(begin, std::min(begin + kScreenBlocks, group.full_blocks), result);
}

// Turns the masks per ordinal into an ascending list. Returns the list's length; `attended` gets
// the number of blocks of each head.
int32_t CompactList(const SelectGroup& group, size_t num_heads, int32_t* attended) {
  const hn::ScalableTag<uint32_t> du;
  const auto lanes = static_cast<int32_t>(hn::Lanes(du));
  int32_t count = 0;
  int32_t i = 0;
  for (; i + lanes <= group.full_blocks; i += lanes) {
    const auto masks = hn::LoadU(du, group.heads + i);
    const auto listed = hn::Ne(masks, hn::Zero(du));
    hn::CompressBlendedStore(hn::Iota(du, static_cast<uint32_t>(i)), listed, du,
                             group.blocks + count);
    count += static_cast<int32_t>(hn::CompressBlendedStore(masks, listed, du, group.heads + count));
  }
  for (; i < group.full_blocks; ++i) {
    const uint32_t mask = group.heads[i];
    if (mask == 0) continue;
    group.blocks[count] = static_cast<uint32_t>(i);
    group.heads[count++] = mask;
  }
  alignas(64) uint32_t totals[kMaxGroup + 16];
  for (size_t head = 0; head < num_heads; head += hn::Lanes(du)) {
    const auto shift = hn::Iota(du, static_cast<uint32_t>(head));
    auto total = hn::Zero(du);
    for (int32_t n = 0; n < count; ++n) {
      total = hn::Add(total, hn::And(hn::Shr(hn::Set(du, group.heads[n]), shift), hn::Set(du, 1)));
    }
    hn::StoreU(total, du, totals + head);
  }
  for (size_t h = 0; h < num_heads; ++h) attended[h] = static_cast<int32_t>(totals[h]);
  return count;
}

}  // namespace eta::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace eta::cpu {

HWY_EXPORT(ScreenRange);
HWY_EXPORT(CompactList);

namespace {

// The work of one step. The object is kept between calls for its memory.
struct SelectPlan {
  std::vector<SelectGroup> groups;
  std::vector<SelectTask> tasks;
  std::vector<ScreenResult> results;                   // [tasks]
  std::unique_ptr<std::atomic<int32_t>[]> unfinished;  // [groups], tasks that have not ended
  size_t capacity = 0;
  Scratch scratch;

  void Build(const BatchView& batch, const SelectBlocksParams& params);
  void Add(const SequenceRows& sequence, int32_t row, int32_t num_keys, int32_t kv_head,
           const SelectBlocksParams& params);
};

void SelectPlan::Add(const SequenceRows& sequence, int32_t row, int32_t num_keys, int32_t kv_head,
                     const SelectBlocksParams& params) {
  const AttentionOptions& options = sequence.attention;
  const int64_t at = (static_cast<int64_t>(row) * params.geometry.num_kv_heads + kv_head) *
                     params.selection.capacity;
  const int32_t full_blocks = num_keys / params.geometry.block_size;
  const int32_t pinned =
      options.admit_all ? full_blocks : std::clamp(options.pinned_blocks, 0, full_blocks);
  // If every block is pinned, nothing is screened.
  const int32_t ranges =
      pinned == full_blocks ? 1 : (full_blocks + kScreenBlocks - 1) / kScreenBlocks;
  const auto group = static_cast<int32_t>(groups.size());
  groups.push_back({&sequence, row, num_keys, kv_head, full_blocks, full_blocks - pinned,
                    std::clamp(options.rescue_chunk, 0, full_blocks), params.selection.blocks + at,
                    params.selection.heads + at, static_cast<int32_t>(tasks.size()), ranges});
  for (int32_t range = 0; range < ranges; ++range) tasks.push_back({group, range});
}

void SelectPlan::Build(const BatchView& batch, const SelectBlocksParams& params) {
  groups.clear();
  tasks.clear();
  const int32_t kv_heads = params.geometry.num_kv_heads;
  for (const SequenceRows& sequence : batch.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t row = sequence.row_begin + i;
      for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        if (sequence.kind == RowKind::kDecode) {
          Add(sequence, row, sequence.position + i + 1, kv_head, params);
        } else {
          params.selection.counts[static_cast<int64_t>(row) * kv_heads + kv_head] = 0;
        }
      }
    }
  }
  results.resize(tasks.size());
  if (groups.size() > capacity) {
    capacity = groups.size();
    unfinished = std::make_unique<std::atomic<int32_t>[]>(capacity);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    unfinished[g].store(groups[g].num_tasks, std::memory_order_relaxed);
  }
}

// Makes each head that admitted none of the first `rescue_chunk` blocks admit the best of them.
void Rescue(const SelectGroup& group, std::span<const ScreenResult> results, size_t num_heads) {
  if (group.rescue_end == 0) return;
  uint32_t admitted = 0;
  for (const ScreenResult& result : results) admitted |= result.admitted_early;
  for (size_t h = 0; h < num_heads; ++h) {
    if ((admitted >> h & 1) != 0) continue;
    BestBlock best;
    for (const ScreenResult& result : results) {
      const BestBlock& candidate = result.best[h];
      if (candidate.ordinal < 0) continue;
      if (best.ordinal < 0 || candidate.bound > best.bound) best = candidate;
    }
    group.heads[best.ordinal] |= uint32_t{1} << h;
  }
}

void WriteCounts(const SelectBlocksParams& params, const SelectGroup& group, size_t num_heads,
                 int32_t count, const int32_t* blocks_of_head) {
  const int32_t b = params.geometry.block_size;
  const int32_t tail = group.num_keys - group.full_blocks * b;
  const int64_t list =
      static_cast<int64_t>(group.row) * params.geometry.num_kv_heads + group.kv_head;
  params.selection.counts[list] = count;
  params.counts.tokens_read[list] = count * b + tail;
  int32_t* attended = params.counts.tokens_attended + list * static_cast<int64_t>(num_heads);
  for (size_t h = 0; h < num_heads; ++h) attended[h] = blocks_of_head[h] * b + tail;
}

}  // namespace

void SelectBlocks(const Context& context, const SelectBlocksParams& params) {
  static thread_local SelectPlan plan;
  plan.Build(context.batch, params);
  if (plan.tasks.empty()) return;
  auto* scratch =
      plan.scratch.Reserve<SelectScratch>(static_cast<size_t>(context.workers.num_threads()));
  const auto screen = HWY_DYNAMIC_DISPATCH(ScreenRange);
  const auto compact = HWY_DYNAMIC_DISPATCH(CompactList);
  const auto num_heads = static_cast<size_t>(params.num_query_heads / params.geometry.num_kv_heads);
  SelectPlan& shared = plan;
  context.workers.Run(static_cast<int64_t>(shared.tasks.size()), [&](int64_t index, int thread) {
    const SelectTask& task = shared.tasks[static_cast<size_t>(index)];
    const auto g = static_cast<size_t>(task.group);
    const SelectGroup& group = shared.groups[g];
    std::array<int32_t, kMaxGroup> blocks_of_head;
    if (group.first_pinned == 0) {
      for (int32_t i = 0; i < group.full_blocks; ++i) {
        group.blocks[i] = static_cast<uint32_t>(i);
        group.heads[i] = AllHeads(num_heads);
      }
      blocks_of_head.fill(group.full_blocks);
      WriteCounts(params, group, num_heads, group.full_blocks, blocks_of_head.data());
      return;
    }
    screen(params, group, task.range, scratch[thread], shared.results[static_cast<size_t>(index)]);
    if (shared.unfinished[g].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    Rescue(
        group,
        std::span(shared.results)
            .subspan(static_cast<size_t>(group.first_task), static_cast<size_t>(group.num_tasks)),
        num_heads);
    const int32_t count = compact(group, num_heads, blocks_of_head.data());
    WriteCounts(params, group, num_heads, count, blocks_of_head.data());
  });
}

}  // namespace eta::cpu
#endif
