// SelectPrefillBlocks decides which full blocks each row of sparse prefill attends to, as
// SelectBlocks does for a decode row (eta-semantics.md, "Sparse prefill"). It leaves a mask per
// (row, query head), and counts what rows attend to and what tiles of rows read.
//
// A task is a tile of rows, at positions 64k .. 64k + 63 of a sequence, and a KV head.

#include <algorithm>
#include <array>
#include <numeric>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/select/select_group.h"

namespace eta::cpu {
namespace {

// Rows [begin, end) of a sequence.
struct SelectTile {
  const SequenceRows* sequence;
  int32_t kv_head;
  int32_t begin;
  int32_t end;
};

// One thread's working memory.
struct TileScratch {
  SelectScratch screen;
  std::vector<ScreenResult> results;  // of one row's ranges
  std::vector<uint32_t> heads;        // of one row [N]
  std::vector<float> masses;          // of one row [G, N]
  std::vector<int32_t> reads;         // tokens that the tile reads of each block
};

std::vector<SelectTile> MakeTiles(const BatchView& batch, int32_t num_kv_heads) {
  std::vector<SelectTile> tiles;
  for (const SequenceRows& sequence : batch.sequences) {
    if (!IsSparsePrefill(sequence)) continue;
    for (int32_t begin = 0; begin < sequence.num_rows;) {
      const int32_t left = kPrefillTileRows - (sequence.position + begin) % kPrefillTileRows;
      const int32_t end = std::min(sequence.num_rows, begin + left);
      for (int32_t head = 0; head < num_kv_heads; ++head) {
        tiles.push_back({&sequence, head, begin, end});
      }
      begin = end;
    }
  }
  return tiles;
}

void SelectRow(const SelectBlocksParams& params, SelectGroup& group, size_t num_heads,
               TileScratch& scratch) {
  const int32_t n = group.full_blocks;
  group.mass_stride = static_cast<size_t>(n + 15) / 16 * 16;
  scratch.heads.resize(static_cast<size_t>(n) + 16);
  scratch.masses.resize(num_heads * group.mass_stride + 16);
  group.heads = scratch.heads.data();
  group.masses = scratch.masses.data();
  group.num_tasks = std::max(1, (n + kScreenBlocks - 1) / kScreenBlocks);
  scratch.results.resize(static_cast<size_t>(group.num_tasks));
  for (int32_t range = 0; range < group.num_tasks; ++range) {
    ScreenResult& result = scratch.results[static_cast<size_t>(range)];
    if (group.relative) {
      EstimateRange(params, group, range, scratch.screen, result);
    } else if (!group.reads_all()) {
      ScreenRange(params, group, range, scratch.screen, result);
    }
  }
  if (group.relative) AdmitByMass(params, group, scratch.results);
  if (group.reads_all()) {
    std::fill_n(group.heads, n, AllHeads(num_heads));
  } else if (!group.relative) {
    Rescue(group, scratch.results, num_heads);
  }
}

// Masks and tokens attended of one row, from the heads that admitted each of its blocks.
void WriteRow(const SelectPrefillParams& params, const SelectGroup& group, size_t num_heads,
              std::vector<int32_t>& reads) {
  const int32_t b = params.geometry.block_size;
  const int32_t tail = group.num_keys - group.full_blocks * b;
  const int64_t first = int64_t{group.row} * params.num_query_heads +
                        int64_t{group.kv_head} * static_cast<int64_t>(num_heads);
  const int64_t words = params.selection.words;
  uint64_t* masks = params.selection.admitted + first * words;
  int32_t* attended = params.counts.tokens_attended + first;
  std::fill_n(masks, static_cast<int64_t>(num_heads) * words, uint64_t{0});
  std::fill_n(attended, num_heads, tail);
  for (int32_t j = 0; j < group.full_blocks; ++j) {
    const uint32_t heads = group.heads[j];
    if (heads == 0) continue;
    reads[static_cast<size_t>(j)] = b;
    for (size_t h = 0; h < num_heads; ++h) {
      const bool own = (heads >> h & 1) != 0;
      if (own) attended[h] += b;
      if (own || group.sequence->attention.shared_reads) {
        masks[static_cast<int64_t>(h) * words + j / 64] |= uint64_t{1} << (j % 64);
      }
    }
  }
  int32_t& last = reads[static_cast<size_t>(group.full_blocks)];
  last = std::max(last, tail);
}

void SelectTileRows(const SelectPrefillParams& params, const SelectTile& tile,
                    TileScratch& scratch) {
  const SequenceRows& sequence = *tile.sequence;
  const auto num_heads = static_cast<size_t>(params.num_query_heads / params.geometry.num_kv_heads);
  const SelectBlocksParams screened{.layer = params.layer,
                                    .q = params.q,
                                    .thresholds = params.thresholds,
                                    .num_query_heads = params.num_query_heads,
                                    .geometry = params.geometry,
                                    .kv = params.kv,
                                    .softmax_scale = params.softmax_scale,
                                    .selection = {},
                                    .counts = {}};
  const int32_t last_blocks = (sequence.position + tile.end) / params.geometry.block_size;
  scratch.reads.assign(static_cast<size_t>(last_blocks) + 1, 0);
  for (int32_t i = tile.begin; i < tile.end; ++i) {
    SelectGroup group = {
        {sequence.attention, sequence.position + i + 1, params.geometry.block_size}};
    group.sequence = &sequence;
    group.row = sequence.row_begin + i;
    group.kv_head = tile.kv_head;
    group.relative = IsRelative(sequence, params.geometry);
    SelectRow(screened, group, num_heads, scratch);
    WriteRow(params, group, num_heads, scratch.reads);
  }
  const int32_t read = std::accumulate(scratch.reads.begin(), scratch.reads.end(), 0);
  for (int32_t* counts : {params.counts.tokens_read, params.counts.values_read}) {
    if (counts == nullptr) continue;
    for (int32_t i = tile.begin; i < tile.end; ++i) {
      const int64_t row = sequence.row_begin + i;
      counts[row * params.geometry.num_kv_heads + tile.kv_head] = i == tile.begin ? read : 0;
    }
  }
}

}  // namespace

void SelectPrefillBlocks(const Context& context, const SelectPrefillParams& params) {
  const std::vector<SelectTile> tiles = MakeTiles(context.batch, params.geometry.num_kv_heads);
  context.workers.Run(static_cast<int64_t>(tiles.size()), [&](int64_t index, int) {
    thread_local TileScratch scratch;
    SelectTileRows(params, tiles[static_cast<size_t>(index)], scratch);
  });
}

}  // namespace eta::cpu
