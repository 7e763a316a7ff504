// ListBlocks packs the blocks that the host chose into lists and counts. The CPU backend takes this
// form too, since the op is for evaluation.

#include <algorithm>

#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// The list of one (row, KV head) with T keys, and its counts.
void ListForKvHead(const ListBlocksParams& params, const AttentionOptions& options, int32_t row,
                   int32_t num_keys, int32_t kv_head) {
  const int32_t b = params.geometry.block_size;
  const int32_t full = num_keys / b;
  const int32_t tail = num_keys - full * b;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const auto all = static_cast<uint32_t>((uint64_t{1} << group) - 1);
  const int64_t list = int64_t{row} * params.geometry.num_kv_heads + kv_head;
  const uint32_t* admitted = params.heads + list * params.selection.capacity;
  uint32_t* blocks = params.selection.blocks + list * params.selection.capacity;
  uint32_t* heads = params.selection.heads + list * params.selection.capacity;
  int32_t* attended = params.counts.tokens_attended + int64_t{row} * params.num_query_heads +
                      int64_t{kv_head} * group;
  std::fill_n(attended, group, tail);
  int32_t count = 0;
  for (int32_t j = 0; j < full; ++j) {
    const uint32_t mask = options.admit_all ? all : admitted[j] & all;
    if (mask == 0) continue;
    for (int32_t g = 0; g < group; ++g) attended[g] += (mask >> g & 1) != 0 ? b : 0;
    blocks[count] = static_cast<uint32_t>(j);
    heads[count] = options.shared_reads ? all : mask;
    ++count;
  }
  params.selection.counts[list] = count;
  params.counts.tokens_read[list] = count * b + tail;
  if (params.counts.values_read != nullptr) params.counts.values_read[list] = count * b + tail;
  if (!options.confirm) return;
  const int64_t first_head = int64_t{row} * params.num_query_heads + int64_t{kv_head} * group;
  std::fill_n(params.selection.rescued + first_head, group, -1);
}

}  // namespace

void ListBlocks(const BatchView& batch, const ListBlocksParams& params) {
  const int32_t kv_heads = params.geometry.num_kv_heads;
  for (const SequenceRows& sequence : batch.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t row = sequence.row_begin + i;
      for (int32_t h = 0; h < kv_heads; ++h) {
        if (sequence.kind == RowKind::kDecode) {
          ListForKvHead(params, sequence.attention, row, sequence.position + i + 1, h);
        } else {
          params.selection.counts[int64_t{row} * kv_heads + h] = 0;
        }
      }
    }
  }
}

}  // namespace eta::reference
