// Decode attention of few lists (row, KV head), a cluster of thread blocks each.
#pragma once

#include "kernels/cuda/host/ops.h"

namespace eta::cuda {

// As DecodeAttention, in one kernel. Returns false, and does nothing, if the device has no
// clusters, if the lists are too many or too uneven, or their thread blocks have no memory for a
// ring. REQUIRES: AttendsOnTensorCores().
bool ClusterDecodeAttention(Context& context, const AttentionParams& params,
                            const DeviceCounts& counts,
                            const DecodeLists& lists);  // decode_cluster.cu

}  // namespace eta::cuda
