// Which keys of a key tile a lane's two queries attend to: all of them, in a layer with a window
// those of the query's window, or of sparse prefill those of the pieces that each query admits
// (admitted_tiles.h). The causal mask comes on top.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

// Full prefill.
struct EveryKey {
  static constexpr int kPieces = 1;
  static constexpr bool kFloors = false;
  __device__ __forceinline__ bool Attends(int /*query*/) const { return true; }
  __device__ __forceinline__ bool Attends(int /*query*/, int /*piece*/) const { return true; }
  __device__ __forceinline__ bool Floors(int /*query*/, int /*piece*/) const { return false; }
  // Whether `key` is out of sight of a query at `position`.
  __device__ __forceinline__ bool Hides(int32_t key, int32_t position) const {
    return key > position;
  }
};

// A layer with a window.
struct WindowKeys : EveryKey {
  int32_t window;
  __device__ __forceinline__ explicit WindowKeys(int32_t keys) : window(keys) {}
  __device__ __forceinline__ bool Hides(int32_t key, int32_t position) const {
    return key > position || key <= position - window;
  }
};

// Sparse prefill, key tiles of `Pieces` pieces.
template <int Pieces>
struct AdmittedKeys {
  static constexpr int kPieces = Pieces;
  static constexpr bool kFloors = true;
  bool of_warp;      // a query of the warp attends to one of the keys
  uint32_t attends;  // bit 2 * piece + i: query i of the lane attends to the piece
  uint32_t floors;  // likewise: and keys that it pruned weigh exp(0), which these keys have already

  // `entry`: of the list. `query`: the lane's first, as in QueryPair::Load. `floored`: bit i, query
  // i of the lane gives pruned keys the weight exp(0).
  __device__ __forceinline__ AdmittedKeys(const std::byte* entry, int32_t query, uint32_t floored,
                                          const int32_t (&positions)[2], int32_t first_key,
                                          int32_t block_shift) {
    of_warp = false;
    attends = 0;
    floors = 0;
    const auto* bits = reinterpret_cast<const uint16_t*>(entry + sizeof(AdmittedTile)) + query / 16;
#pragma unroll
    for (int piece = 0; piece < Pieces; ++piece) {
      const uint32_t queries = bits[piece * 8];
      of_warp = of_warp || queries != 0;
      const uint32_t pair = (queries >> (query % 16) & 1) | (queries >> (query % 16) >> 7 & 2);
      attends |= pair << (2 * piece);
      // The floor covers full blocks only: the tail is never pruned.
      const int32_t block = (first_key >> block_shift) + piece;
      const uint32_t full = (block < (positions[0] + 1) >> block_shift ? 1u : 0u) |
                            (block < (positions[1] + 1) >> block_shift ? 2u : 0u);
      floors |= (pair & floored & full) << (2 * piece);
    }
  }

  __device__ __forceinline__ bool Hides(int32_t key, int32_t position) const {
    return key > position;
  }
  __device__ __forceinline__ bool Attends(int query, int piece) const {
    return (attends >> (2 * piece + query) & 1) != 0;
  }
  __device__ __forceinline__ bool Attends(int query) const {
    constexpr uint32_t kEvery = 0x55u & ((1u << 2 * Pieces) - 1);
    return (attends >> query & kEvery) != 0;
  }
  __device__ __forceinline__ bool Floors(int query, int piece) const {
    return (floors >> (2 * piece + query) & 1) != 0;
  }
};

// Whether a query of warpgroup `warpgroup` (64 of the 128 queries) attends to a piece of an entry.
template <int Pieces>
__device__ __forceinline__ bool AttendsAny(const std::byte* entry, int32_t warpgroup) {
  const auto* bits = reinterpret_cast<const uint64_t*>(entry + sizeof(AdmittedTile)) + warpgroup;
  uint64_t any = 0;
#pragma unroll
  for (int piece = 0; piece < Pieces; ++piece) any |= bits[2 * piece];
  return any != 0;
}

// The policy of a kernel: `Pieces` of AdmittedKeys, 0 for full prefill, or kWindowPieces.
inline constexpr int kWindowPieces = -1;
template <int Pieces>
struct KeysOf {
  using Type = AdmittedKeys<Pieces>;
};
template <>
struct KeysOf<0> {
  using Type = EveryKey;
};
template <>
struct KeysOf<kWindowPieces> {
  using Type = WindowKeys;
};

// The keys of full prefill or of a window.
template <int Pieces>
__device__ __forceinline__ typename KeysOf<Pieces>::Type AllKeys(int32_t window) {
  if constexpr (Pieces == kWindowPieces) {
    return WindowKeys(window);
  } else {
    return EveryKey();
  }
}

// The places of an attention tile's key tiles: those in the sequence, or of sparse prefill those of
// entries in the tile's list.
template <int Pieces>
struct KeyPlaces {
  static constexpr bool kSparse = Pieces > 0;
  static constexpr int kEntryBytes = kSparse ? AdmittedTileBytes(Pieces) : 0;
  const PrefillParams& params;
  const std::byte* entries = nullptr;

  __device__ __forceinline__ KeyPlaces(const PrefillParams& of, const PrefillWork& work)
      : params(of) {
    if constexpr (kSparse) {
      entries = EntriesOf(params, params.admitted.List(work.tile, work.kv_head), kEntryBytes);
    }
  }
  __device__ __forceinline__ const std::byte* Entry(int32_t place) const {
    return entries + place * kEntryBytes;
  }
  __device__ __forceinline__ int32_t KeyTile(int32_t place) const {
    if constexpr (!kSparse) return place;
    return reinterpret_cast<const AdmittedTile*>(Entry(place))->key_tile;
  }
  // What the lane's `queries`, from `first_query` on, attend to of the tile there, which begins
  // with `first_key`.
  template <typename Queries>
  __device__ __forceinline__ typename KeysOf<Pieces>::Type Attended(int32_t place,
                                                                    int32_t first_query,
                                                                    const Queries& queries,
                                                                    int32_t first_key) const {
    if constexpr (kSparse) {
      return AdmittedKeys<Pieces>(Entry(place), first_query, queries.floored, queries.position,
                                  first_key, __ffs(params.geometry.block_size) - 1);
    } else {
      return AllKeys<Pieces>(params.window);
    }
  }
};

// Calls visit(Element(), pieces), the latter an integral constant, as of KeysOf.
template <typename Visit>
void WithElementAndPieces(const PrefillParams& params, Visit&& visit) {
  const auto with_pieces = [&](auto pieces) {
    if (params.geometry.dtype == DType::kFloat16) {
      visit(Half(), pieces);
    } else {
      visit(BFloat16(), pieces);
    }
  };
  if (params.window > 0) return with_pieces(std::integral_constant<int, kWindowPieces>());
  if (params.admitted.entries == nullptr) return with_pieces(std::integral_constant<int, 0>());
  switch (TilePieces(params.geometry.block_size)) {
    case 1:
      return with_pieces(std::integral_constant<int, 1>());
    case 2:
      return with_pieces(std::integral_constant<int, 2>());
    default:
      return with_pieces(std::integral_constant<int, 4>());
  }
}

// Whether keys of the key tile that begins with `first_key` are out of sight of a query of `tile`.
template <int Pieces>
__device__ __forceinline__ bool HidesKeys(const PrefillParams& params, const PrefillTile& tile,
                                          int32_t first_key) {
  const bool later = first_key + kTileKeys > tile.position;
  if constexpr (Pieces != kWindowPieces) return later;
  return later || first_key <= tile.position + tile.tokens - 1 - params.window;
}

}  // namespace eta::cuda
