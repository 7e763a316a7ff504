// Where keys, values and records are inside a block of the CPU's KV cache.
//
// A block's tiles in one layer, per KV head: one K tile, then one V tile, contiguous.
//
//   K tile [d][b]: transposed, so that the scores of consecutive tokens are consecutive lanes and a
//                  block needs no horizontal sums. A row is padded to a multiple of 16 tokens; the
//                  padding is undefined.
//   V tile [b][d]: row-major, so that a token's value is consecutive lanes of the output.
//
// A block's record, per KV head: what screening reads, then v_total float32 [d], padded to a whole
// number of cache lines.
//
//   kMoment:  mu float16 [d], sigma float16 [d]; M float32 stands behind v_total.
//   kOutlier: mu8 int8 [d], sigma8 uint8 [d], out8 int8 [d], steps A and B float16: 3d + 4 bytes.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "kernels/kv_geometry.h"

namespace eta::cpu {

// The largest head dimension and block size (kernels/checks.h).
inline constexpr size_t kMaxHeadDim = 256;
inline constexpr size_t kMaxBlockSize = 128;

// Query heads that may share a KV head: the width of a selection's head mask.
inline constexpr size_t kMaxGroup = 32;

// Rows that a product writes to their own place.
inline constexpr std::array<uint8_t, kMaxGroup> kIdentityRows = [] {
  std::array<uint8_t, kMaxGroup> rows{};
  for (size_t i = 0; i < kMaxGroup; ++i) rows[i] = static_cast<uint8_t>(i);
  return rows;
}();

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
        index(geometry.index),
        screened_bytes(ScreenedBytes(geometry)),
        record_bytes(RoundUp(screened_bytes + static_cast<size_t>(head_dim) * 4 +
                             (index == IndexKind::kMoment ? 4 : 0))) {}

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
  float* VTotal(std::byte* record) const {
    return reinterpret_cast<float*>(record + screened_bytes);
  }
  // Of kMoment:
  uint16_t* Mu(std::byte* record) const { return reinterpret_cast<uint16_t*>(record); }
  uint16_t* Sigma(std::byte* record) const { return Mu(record) + head_dim; }
  float* MaxNorm(std::byte* record) const { return VTotal(record) + head_dim; }
  // Of kOutlier:
  int8_t* Mu8(std::byte* record) const { return reinterpret_cast<int8_t*>(record); }
  uint8_t* Sigma8(std::byte* record) const { return reinterpret_cast<uint8_t*>(record) + head_dim; }
  int8_t* Outlier8(std::byte* record) const { return Mu8(record) + 2 * head_dim; }
  uint16_t* Steps(std::byte* record) const {  // A, B
    return reinterpret_cast<uint16_t*>(record + 3 * static_cast<size_t>(head_dim));
  }

  int32_t head_dim;
  int32_t block_size;
  int32_t key_stride;  // elements from one row of a K tile to the next
  int32_t num_kv_heads;
  size_t element_bytes;
  size_t tile_bytes;  // one K or V tile
  IndexKind index;
  size_t screened_bytes;  // the first bytes of a record
  size_t record_bytes;    // one KV head's record

 private:
  static size_t ScreenedBytes(const KvGeometry& geometry) {
    const auto d = static_cast<size_t>(geometry.head_dim);
    return geometry.index == IndexKind::kOutlier ? 3 * d + 4 : 4 * d;
  }
  static size_t RoundUp(size_t bytes) { return (bytes + 63) / 64 * 64; }
};

}  // namespace eta::cpu
