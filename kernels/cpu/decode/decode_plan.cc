#include "kernels/cpu/decode/decode_plan.h"

#include <algorithm>

namespace eta::cpu {
namespace {

uint32_t PruningHeads(const uint32_t* heads, int32_t count, int32_t full_blocks) {
  if (count < full_blocks) return ~uint32_t{0};
  uint32_t admitted_all = ~uint32_t{0};
  for (int32_t i = 0; i < count; ++i) admitted_all &= heads[i];
  return ~admitted_all;
}

// The window of a row, whose blocks need no list.
void TakeWindow(const AttentionParams& params, DecodeGroup& group) {
  const int32_t b = params.geometry.block_size;
  group.first_key = WindowBegin(group.num_keys - 1, params.window);
  group.first_block = group.first_key / b;
  group.count = group.num_keys / b - group.first_block;
}

void TakeList(const AttentionParams& params, DecodeGroup& group) {
  const int32_t kv_heads = params.geometry.num_kv_heads;
  const int64_t list = static_cast<int64_t>(group.row) * kv_heads + group.kv_head;
  const int64_t at = list * params.selection.capacity;
  const AttentionOptions& options = group.sequence->attention;
  group.count = params.selection.counts[list];
  group.blocks = params.selection.blocks + at;
  group.heads = params.selection.heads + at;
  group.pruning_heads =
      PruningHeads(group.heads, group.count, group.num_keys / params.geometry.block_size);
  if (!options.confirm || options.admit_all) return;
  group.rescued = params.selection.rescued + list * (params.num_query_heads / kv_heads);
  group.values_read = params.values_read + list;
}

}  // namespace

void CountValues(const DecodeGroup& group, int32_t block_size) {
  const auto kept = std::count_if(group.heads, group.heads + group.count,
                                  [](uint32_t mask) { return mask != 0; });
  *group.values_read = static_cast<int32_t>(kept) * block_size + group.num_keys % block_size;
}

// Rows of one sequence read much the same blocks, so the same parts of their lists come one after
// the other: what one row has read is in the cache for the next.
void DecodePlan::AddTasks(size_t first_group, int32_t kv_heads) {
  const size_t heads = static_cast<size_t>(kv_heads);
  for (size_t kv_head = 0; kv_head < heads; ++kv_head) {
    int32_t left = 1;
    for (int32_t segment = 0; left > 0; ++segment) {
      left = 0;
      for (size_t g = first_group + kv_head; g < groups.size(); g += heads) {
        if (segment < groups[g].num_tasks) tasks.push_back({static_cast<int32_t>(g), segment});
        left = std::max(left, groups[g].num_tasks - segment - 1);
      }
    }
  }
}

void DecodePlan::Build(const BatchView& batch, const AttentionParams& params) {
  groups.clear();
  tasks.clear();
  int32_t num_partials = 0;
  const int32_t kv_heads = params.geometry.num_kv_heads;
  const int32_t length = kSegmentTokens / params.geometry.block_size;
  for (const SequenceRows& sequence : batch.sequences) {
    if (sequence.kind != RowKind::kDecode) continue;
    const size_t first_group = groups.size();
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      for (int32_t kv_head = 0; kv_head < kv_heads; ++kv_head) {
        DecodeGroup group{};
        group.sequence = &sequence;
        group.row = sequence.row_begin + i;
        group.num_keys = sequence.position + i + 1;
        group.kv_head = kv_head;
        group.table = sequence.table(params.kv.table);
        params.window > 0 ? TakeWindow(params, group) : TakeList(params, group);
        group.first_partial = num_partials;
        group.num_tasks = std::max(1, (group.count + length - 1) / length);
        num_partials += group.num_tasks;
        groups.push_back(group);
      }
    }
    AddTasks(first_group, kv_heads);
  }
  if (groups.size() > capacity) {
    capacity = groups.size();
    unfinished = std::make_unique<std::atomic<int32_t>[]>(capacity);
  }
  for (size_t g = 0; g < groups.size(); ++g) {
    unfinished[g].store(groups[g].num_tasks, std::memory_order_relaxed);
  }
}

}  // namespace eta::cpu
