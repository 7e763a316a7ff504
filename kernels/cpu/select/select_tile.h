// What the parts of SelectPrefillBlocks share: a tile of rows and its working memory.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/batch.h"
#include "kernels/cpu/memory/scratch.h"
#include "kernels/cpu/select/select_group.h"
#include "kernels/params/selection.h"

namespace eta::cpu {

// Rows [begin, end) of a sequence, at positions of one tile of kPrefillTileRows, and a KV head.
// Its queries are ordered by row, then by head.
struct SelectTile {
  const SequenceRows* sequence;
  int32_t kv_head;
  int32_t begin;
  int32_t end;

  int32_t num_rows() const { return end - begin; }
  int32_t row(int32_t i) const { return sequence->row_begin + begin + i; }  // of the step
  int32_t num_keys(int32_t i) const { return sequence->position + begin + i + 1; }
};

// One thread's working memory.
struct TileScratch {
  bool amx = false;  // products of 16-bit keys on AMX tiles
  Scratch floats;
  Scratch tiles;
  std::vector<RowBlocks> rows;  // [rows]
  std::vector<int32_t> reads;   // tokens that the tile reads of each block
};

// prefill_screen.cc: writes the masks of all rows of the tile, with what each head admitted itself
// and what is always read. `scratch.rows` is there. Of rows with relative thresholds it writes the
// thresholds too.
void ScreenTile(const SelectPrefillParams& params, const SelectTile& tile, TileScratch& scratch);

}  // namespace eta::cpu
