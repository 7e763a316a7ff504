#include "calibration/evaluation/tables/comparisons/block_misses.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "calibration/evaluation/rivals/block_scores.h"
#include "calibration/evaluation/rivals/host_rows.h"
#include "calibration/evaluation/rivals/rival.h"

namespace eta {

// Copied after DecodeAttention, since nothing may be copied between it and the choice of blocks.
struct BlockMisses::Attended {
  Attended(const AttentionParams& attention, const KeptLayer& kept, Backend& backend,
           int64_t num_rows)
      : params(attention),
        layer(kept),
        q(backend, attention.q, num_rows),
        thresholds(backend, attention.thresholds, num_rows) {
    const int64_t lists = num_rows * attention.geometry.num_kv_heads;
    const BlockSelection& selection = attention.selection;
    counts = HostCopy(backend, selection.counts, lists);
    blocks = HostCopy(backend, selection.blocks, lists * selection.capacity);
    heads = HostCopy(backend, selection.heads, lists * selection.capacity);
  }

  // The heads that attend to each full block of a row's KV head.
  std::vector<uint32_t> HeadsByBlock(int64_t list, int32_t full) const {
    std::vector<uint32_t> by_block(static_cast<size_t>(full));
    for (int32_t i = 0; i < counts[static_cast<size_t>(list)]; ++i) {
      const auto at = static_cast<size_t>(list * params.selection.capacity + i);
      by_block[blocks[at]] = heads[at];
    }
    return by_block;
  }

  const AttentionParams& params;
  const KeptLayer& layer;
  HostRows q;
  HostRows thresholds;
  std::vector<int32_t> counts;
  std::vector<uint32_t> blocks;
  std::vector<uint32_t> heads;
};

BlockMisses::BlockMisses(std::shared_ptr<Backend> backend, bool gated, int32_t stride,
                         int num_threads)
    : ForwardingBackend(std::move(backend)),
      gated_(gated),
      stride_(stride),
      workers_(num_threads) {}

void BlockMisses::Plan(const BatchView& batch) {
  batch_ = batch;
  ForwardingBackend::Plan(batch);
}

// In the place of a cache another one may stand, of another shape.
void BlockMisses::AppendKv(const AppendKvParams& params) {
  ForwardingBackend::AppendKv(params);
  const auto [layer, added] = layers_.try_emplace(params.kv.tiles, params.geometry);
  if (layer->second.geometry() != params.geometry) layer->second = KeptLayer(params.geometry);
  layer->second.Keep(batch_, params, *this, {.keys = true}, workers_);
}

void BlockMisses::DecodeAttention(const AttentionParams& params) {
  ForwardingBackend::DecodeAttention(params);
  if (counts_ == nullptr || params.window > 0) return;
  std::vector<Row> rows;
  for (const SequenceRows& sequence : batch_.sequences) {
    const AttentionOptions& options = sequence.attention;
    if (sequence.kind != RowKind::kDecode || options.admit_all) continue;
    if (!gated_ && !options.relative) continue;
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t position = sequence.position + i;
      if (position % stride_ == 0) rows.push_back({sequence, sequence.row_begin + i, position});
    }
  }
  if (rows.empty()) return;
  const Attended attended(params, layers_.at(params.kv.tiles), *this, batch_.num_rows());
  const int32_t heads = params.num_query_heads;
  std::vector<MissCounts> counts(rows.size() * static_cast<size_t>(heads));
  workers_.Run(std::ssize(counts), [&](int64_t task, int) {
    counts[static_cast<size_t>(task)] = Count(attended, rows[static_cast<size_t>(task / heads)],
                                              static_cast<int32_t>(task % heads));
  });
  for (const MissCounts& one : counts) counts_->Add(one);
}

MissCounts BlockMisses::Count(const Attended& of, const Row& row, int32_t query_head) const {
  const AttentionParams& params = of.params;
  const int32_t kv_heads = params.geometry.num_kv_heads;
  const int32_t group = params.num_query_heads / kv_heads;
  const int32_t kv_head = query_head / group;
  const auto d = static_cast<size_t>(params.geometry.head_dim);
  const AttentionOptions& options = row.sequence.attention;
  const RowBlocks blocks = {of.layer, row.sequence.table(params.kv.table), kv_head,
                            row.position + 1};
  const int32_t full = blocks.num_full();
  const std::vector<uint32_t> heads =
      of.HeadsByBlock(int64_t{row.index} * kv_heads + kv_head, full);
  const auto head = static_cast<size_t>(query_head);
  const std::span<const float> q = of.q.row(row.index).subspan(head * d, d);
  const float threshold = of.thresholds.row(row.index)[head] - options.offset;
  MissCounts counts;
  for (int32_t j = 0; j * blocks.block_size() < blocks.num_keys; ++j) {
    const bool attended =
        j >= full || ((heads[static_cast<size_t>(j)] >> (query_head % group)) & 1) != 0;
    const std::vector<float> scores = BlockScores(blocks.keys(j), q, params.softmax_scale);
    const auto reach =
        std::ranges::count_if(scores, [threshold](float score) { return score >= threshold; });
    counts.keys += reach;
    counts.missed_keys += attended ? 0 : reach;
    if (j >= full || IsAlwaysRead(options, j, full)) continue;
    const bool wanted = options.relative
                            ? LogMass(blocks.keys(j), q, params.softmax_scale) >= threshold
                            : reach > 0;
    counts.blocks += wanted ? 1 : 0;
    counts.missed_blocks += wanted && !attended ? 1 : 0;
  }
  return counts;
}

}  // namespace eta
