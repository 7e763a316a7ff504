// SelectBlocks decides which full blocks each decode row reads. A query head admits a block if the
// bound on its scores, from q [R, HQ * d] and the block's record, reaches tau_eff; with relative
// thresholds if the block's estimated mass does. Some blocks are always read, and an empty head
// rescues its best block. The result is one ascending list of blocks per (row, KV head), with the
// heads of the group that attend to each (eta-semantics.md, "Selection", steps 1 to 5).
//
// A task screens up to kScreenBlocks blocks of one row and KV head (screen.cc, estimated_mass.cc).
// The last task of a row and KV head to end admits, rescues and compacts the list.

#include <algorithm>
#include <array>
#include <atomic>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/ops.h"
#include "kernels/cpu/select/select_group.h"

namespace eta::cpu {
namespace {

struct SelectTask {
  int32_t group;
  int32_t range;
};

// The work of one step. The object is kept between calls for its memory.
struct SelectPlan {
  std::vector<SelectGroup> groups;
  std::vector<SelectTask> tasks;
  std::vector<ScreenResult> results;                   // [tasks]
  std::unique_ptr<std::atomic<int32_t>[]> unfinished;  // [groups], tasks that have not ended
  size_t capacity = 0;
  size_t num_masses = 0;
  Scratch masses;  // [num_masses], l_j of rows with relative thresholds
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
  SelectGroup group = {{options, num_keys, params.geometry.block_size}};
  const int32_t n = group.full_blocks;
  group.sequence = &sequence;
  group.row = row;
  group.kv_head = kv_head;
  group.relative = IsRelative(sequence, params.geometry);
  group.blocks = params.selection.blocks + at;
  group.heads = params.selection.heads + at;
  if (options.confirm) {
    const int32_t num_heads = params.num_query_heads / params.geometry.num_kv_heads;
    group.rescued = params.selection.rescued + int64_t{row} * params.num_query_heads +
                    int64_t{kv_head} * num_heads;
    std::fill_n(group.rescued, num_heads, -1);
  }
  group.first_task = static_cast<int32_t>(tasks.size());
  // If every block is read in any case, nothing is screened.
  const bool screens = group.relative || !group.reads_all();
  group.num_tasks = screens ? std::max(1, (n + kScreenBlocks - 1) / kScreenBlocks) : 1;
  if (group.relative) {
    const auto heads = static_cast<size_t>(params.num_query_heads / params.geometry.num_kv_heads);
    group.mass_stride = static_cast<size_t>(n + 15) / 16 * 16;
    num_masses += heads * group.mass_stride;
  }
  for (int32_t range = 0; range < group.num_tasks; ++range) {
    tasks.push_back({static_cast<int32_t>(groups.size()), range});
  }
  groups.push_back(group);
}

void SelectPlan::Build(const BatchView& batch, const SelectBlocksParams& params) {
  groups.clear();
  tasks.clear();
  num_masses = 0;
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
  auto* next = masses.Reserve<float>(num_masses);
  for (SelectGroup& group : groups) {
    group.masses = next;
    next += static_cast<size_t>(params.num_query_heads / kv_heads) * group.mass_stride;
  }
  if (groups.size() > capacity) {
    capacity = groups.size();
    unfinished = std::make_unique<std::atomic<int32_t>[]>(capacity);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    unfinished[g].store(groups[g].num_tasks, std::memory_order_relaxed);
  }
}

// What a task writes of its blocks: with absolute thresholds masks already, with relative ones the
// masses that thresholds are made of.
void Judge(const SelectBlocksParams& params, const SelectGroup& group, int32_t range,
           SelectScratch& scratch, ScreenResult& result) {
  if (group.relative) {
    EstimateRange(params, group, range, scratch, result);
  } else if (!group.reads_all()) {
    ScreenRange(params, group, range, scratch, result);
  }
}

// Completes the masks of all full blocks, from what all tasks wrote. Without a choice there are
// none.
void Admit(const SelectBlocksParams& params, const SelectGroup& group,
           std::span<const ScreenResult> results, size_t num_heads) {
  if (group.relative) {
    AdmitByMass(params, group, results);
  } else if (!group.reads_all()) {
    Rescue(group, results, num_heads);
  }
}

// Lists every full block with all heads, like CompactList().
int32_t ListAll(const SelectGroup& group, size_t num_heads, int32_t* attended) {
  for (int32_t i = 0; i < group.full_blocks; ++i) group.blocks[i] = static_cast<uint32_t>(i);
  std::fill_n(group.heads, group.full_blocks, AllHeads(num_heads));
  std::fill_n(attended, num_heads, group.full_blocks);
  return group.full_blocks;
}

int32_t List(const SelectGroup& group, size_t num_heads, int32_t* attended) {
  return group.reads_all() ? ListAll(group, num_heads, attended)
                           : CompactList(group, num_heads, attended);
}

void WriteCounts(const SelectBlocksParams& params, const SelectGroup& group, size_t num_heads,
                 int32_t count, const int32_t* blocks_of_head) {
  const int32_t b = params.geometry.block_size;
  const int32_t tail = group.num_keys - group.full_blocks * b;
  const int64_t list =
      static_cast<int64_t>(group.row) * params.geometry.num_kv_heads + group.kv_head;
  params.selection.counts[list] = count;
  params.counts.tokens_read[list] = count * b + tail;
  if (params.counts.values_read != nullptr) params.counts.values_read[list] = count * b + tail;
  int32_t* attended = params.counts.tokens_attended + list * static_cast<int64_t>(num_heads);
  for (size_t h = 0; h < num_heads; ++h) attended[h] = blocks_of_head[h] * b + tail;
}

}  // namespace

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
    AdmitRescued(group, h, best.ordinal);
  }
}

void SelectBlocks(const Context& context, const SelectBlocksParams& params) {
  static thread_local SelectPlan plan;
  plan.Build(context.batch, params);
  if (plan.tasks.empty()) return;
  auto* scratch =
      plan.scratch.Reserve<SelectScratch>(static_cast<size_t>(context.workers.num_threads()));
  const auto num_heads = static_cast<size_t>(params.num_query_heads / params.geometry.num_kv_heads);
  SelectPlan& shared = plan;
  context.workers.Run(static_cast<int64_t>(shared.tasks.size()), [&](int64_t index, int thread) {
    const SelectTask& task = shared.tasks[static_cast<size_t>(index)];
    const auto g = static_cast<size_t>(task.group);
    const SelectGroup& group = shared.groups[g];
    ScreenResult& result = shared.results[static_cast<size_t>(index)];
    Judge(params, group, task.range, scratch[thread], result);
    if (shared.unfinished[g].fetch_sub(1, std::memory_order_acq_rel) != 1) return;
    const auto results =
        std::span(shared.results)
            .subspan(static_cast<size_t>(group.first_task), static_cast<size_t>(group.num_tasks));
    Admit(params, group, results, num_heads);
    std::array<int32_t, kMaxGroup> blocks_of_head;
    const int32_t count = List(group, num_heads, blocks_of_head.data());
    WriteCounts(params, group, num_heads, count, blocks_of_head.data());
  });
}

}  // namespace eta::cpu
