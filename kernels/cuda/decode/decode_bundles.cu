// BundledDecodeAttention is DecodeAttention for steps in which sequences decode several rows, as
// verification of drafts does (eta-semantics.md, "Gate", "Special keys", "Selection", steps 6 and
// 7, and "Windows"): from q [R, HQ * d] to out [R, HQ * d].
//
// Rows of one sequence read much the same blocks. So up to 32 pairs (row, head of the group) are
// the columns of one list, which is read once, and at its end every column has its own last key. Of
// rows that select the list is the union of theirs (unite_lists.cu), and says which columns attend
// to a block. Products of few heads are padded to 8 columns anyway. More than 8 are shared out to
// two halves of a thread block.

#include <algorithm>

#include "kernels/cuda/decode/decode_bundles.cuh"
#include "kernels/cuda/decode/decode_bundles.h"
#include "kernels/cuda/decode/decode_stream.cuh"

namespace eta::cuda {

BundleWays& WaysOfBundles() {
  static BundleWays ways;
  return ways;
}

bool BundledDecodeAttention(Context& context, const AttentionParams& params,
                            const DeviceCounts& counts, const DecodeLists& lists) {
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const int32_t rows_per_list =
      std::min(lists.bundle_rows, decode::MostColumns(geometry.head_dim) / group);
  if (lists.num_bundles == 0 || rows_per_list < 2) return false;
  const BundleWays& ways = WaysOfBundles();
  const bool selects = !lists.all && params.window == 0;
  if (selects && !ways.united) return false;
  const int32_t columns = rows_per_list * group;
  const decode::BundleCut cut = {rows_per_list,
                                 (lists.bundle_rows + rows_per_list - 1) / rows_per_list};
  if (geometry.num_kv_heads * cut.lists_per_bundle > decode::kMaxLists) return false;
  decode::UnitedLists united;
  if (selects) {
    united = UniteLists(context, params, lists, cut);
    if (united.pool_blocks == nullptr) return true;  // the device's status says so
  }
  if (ways.in_clusters && lists.even && HasClusters(context.device) &&
      BundledClusterAttention(context, params, counts, lists, cut, united, columns)) {
    return true;
  }
  bool launched = false;
  decode::WithBundleShape(
      geometry, columns, [&](auto element, auto head_dim, auto head_tiles, auto halves) {
        launched = decode::LaunchStream<decltype(element), head_dim(), head_tiles(), halves()>(
            context, params, counts, lists, cut, united);
      });
  return launched;
}

}  // namespace eta::cuda
