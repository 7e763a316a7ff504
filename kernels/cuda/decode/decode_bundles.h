// Decode attention of steps in which sequences have several rows.
#pragma once

#include "kernels/cuda/host/ops.h"
#include "kernels/params/selection.h"

namespace eta::cuda {
namespace decode {

// How bundles are cut into lists.
struct BundleCut {
  int32_t rows_per_list = 1;
  int32_t lists_per_bundle = 1;  // of a KV head
};

// What a list's rows read together, where the selection of its last row would stand: of each block
// that any of them reads its ordinal, its place in the pool, and the columns that attend to it.
struct UnitedLists {
  uint32_t* pool_blocks = nullptr;  // null: there are none
  BlockSelection selection{};
};

}  // namespace decode

// Ways to take bundles that were checked without a GPU alone, and are off: tests turn them on. The
// first steps after a change are plain, so graphs of earlier steps must not outlive it.
struct BundleWays {
  bool in_clusters = false;  // few lists, a cluster of thread blocks each
  bool united = false;       // rows that select; off: they have lists of their own
};
BundleWays& WaysOfBundles();  // decode_bundles.cu

// As DecodeAttention, but rows of a bundle read each block once. Returns false, and does nothing,
// if no rows are bundled, too few columns of a product are free for a second row, or rows select
// and WaysOfBundles() does not unite their lists. REQUIRES: AttendsOnTensorCores().
bool BundledDecodeAttention(Context& context, const AttentionParams& params,
                            const DeviceCounts& counts,
                            const DecodeLists& lists);  // decode_bundles.cu

// Its form for few lists of up to `columns` pairs (row, head of the group), in clusters. Returns
// false, and does nothing, if the lists are too many, or their thread blocks have no memory for a
// ring. REQUIRES: HasClusters(), and lists.even.
bool BundledClusterAttention(Context& context, const AttentionParams& params,
                             const DeviceCounts& counts, const DecodeLists& lists,
                             const decode::BundleCut& cut, const decode::UnitedLists& united,
                             int32_t columns);  // decode_bundle_clusters.cu

// Unites the lists of the rows of each list of bundles. Has none if the device has no memory.
decode::UnitedLists UniteLists(Context& context, const AttentionParams& params,
                               const DecodeLists& lists,
                               const decode::BundleCut& cut);  // unite_lists.cu

}  // namespace eta::cuda
