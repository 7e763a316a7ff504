// Copies key tiles of prefill attention at d = 64 into shared memory by sm_90's bulk copies. K
// comes first, then V, each 64 rows of 128 bytes as in the cache.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"

namespace eta::cuda {

// One thread copies `bytes` (a multiple of 16), which other CTAs will read too.
__device__ __forceinline__ void BulkCopyShared(uint32_t shared, const std::byte* global,
                                               uint32_t bytes, Barrier* barrier) {
  asm volatile(
      "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
          "r"(shared),
      "l"(global), "r"(bytes), "r"(SharedAddress(barrier))
      : "memory");
}

// One whole warp calls each method. Tiles go by their places: of full prefill a place is that of
// the key tile in the sequence. kEntryBytes: of sparse prefill a place is that of an entry of this
// size in the tile's list, and the entry is copied behind the tile's stages.
template <int kEntryBytes>
struct KeyTileCopier {
  __device__ __forceinline__ KeyTileCopier(const PrefillParams& params, const PrefillTile& tile,
                                           int32_t kv_head, int64_t list) {
    table = params.tables + tile.table_begin;
    first_key = tile.first_key;
    keys = tile.keys;
    block_size = params.geometry.block_size;
    block_shift = __ffs(block_size) - 1;
    piece_shift = min(block_shift, __ffs(kTileKeys) - 1);
    piece_begin = static_cast<int32_t>(threadIdx.x % 32) << piece_shift;
    block_bytes = params.geometry.num_kv_heads * (block_size * 256);
    pool = params.tiles + kv_head * (block_size * 256);
    if constexpr (kEntryBytes > 0) entries = EntriesOf(params, list, kEntryBytes);
  }

  // Finds the block of this lane's piece of the tile. A piece is a block, or the whole tile if that
  // is smaller.
  __device__ __forceinline__ void LookUp(int32_t place) {
    key_tile = place;
    if constexpr (kEntryBytes > 0) {
      key_tile = reinterpret_cast<const AdmittedTile*>(entries + place * kEntryBytes)->key_tile;
    }
    const int32_t key = key_tile * kTileKeys + piece_begin;
    const bool needed = key < keys && key + (1 << piece_shift) > first_key;
    block = piece_begin < kTileKeys && needed ? table[key >> block_shift] : -1;
  }
  // Copies the tile that LookUp found, and the entry at `place` to `entry`.
  __device__ __forceinline__ void Copy(int32_t place, uint32_t stage, uint32_t entry,
                                       Barrier* full) const {
    const uint32_t piece_bytes = 128u << piece_shift;
    const int32_t used = min(keys - key_tile * kTileKeys, kTileKeys);
    const int32_t missing = max(first_key - key_tile * kTileKeys, 0) >> piece_shift;
    const int32_t pieces = ((used + (1 << piece_shift) - 1) >> piece_shift) - missing;
    ExpectBytes(full, pieces * piece_bytes * 2 + kEntryBytes);
    __syncwarp();
    if constexpr (kEntryBytes > 0) {
      if (threadIdx.x % 32 == 0) {
        BulkCopyShared(entry, entries + place * kEntryBytes, kEntryBytes, full);
      }
    }
    if (block >= 0) {
      const int32_t within =
          key_tile * kTileKeys & (block_size - 1);  // nonzero only in blocks of 128
      const std::byte* from =
          pool + static_cast<uint64_t>(static_cast<uint32_t>(block)) * block_bytes + within * 128;
      const uint32_t to = stage + piece_begin * 128;
      BulkCopyShared(to, from, piece_bytes, full);
      BulkCopyShared(to + kTileKeys * 128, from + block_size * 128, piece_bytes, full);
    }
    __syncwarp();
  }

  const int32_t* table;  // the sequence's block table
  int32_t first_key;     // keys before it are not copied, but with others of their block
  int32_t keys;          // keys of the sequence
  int32_t block_size;
  int32_t block_shift;
  int32_t piece_shift;
  int32_t piece_begin;    // first key of this lane's piece in the tile
  uint32_t block_bytes;   // all KV heads
  const std::byte* pool;  // of this KV head
  int32_t block = -1;
  int32_t key_tile = 0;
  const std::byte* entries = nullptr;  // of the tile's list
};

}  // namespace eta::cuda
