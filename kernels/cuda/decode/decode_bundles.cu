// BundledDecodeAttention is DecodeAttention for steps in which sequences decode several rows, as
// verification of drafts does (eta-semantics.md, "Gate", "Special keys" and "Windows"): from
// q [R, HQ * d] to out [R, HQ * d].
//
// Rows of one sequence that read everything, or a window, read the same blocks but for their newest
// keys. So up to 32 pairs (row, head of the group) are the columns of one list, which is read once,
// and at its end every column has its own last key. Products of few heads are padded to 8 columns
// anyway. Two halves of a thread block share more than 8 (decode_stages.cuh). Rows that select have
// a list each, as in decode_attention.cu.

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/decode/decode_bundles.h"
#include "kernels/cuda/decode/decode_stream.cuh"

namespace eta::cuda {
namespace decode {
namespace {

// The most columns of a list.
int32_t MostColumns(int32_t head_dim) {
  return head_dim == kWideHeadDim ? 16 : 32;
}

// Calls visit(head_tiles, halves), integral constants, for lists of up to `columns` columns.
template <typename Element, int D, typename Visit>
void WithColumns(int32_t columns, Visit&& visit) {
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  using ShareColumns = std::integral_constant<int, kShareColumns>;
  using ShareStages = std::integral_constant<int, kShareStages>;
  if (columns <= 8) return visit(One(), One());
  if constexpr (D == kWideHeadDim) {
    visit(One(), ShareColumns());
  } else if (columns > 16) {
    visit(Two(), ShareColumns());
  } else if constexpr (std::is_same_v<Element, E4M3>) {
    visit(Two(), ShareStages());  // widening 8 bits takes the time
  } else {
    visit(One(), ShareColumns());
  }
}

}  // namespace
}  // namespace decode

bool BundledDecodeAttention(Context& context, const AttentionParams& params,
                            const DeviceCounts& counts, const DecodeLists& lists) {
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const int32_t rows_per_list =
      std::min(lists.bundle_rows, decode::MostColumns(geometry.head_dim) / group);
  if (lists.num_bundles == 0 || rows_per_list < 2) return false;
  if (!lists.all && params.window == 0) return false;  // its rows select
  const decode::BundleCut cut = {rows_per_list,
                                 (lists.bundle_rows + rows_per_list - 1) / rows_per_list};
  if (geometry.num_kv_heads * cut.lists_per_bundle > decode::kMaxLists) return false;
  bool launched = false;
  decode::WithShape(geometry, /*group=*/1, [&](auto element, auto head_dim, auto) {
    using Element = decltype(element);
    decode::WithColumns<Element, head_dim()>(
        rows_per_list * group, [&](auto head_tiles, auto halves) {
          launched = decode::LaunchStream<Element, head_dim(), head_tiles(), halves()>(
              context, params, counts, lists, cut);
        });
  });
  return launched;
}

}  // namespace eta::cuda
