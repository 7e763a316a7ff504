// DecodeAttention computes attention of each decode row over the blocks that SelectBlocks listed,
// and the tail: gate, softmax, and the floor of the pruned keys, from q [R, HQ * d] to out
// [R, HQ * d] (eta-semantics.md, "Gate", "Special keys" and "Selection", steps 6 and 7; "Windows").
//
// Memory binds, then start and end of the kernels. decode_plan.cuh cuts the lists into stages,
// decode_stages.cuh copies the stages into shared memory, decode_softmax.cuh computes on them, and
// decode_merge.cuh adds the floor and merges partial results.

#include "kernels/cuda/decode/decode_bundles.h"
#include "kernels/cuda/decode/decode_cluster.h"
#include "kernels/cuda/decode/decode_stream.cuh"

namespace eta::cuda {

void DecodeAttention(Context& context, const AttentionParams& params, const DeviceCounts& counts,
                     const DecodeLists& lists) {
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  if (!AttendsOnTensorCores(context.device, params)) return PlainDecodeAttention(context, params);
  if (BundledDecodeAttention(context, params, counts, lists)) return;
  if (ClusterDecodeAttention(context, params, counts, lists)) return;
  decode::WithShape(geometry, group, [&](auto element, auto head_dim, auto head_tiles) {
    decode::LaunchStream<decltype(element), head_dim(), head_tiles(), 0>(context, params, counts,
                                                                         lists, {});
  });
}

}  // namespace eta::cuda
