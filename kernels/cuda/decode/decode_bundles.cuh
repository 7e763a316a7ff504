// The shapes of thread blocks that take lists of several rows.
#pragma once

#include <type_traits>

#include "kernels/cuda/decode/decode_cta.cuh"

namespace eta::cuda::decode {

// The most columns of a list.
inline constexpr int32_t MostColumns(int32_t head_dim) {
  return head_dim == kWideHeadDim ? 16 : 32;
}

// Calls visit(head_tiles, halves), integral constants, for lists of up to `columns` columns.
template <int D, typename Visit>
void WithColumns(int32_t columns, Visit&& visit) {
  using One = std::integral_constant<int, 1>;
  using Two = std::integral_constant<int, 2>;
  if (columns <= 8) return visit(One(), One());
  if constexpr (D != kWideHeadDim) {
    if (columns > 16) return visit(Two(), Two());
  }
  visit(One(), Two());
}

// Calls visit(Element(), head_dim, head_tiles, halves), the latter three integral constants, for
// lists of up to `columns` columns. REQUIRES: AttendsOnTensorCores().
template <typename Visit>
void WithBundleShape(const KvGeometry& geometry, int32_t columns, Visit&& visit) {
  WithShape(geometry, /*group=*/1, [&](auto element, auto head_dim, auto) {
    WithColumns<head_dim()>(columns, [&](auto head_tiles, auto halves) {
      visit(element, head_dim, head_tiles, halves);
    });
  });
}

}  // namespace eta::cuda::decode
