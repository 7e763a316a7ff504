// The parameters of the ops that select blocks and attend to them, and what one hands to the next.
// Pointers and shapes are as in layer.h.
#pragma once

#include <cstdint>

#include "kernels/batch.h"
#include "kernels/kv_geometry.h"
#include "kernels/tensor_view.h"

namespace eta {

// The blocks that decode rows read: per (row, KV head) an ascending list of block ordinals, each
// with the heads of the group that attend to it: those that admitted it, or with shared reads all
// of the group. An ordinal is an index into the sequence's block
// table. Only full blocks are listed; the partial tail is always attended. Rows of prefill
// sequences have count 0 and need no list: the first `rows` rows of the step have one, and all
// decode rows must be among them. For a row that admits all, only the count is sure to be written,
// since its list is every full block with all heads.
//
// Of rows with confirmed reads SelectBlocks also writes what each head rescued. DecodeAttention
// then replaces the masks by the heads whose softmax saw the block; 0: its V was not read.
struct BlockSelection {
  uint32_t* blocks = nullptr;  // [rows, HKV, capacity]
  uint32_t* heads = nullptr;   // [rows, HKV, capacity], bit g = head g of the group attends
  int32_t* counts = nullptr;   // [R, HKV]
  int64_t capacity = 0;        // at least N of every decode row
  int64_t rows = 0;
  int32_t* rescued = nullptr;  // [rows, HQ], the ordinal that a head rescued; -1: none

  bool operator==(const BlockSelection&) const = default;
};

// The full blocks that rows of sparse prefill attend to: per (row, query head) a mask over block
// ordinals, bit j % 64 of word j / 64. With shared reads the heads of a group have one mask, that
// of what any of them admitted. The partial tail is always attended. All `words` words of these
// rows are written; bits from N on are 0. Words of other rows are undefined.
struct PrefillSelection {
  uint64_t* admitted = nullptr;  // [R, HQ, words]; null: no row is of sparse prefill
  int64_t words = 0;             // at least ceil(N / 64) of every row of sparse prefill

  bool operator==(const PrefillSelection&) const = default;
};

// Rows of sparse prefill that read the cache together: those at positions 64k .. 64k + 63.
inline constexpr int32_t kPrefillTileRows = 64;

// What the rows of one layer read, in tokens per row (eta-semantics.md, "What is counted").
// tokens_attended counts what each head admitted itself, with shared reads too.
// values_read counts the tokens whose V was read: SelectBlocks writes what it writes as
// tokens_read, and of rows with confirmed reads DecodeAttention writes what it read.
// SelectBlocks writes decode rows, SelectPrefillBlocks those of sparse prefill. Of these a tile's
// tokens read stand at the tile's first row in the step, and 0 at its other rows; values read are
// the same. Rows of full prefill are left untouched. Host memory, valid after Finish().
struct AttentionCounts {
  int32_t* tokens_attended = nullptr;  // [R, HQ]
  int32_t* tokens_read = nullptr;      // [R, HKV]
  int32_t* values_read = nullptr;      // [R, HKV]

  bool operator==(const AttentionCounts&) const = default;
};

// Steps 1 to 5 of eta-semantics.md, "Selection", for every decode row. Of rows with relative
// thresholds it writes Lhat + c, the estimated log-sum-exp of the row and the constant, into
// `thresholds`; other rows' are read.
struct SelectBlocksParams {
  int32_t layer;          // of the sequences' head_z
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;  // s = 1/sqrt(d)
  BlockSelection selection;
  AttentionCounts counts;
  const float* sinks = nullptr;  // [HQ], as of AttentionParams; rows with relative thresholds

  bool operator==(const SelectBlocksParams&) const = default;
};

// What SelectBlocks does, of blocks that the host chose: for every decode row it packs the masks
// into lists and counts. Nothing is pinned or rescued beyond them. For evaluation.
struct ListBlocksParams {
  TensorView q;           // [R, HQ * d]
  const uint32_t* heads;  // host; [R, HKV, selection.capacity], bit g = head g of the group admits
                          // the full block of this ordinal
  int32_t num_query_heads;
  KvGeometry geometry;
  BlockSelection selection;
  AttentionCounts counts;
  int32_t table = 0;  // the layer's KvLayerView::table

  bool operator==(const ListBlocksParams&) const = default;
};

// Steps 1 to 5 of eta-semantics.md, "Selection", for every row of sparse prefill ("Sparse
// prefill"), each over its own T. Thresholds are read and written as by SelectBlocks.
struct SelectPrefillParams {
  int32_t layer;          // of the sequences' head_z
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;  // s = 1/sqrt(d)
  PrefillSelection selection;
  AttentionCounts counts;
  const float* sinks = nullptr;  // [HQ], likewise

  bool operator==(const SelectPrefillParams&) const = default;
};

// DecodeAttention: steps 6 and 7 of eta-semantics.md, "Selection", for decode rows, and "Confirmed
// reads".
// PrefillAttention: causal gated attention for prefill rows: over every key, or of sparse prefill
// by steps 6 and 7 over the blocks of `prefill` and the tail. Each op leaves rows of the other kind
// alone. Online softmax merges in one fixed order per row.
struct AttentionParams {
  TensorView q;           // [R, HQ * d]
  TensorView thresholds;  // [R, HQ]
  int32_t num_query_heads;
  KvGeometry geometry;
  KvLayerView kv;
  float softmax_scale;
  Gate gate;
  float beta;
  BlockSelection selection;  // decode only: the output of the last SelectBlocks, same rows
  TensorView out;            // [R, HQ * d]
  // Decode only, with confirmed reads: AttentionCounts::values_read of the same SelectBlocks.
  int32_t* values_read = nullptr;  // [R, HKV], host
  // Prefill only: the output of the last SelectPrefillBlocks, same rows. REQUIRES: `admitted` is
  // not null if a row is of sparse prefill.
  PrefillSelection prefill{};
  // W: the row at position t attends to keys max(0, t - W + 1) .. t alone, to all of them and
  // without a gate, and `selection`, `prefill` and `thresholds` are not read, nor a sequence's
  // AttentionOptions. 0: no window.
  int32_t window = 0;
  // [HQ]: a logit of each query head that joins the softmax's denominator alone (eta-semantics.md,
  // "Learned sinks"). Null: none.
  const float* sinks = nullptr;

  bool operator==(const AttentionParams&) const = default;
};

}  // namespace eta
