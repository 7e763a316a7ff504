// Where keys, values and records are inside a block of the CPU's KV cache.
//
// A block's tiles in one layer, per KV head: one K tile, then one V tile, contiguous.
//
//   K tile [d][b]: transposed, so that the scores of consecutive tokens are consecutive lanes and a
//                  block needs no horizontal sums. A row is padded to a multiple of 16 tokens; the
//                  padding is undefined.
//   V tile [b][d]: row-major, so that a token's value is consecutive lanes of the output.
//
// A block's record, per KV head: mu float16 [d], sigma float16 [d], v_total float32 [d], M float32,
// padded to a whole number of cache lines.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params.h"

namespace eta::cpu {

// Query heads that may share a KV head: the width of a selection's head mask.
inline constexpr size_t kMaxGroup = 32;

// Floats from one head to the next in a thread's queries, scores and sums. It is more than 256
// columns, and no two rows begin in the same cache set.
inline constexpr size_t kTileRowStride = 272;

struct KvTile {
  explicit KvTile(const KvGeometry& geometry)
      : head_dim(geometry.head_dim),
        block_size(geometry.block_size),
        key_stride((geometry.block_size + 15) / 16 * 16),
        num_kv_heads(geometry.num_kv_heads),
        element_bytes(SizeOf(geometry.dtype)),
        tile_bytes(element_bytes * static_cast<size_t>(head_dim) * static_cast<size_t>(key_stride)),
        record_bytes(RoundUp(static_cast<size_t>(head_dim) * 8 + 4)) {}

  // Bytes of one block, all KV heads.
  size_t block_bytes() const { return 2 * tile_bytes * static_cast<size_t>(num_kv_heads); }
  size_t block_record_bytes() const { return record_bytes * static_cast<size_t>(num_kv_heads); }

  std::byte* K(const KvLayerView& kv, int32_t block, int32_t kv_head) const {
    return kv.tiles + (static_cast<size_t>(block) * static_cast<size_t>(num_kv_heads) +
                       static_cast<size_t>(kv_head)) *
                          2 * tile_bytes;
  }
  std::byte* V(const KvLayerView& kv, int32_t block, int32_t kv_head) const {
    return K(kv, block, kv_head) + tile_bytes;
  }

  std::byte* Record(const KvLayerView& kv, int32_t block, int32_t kv_head) const {
    return kv.records + (static_cast<size_t>(block) * static_cast<size_t>(num_kv_heads) +
                         static_cast<size_t>(kv_head)) *
                            record_bytes;
  }
  uint16_t* Mu(std::byte* record) const { return reinterpret_cast<uint16_t*>(record); }
  uint16_t* Sigma(std::byte* record) const { return Mu(record) + head_dim; }
  float* VTotal(std::byte* record) const {
    return reinterpret_cast<float*>(Sigma(record) + head_dim);
  }
  float* MaxNorm(std::byte* record) const { return VTotal(record) + head_dim; }

  int32_t head_dim;
  int32_t block_size;
  int32_t key_stride;  // elements from one row of a K tile to the next
  int32_t num_kv_heads;
  size_t element_bytes;
  size_t tile_bytes;    // one K or V tile
  size_t record_bytes;  // one KV head's record

 private:
  static size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }
};

}  // namespace eta::cpu
