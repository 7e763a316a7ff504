// ClusterDecodeAttention is DecodeAttention for few lists of one row (eta-semantics.md, "Gate",
// "Special keys" and "Selection", steps 6 and 7): from q [R, HQ * d] to out [R, HQ * d].

#include "kernels/cuda/decode/decode_cluster.cuh"
#include "kernels/cuda/decode/decode_cluster.h"

namespace eta::cuda {

bool ClusterDecodeAttention(Context& context, const AttentionParams& params,
                            const DeviceCounts& counts, const DecodeLists& lists) {
  if (!lists.even || !HasClusters(context.device)) return false;
  const int32_t group = params.num_query_heads / params.geometry.num_kv_heads;
  bool launched = false;
  decode::WithShape(params.geometry, group, [&](auto element, auto head_dim, auto head_tiles) {
    launched = decode::LaunchClusters<decltype(element), head_dim(), head_tiles(), 0>(
        context, params, counts, lists, {}, {});
  });
  return launched;
}

}  // namespace eta::cuda
