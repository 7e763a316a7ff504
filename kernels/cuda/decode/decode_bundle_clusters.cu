// BundledClusterAttention is BundledDecodeAttention for few lists, a cluster of thread blocks each.

#include "kernels/cuda/decode/decode_bundles.cuh"
#include "kernels/cuda/decode/decode_bundles.h"
#include "kernels/cuda/decode/decode_cluster.cuh"

namespace eta::cuda {

bool BundledClusterAttention(Context& context, const AttentionParams& params,
                             const DeviceCounts& counts, const DecodeLists& lists,
                             const decode::BundleCut& cut, const decode::UnitedLists& united,
                             int32_t columns) {
  bool launched = false;
  decode::WithBundleShape(
      params.geometry, columns, [&](auto element, auto head_dim, auto head_tiles, auto halves) {
        launched = decode::LaunchClusters<decltype(element), head_dim(), head_tiles(), halves()>(
            context, params, counts, lists, cut, united);
      });
  return launched;
}

}  // namespace eta::cuda
