#include "calibration/evaluation/attention/index_reads.h"

#include "engine/model/kv_cache.h"

namespace eta {

int64_t IndexBytesRead(const EvaluatedAttention& attention, const KvGeometry& geometry,
                       int32_t num_keys, int32_t group_size) {
  const AttentionOptions& options = attention.options;
  const int64_t full = num_keys / geometry.block_size;
  const int64_t others = full - options.sink_blocks - options.pinned_blocks;
  if (options.admit_all || others <= 0) return 0;
  if (attention.rival) return full * attention.rival->IndexBytes(geometry, group_size);
  // Relative thresholds also score the keys that are always read.
  const int64_t scored = options.relative ? num_keys - others * geometry.block_size : 0;
  return full * IndexRecordBytes(geometry) + scored * KvKeyBytes(geometry);
}

}  // namespace eta
