// SelectBlocks decides which full blocks each decode row reads. A query head admits a block if the
// bound on its scores, from q [R, HQ * d] and the block's record, reaches tau_eff; with relative
// thresholds if the block's estimated mass does. Some blocks are always read, and an empty head
// rescues its best block. The result is one ascending list of blocks per (row, KV head), with the
// heads of the group that attend to each (eta-semantics.md, "Selection", steps 1 to 5).

#include <algorithm>
#include <span>
#include <vector>

#include "kernels/block_bound.h"
#include "kernels/reference/ops.h"

namespace eta::reference {
namespace {

// The full blocks of a row that one query head admits: of those it need not read, the ones whose
// bound or mass reaches the threshold.
Admission Admit(const std::vector<float>& bounds, float threshold,
                const AttentionOptions& options) {
  const auto n = static_cast<int32_t>(bounds.size());
  Admission admission;
  std::vector<bool>& admitted = admission.blocks;
  admitted.resize(bounds.size());
  for (int32_t j = 0; j < n; ++j) {
    admitted[static_cast<size_t>(j)] = options.admit_all || IsAlwaysRead(options, j, n) ||
                                       bounds[static_cast<size_t>(j)] >= threshold;
  }
  // Rescue: a head that admitted no block of the first chunk admits the one with the largest bound.
  const auto chunk = static_cast<int64_t>(std::min<int64_t>(options.rescue_chunk, n));
  if (chunk > 0 &&
      std::find(admitted.begin(), admitted.begin() + chunk, true) == admitted.begin() + chunk) {
    const auto best = std::max_element(bounds.begin(), bounds.begin() + chunk);
    admission.rescued = static_cast<int32_t>(best - bounds.begin());
    admitted[static_cast<size_t>(admission.rescued)] = true;
  }
  return admission;
}

// The bounds of the row's full blocks for one query head.
std::vector<float> Bounds(const ScreenParams& params, const KvPages& pages, const Row& row,
                          int32_t query_head, const float* q) {
  const float* head_z = row.sequence.head_z;
  const int64_t layer = int64_t{params.layer} * params.num_query_heads;
  const float z = head_z == nullptr ? row.sequence.attention.z : head_z[layer + query_head];
  const int32_t kv_head = query_head / (params.num_query_heads / params.geometry.num_kv_heads);
  const std::span query(q, static_cast<size_t>(params.geometry.head_dim));
  std::vector<float> bounds;
  for (int32_t j = 0; j < row.num_full_blocks(params.geometry.block_size); ++j) {
    const Record record = pages.RecordOf(pages.Block(row.sequence, j), kv_head);
    bounds.push_back(BoundOf(record.View(params.geometry), query, params.softmax_scale).At(z));
  }
  return bounds;
}

// Writes list and counts of one (row, KV head): the union of its query heads' blocks.
void SelectForKvHead(const SelectBlocksParams& params, const KvPages& pages, const Row& row,
                     int32_t kv_head) {
  const int32_t b = params.geometry.block_size;
  const int32_t n = row.num_full_blocks(b);
  const int32_t tail = row.num_keys() - n * b;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const AttentionOptions& options = row.sequence.attention;

  std::vector<uint32_t> heads(static_cast<size_t>(n), 0);
  for (int32_t g = 0; g < group; ++g) {
    const int32_t h = kv_head * group + g;
    const Admission admission =
        AdmitBlocks({params.layer, params.q, params.thresholds, params.num_query_heads,
                     params.geometry, params.softmax_scale, params.sinks},
                    pages, row, h);
    int32_t attended = tail;
    for (size_t j = 0; j < admission.blocks.size(); ++j) {
      if (!admission.blocks[j]) continue;
      heads[j] |= uint32_t{1} << g;
      attended += b;
    }
    const int64_t at = static_cast<int64_t>(row.index) * params.num_query_heads + h;
    params.counts.tokens_attended[at] = attended;
    if (options.confirm) params.selection.rescued[at] = admission.rescued;
  }

  const int64_t list = static_cast<int64_t>(row.index) * params.geometry.num_kv_heads + kv_head;
  uint32_t* blocks_out = params.selection.blocks + list * params.selection.capacity;
  uint32_t* heads_out = params.selection.heads + list * params.selection.capacity;
  const uint32_t all_heads = static_cast<uint32_t>((uint64_t{1} << group) - 1);
  int32_t count = 0;
  for (int32_t j = 0; j < n; ++j) {
    if (heads[static_cast<size_t>(j)] == 0) continue;
    blocks_out[count] = static_cast<uint32_t>(j);
    heads_out[count] = options.shared_reads ? all_heads : heads[static_cast<size_t>(j)];
    ++count;
  }
  params.selection.counts[list] = count;
  params.counts.tokens_read[list] = count * b + tail;
  if (params.counts.values_read != nullptr) params.counts.values_read[list] = count * b + tail;
}

}  // namespace

Admission AdmitBlocks(const ScreenParams& params, const KvPages& pages, const Row& row,
                      int32_t query_head) {
  const AttentionOptions& options = row.sequence.attention;
  const int32_t d = params.geometry.head_dim;
  const int32_t kv_head = query_head / (params.num_query_heads / params.geometry.num_kv_heads);
  const float* q = params.q.row(row.index) + static_cast<int64_t>(query_head) * d;
  float& threshold = params.thresholds.row(row.index)[query_head];
  if (!options.relative) {
    return Admit(Bounds(params, pages, row, query_head, q), threshold - options.offset, options);
  }
  const float* sink = params.sinks != nullptr ? params.sinks + query_head : nullptr;
  const EstimatedMass mass = EstimateMass(pages, row, kv_head, q, params.softmax_scale, sink);
  threshold = mass.row + options.relative_c;
  return Admit(mass.blocks, threshold - options.offset, options);
}

void SelectBlocks(const BatchView& batch, const SelectBlocksParams& params) {
  const KvPages pages(params.geometry, params.kv);
  const int32_t kv_heads = params.geometry.num_kv_heads;
  ForEachRow(batch, [&](const Row& row) {
    for (int32_t h = 0; h < kv_heads; ++h) {
      if (row.sequence.kind == RowKind::kDecode) {
        SelectForKvHead(params, pages, row, h);
      } else {
        params.selection.counts[static_cast<int64_t>(row.index) * kv_heads + h] = 0;
      }
    }
  });
}

}  // namespace eta::reference
