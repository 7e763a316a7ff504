// Counts the bytes that a way of attending reads to choose its blocks, for all ways alike.
#pragma once

#include <cstdint>

#include "calibration/evaluation/attention/evaluated_attention.h"
#include "kernels/backend.h"

namespace eta {

// Bytes of records, or of what a rule has in their place, that one KV head reads for a decode row
// of `num_keys` keys. Full attention, and a row all of whose blocks are always read, read none.
int64_t IndexBytesRead(const EvaluatedAttention& attention, const KvGeometry& geometry,
                       int32_t num_keys, int32_t group_size);

}  // namespace eta
