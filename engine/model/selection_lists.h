// Room for the lists of blocks that decode rows read (BlockSelection in
// kernels/params/selection.h). A list is as long as the longest sequence has blocks, so at a long
// context each row that selects costs about as much memory as a long prompt's activations. Prompt
// rows select nothing and have no list.
#pragma once

#include <cstdint>

#include "engine/model/model_config.h"

namespace eta {

// What the lists may take beyond those of one row for each stream.
inline constexpr int64_t kMaxListBytes = int64_t{64} << 20;

// Blocks of one list: those of a sequence of `max_context` tokens.
int64_t ListCapacity(int32_t max_context, int32_t block_size);

// Bytes of one row's lists, over all KV heads: the blocks, and the heads that admitted each.
int64_t ListBytesPerRow(int32_t num_kv_heads, int32_t max_context, int32_t block_size);

// Of the masks of blocks that rows of sparse prefill attend to (PrefillSelection): words of one
// mask, and bytes of one row's masks, over all query heads. A bit per block, so every row of a step
// has them.
int64_t MaskWords(int32_t max_context, int32_t block_size);
int64_t MaskBytesPerRow(int32_t num_query_heads, int32_t max_context, int32_t block_size);

// How many rows of a step may be decode rows: one for each stream that runs; more, for answers that
// are replayed and for passes, as far as all lists fit kMaxListBytes; at most all `max_rows`.
// REQUIRES: 1 <= max_running <= max_rows.
int32_t MaxDecodeRows(const ModelConfig& config, int32_t max_context, int32_t max_running,
                      int32_t max_rows);

}  // namespace eta
