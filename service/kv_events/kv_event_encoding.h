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
// Blocks of one prompt that follow each other are one event. The hashes are unsigned. The medium is
// "GPU" on every device: so readers call the memory that the engine computes from. There are no
// extra keys: readers know no tenants and no profiles, and would find no block under them.
#pragma once

#include <string>

#include "engine/batching/kv_events/kv_event.h"
#include "service/kv_events/kv_event_options.h"

namespace eta {

std::string EncodeKvEvents(const KvEventBatch& batch, KvEventEncoding encoding);

}  // namespace eta
