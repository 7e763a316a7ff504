#include "calibration/evaluation/tables/comparisons/block_misses.h"

#include <algorithm>
#include <optional>
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

BlockMisses::BlockMisses(std::shared_ptr<Backend> backend, bool gated, int32_t stride)
    : ForwardingBackend(std::move(backend)), gated_(gated), stride_(stride) {}

void BlockMisses::Plan(const BatchView& batch) {
  batch_ = batch;
  ForwardingBackend::Plan(batch);
}

void BlockMisses::AppendKv(const AppendKvParams& params) {
  ForwardingBackend::AppendKv(params);
  const auto [layer, added] = layers_.try_emplace(params.kv.tiles, params.geometry);
  layer->second.Keep(batch_, params, *this, {.keys = true}, workers_);
}

void BlockMisses::DecodeAttention(const AttentionParams& params) {
  ForwardingBackend::DecodeAttention(params);
  const KeptLayer& layer = layers_.at(params.kv.tiles);
  std::optional<Attended> attended;
  for (const SequenceRows& sequence : batch_.sequences) {
    const AttentionOptions& options = sequence.attention;
    if (sequence.kind != RowKind::kDecode || options.admit_all) continue;
    if (!gated_ && !options.relative) continue;
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t position = sequence.position + i;
      if (position % stride_ != 0) continue;
      if (!attended) attended.emplace(params, layer, *this, batch_.num_rows());
      Count(*attended, sequence, sequence.row_begin + i, position);
    }
  }
}

void BlockMisses::Count(const Attended& of, const SequenceRows& sequence, int32_t row,
                        int32_t position) {
  const AttentionParams& params = of.params;
  const int32_t kv_heads = params.geometry.num_kv_heads;
  const int32_t group = params.num_query_heads / kv_heads;
  const auto d = static_cast<size_t>(params.geometry.head_dim);
  const AttentionOptions& options = sequence.attention;
  for (int32_t h = 0; h < params.num_query_heads; ++h) {
    const int32_t kv_head = h / group;
    const RowBlocks blocks = {of.layer, sequence.block_table, kv_head, position + 1};
    const int32_t full = blocks.num_full();
    const std::vector<uint32_t> heads = of.HeadsByBlock(int64_t{row} * kv_heads + kv_head, full);
    const auto head = static_cast<size_t>(h);
    const std::span<const float> q = of.q.row(row).subspan(head * d, d);
    const float threshold = of.thresholds.row(row)[head] - options.offset;
    for (int32_t j = 0; j * blocks.block_size() < blocks.num_keys; ++j) {
      const bool attended = j >= full || ((heads[static_cast<size_t>(j)] >> (h % group)) & 1) != 0;
      const std::vector<float> scores = BlockScores(blocks.keys(j), q, params.softmax_scale);
      const auto reach =
          std::ranges::count_if(scores, [threshold](float score) { return score >= threshold; });
      counts_.keys += reach;
      counts_.missed_keys += attended ? 0 : reach;
      if (j >= full || IsAlwaysRead(options, j, full)) continue;
      const bool wanted = options.relative
                              ? LogMass(blocks.keys(j), q, params.softmax_scale) >= threshold
                              : reach > 0;
      counts_.blocks += wanted ? 1 : 0;
      counts_.missed_blocks += wanted && !attended ? 1 : 0;
    }
  }
}

}  // namespace eta
