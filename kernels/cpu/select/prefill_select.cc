// SelectPrefillBlocks decides which full blocks each row of sparse prefill
// attends to, as SelectBlocks does for a decode row (eta-semantics.md, "Sparse
// prefill"). It leaves a mask per (row, query head), and counts what rows
// attend to and what tiles of rows read.
//
// A task is a tile of rows, at positions 64k .. 64k + 63 of a sequence, and a
// KV head. It screens the tile's rows together (prefill_screen.cc), counts, and
// with shared reads joins the masks of each row's heads.

#include <algorithm>
#include <bit>
#include <numeric>
#include <vector>

#include "kernels/cpu/ops.h"
#include "kernels/cpu/select/select_tile.h"

namespace eta::cpu {
namespace {

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

// Counts what the row's heads attend to, joins their masks if reads are shared,
// and adds the row's blocks to what the tile reads.
void FinishRow(const SelectPrefillParams& params, const SelectTile& tile, int32_t i,
               const RowBlocks& row, std::vector<int32_t>& reads) {
  const int32_t b = params.geometry.block_size;
  const int64_t group = params.num_query_heads / params.geometry.num_kv_heads;
  const int64_t first = int64_t{tile.row(i)} * params.num_query_heads + tile.kv_head * group;
  const int64_t words = params.selection.words;
  const int32_t tail = row.num_keys - row.full_blocks * b;
  uint64_t* const masks = params.selection.admitted + first * words;  // [G, words]
  int32_t* const attended = params.counts.tokens_attended + first;
  std::fill_n(attended, group, tail);
  for (int64_t word = 0; word * 64 < row.full_blocks; ++word) {
    uint64_t any = 0;
    for (int64_t g = 0; g < group; ++g) {
      const uint64_t mask = masks[g * words + word];
      attended[g] += std::popcount(mask) * b;
      any |= mask;
    }
    if (tile.sequence->attention.shared_reads) {
      for (int64_t g = 0; g < group; ++g) masks[g * words + word] = any;
    }
    for (; any != 0; any &= any - 1) {
      reads[static_cast<size_t>(word * 64 + std::countr_zero(any))] = b;
    }
  }
  int32_t& last = reads[static_cast<size_t>(row.full_blocks)];
  last = std::max(last, tail);
}

void SelectTileRows(const SelectPrefillParams& params, const SelectTile& tile,
                    TileScratch& scratch) {
  scratch.rows.clear();
  for (int32_t i = 0; i < tile.num_rows(); ++i) {
    scratch.rows.emplace_back(tile.sequence->attention, tile.num_keys(i),
                              params.geometry.block_size);
    const int64_t group = params.num_query_heads / params.geometry.num_kv_heads;
    const int64_t first = int64_t{tile.row(i)} * params.num_query_heads + tile.kv_head * group;
    std::fill_n(params.selection.admitted + first * params.selection.words,
                group * params.selection.words, uint64_t{0});
  }
  ScreenTile(params, tile, scratch);
  scratch.reads.assign(static_cast<size_t>(scratch.rows.back().full_blocks) + 1, 0);
  for (int32_t i = 0; i < tile.num_rows(); ++i) {
    FinishRow(params, tile, i, scratch.rows[static_cast<size_t>(i)], scratch.reads);
  }
  const int32_t read = std::accumulate(scratch.reads.begin(), scratch.reads.end(), 0);
  for (int32_t* counts : {params.counts.tokens_read, params.counts.values_read}) {
    if (counts == nullptr) continue;
    for (int32_t i = 0; i < tile.num_rows(); ++i) {
      const int64_t at = int64_t{tile.row(i)} * params.geometry.num_kv_heads + tile.kv_head;
      counts[at] = i == 0 ? read : 0;
    }
  }
}

}  // namespace

void SelectPrefillBlocks(const Context& context, const SelectPrefillParams& params) {
  const std::vector<SelectTile> tiles = MakeTiles(context.batch, params.geometry.num_kv_heads);
  context.workers.Run(static_cast<int64_t>(tiles.size()), [&](int64_t index, int) {
    thread_local TileScratch scratch;
    scratch.amx = context.amx && SizeOf(params.geometry.dtype) == 2;
    SelectTileRows(params, tiles[static_cast<size_t>(index)], scratch);
  });
}

}  // namespace eta::cpu
