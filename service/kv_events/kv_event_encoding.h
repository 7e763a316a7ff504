// Events as routers read them: MessagePack of the shape that vLLM publishes.
//
//   [time in seconds, [event, ...], nil]
//
// An event as a map; as an array it is its type and then these fields, in this order:
//   {"type": "BlockStored", "block_hashes": [...], "parent_block_hash": hash or nil,
//    "token_ids": [...], "block_size": tokens, "lora_id": nil, "medium": "GPU", "lora_name": nil}
//   {"type": "BlockRemoved", "block_hashes": [...], "medium": "GPU"}
//   {"type": "AllBlocksCleared"}
//
// Of a model with several groups of layers there is more: "extra_keys": nil (as an array only),
// "group_idx", "kv_cache_spec_kind": "full_attention" or "sliding_window", and then
// "kv_cache_spec_sliding_window": tokens (nil of full layers) behind the fields of BlockStored, and
// "group_idx" behind those of BlockRemoved. A block has one hash in all groups. Group 0 is of full
// layers, unless the model has none.
//
// Blocks of one prompt that follow each other are one event. The hashes are unsigned. The medium is
// "GPU" on every device: so readers call the memory that the engine computes from. No block has
// extra keys: readers know no tenants and no profiles, and would find no block under them.
#pragma once

#include <string>

#include "engine/batching/kv_events/kv_event.h"
#include "service/kv_events/kv_event_options.h"

namespace eta {

std::string EncodeKvEvents(const KvEventBatch& batch, KvEventEncoding encoding);

}  // namespace eta
