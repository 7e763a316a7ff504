// Decode attention of few lists (row, KV head), a cluster of thread blocks each.
#pragma once

#include "kernels/cuda/host/ops.h"

namespace eta::cuda {

// The largest cluster that every device with clusters supports.
inline constexpr int32_t kMostRanks = 8;

// Whether `lists` lists, the longest of `bytes` bytes, are so few and long that clusters would
// leave most of the card idle for longer than a merge takes.
inline bool AreFewAndLong(int32_t num_sms, int64_t lists, int64_t bytes) {
  constexpr int64_t kLongBytes = int64_t{8} << 20;
  return 4 * lists * kMostRanks <= num_sms && bytes > kLongBytes;
}

// As DecodeAttention, in one kernel. Returns false, and does nothing, if the device has no
// clusters, if the lists are too many or too uneven, or their thread blocks have no memory for a
// ring. REQUIRES: AttendsOnTensorCores().
bool ClusterDecodeAttention(Context& context, const AttentionParams& params,
                            const DeviceCounts& counts,
                            const DecodeLists& lists);  // decode_cluster.cu

}  // namespace eta::cuda
