// Where keys, values and records are inside a block of the CUDA backend's KV cache. Plain
// arithmetic, the same on host and device.
//
// A block's tiles in one layer, per KV head: one K tile [b][d], then one V tile [b][d], both
// token-major and contiguous. So one bulk copy brings K and V of a block (16 KB at b = 64, d = 64,
// 16 bits). If tensor cores read the tile (SupportsTensorCores), the 16-byte chunks of a row are
// swizzled, so that the chunks of eight consecutive tokens fall into different banks of shared
// memory. Otherwise chunks stand in order.
//
// With 8 bits the V tile is [b / 4][d] words of four consecutive tokens each, since no load
// transposes bytes. The exponents of the scales follow the V tile, int8 [2][b], K's first
// (eta-semantics.md, "8-bit cache"). One bulk copy brings all of it (8320 bytes).
//
// A block's record has three parts: mu float16 [d] and sigma float16 [d] of every KV head, which
// screening reads; M float32 of every KV head; v_total float32 [d] of every KV head, which the
// floor reads once per row, from the last full block. With an 8-bit index the parts are: mu8 int8
// [d] and sigma8 e4m3 [d] of every KV head; a RecordTrailer of every KV head; v_total.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params.h"

#ifdef __CUDACC__
#define ETA_HOST_DEVICE __host__ __device__ __forceinline__
#else
#define ETA_HOST_DEVICE inline
#endif

namespace eta::cuda {

// Query heads that may share a KV head: the width of a selection's head mask.
inline constexpr int32_t kMaxGroup = 32;
// The largest head dimension that the layout takes.
inline constexpr int32_t kMaxHeadDim = 256;

// Whether the tensor-core kernels take a geometry. All others go through the plain kernels.
ETA_HOST_DEVICE bool SupportsTensorCores(int32_t head_dim, int32_t block_size, int32_t group,
                                         DType dtype) {
  const bool narrow = dtype != DType::kFloat32;
  const bool dim = head_dim == 64 || head_dim == 96 || head_dim == 128;
  const bool block = block_size == 16 || block_size == 32 || block_size == 64 || block_size == 128;
  return narrow && dim && block && group >= 1 && group <= 16;
}

// The scalars of an 8-bit record, per KV head.
struct alignas(16) RecordTrailer {
  float max_norm;     // M
  float mu_scale;     // p
  float mu_error;     // e
  float sigma_scale;  // 2^x
};

struct KvTile {
  ETA_HOST_DEVICE explicit KvTile(const KvGeometry& geometry)
      : head_dim(geometry.head_dim),
        block_size(geometry.block_size),
        num_kv_heads(geometry.num_kv_heads),
        element_bytes(geometry.dtype == DType::kFloat32      ? 4
                      : geometry.dtype == DType::kFloat8E4M3 ? 1
                                                             : 2),
        chunk_elements(16 / element_bytes),
        swizzled(SupportsTensorCores(head_dim, block_size, 1, geometry.dtype)),
        narrow_index(geometry.index_dtype == DType::kInt8) {}

  // Bytes of one K or V tile. block_bytes() covers a block with all KV heads.
  ETA_HOST_DEVICE size_t tile_bytes() const {
    return (static_cast<size_t>(block_size) * head_dim * element_bytes + 127) / 128 * 128;
  }
  ETA_HOST_DEVICE size_t block_bytes() const { return head_bytes() * num_kv_heads; }
  // Bytes of one block and KV head: both tiles, and the exponents where there are any.
  ETA_HOST_DEVICE size_t head_bytes() const {
    return 2 * tile_bytes() +
           (scaled() ? (2 * static_cast<size_t>(block_size) + 127) / 128 * 128 : 0);
  }
  // Whether each token's K and V have a scale: the 8-bit cache.
  ETA_HOST_DEVICE bool scaled() const { return element_bytes == 1; }

  // Byte offset in `tiles` of the K tile of one block and KV head. The V tile follows it.
  ETA_HOST_DEVICE size_t K(int32_t block, int32_t kv_head) const {
    return (static_cast<size_t>(block) * num_kv_heads + kv_head) * head_bytes();
  }
  ETA_HOST_DEVICE size_t V(int32_t block, int32_t kv_head) const {
    return K(block, kv_head) + tile_bytes();
  }
  // Byte offset of the exponents of K's scales, int8 [b]. V's follow.
  ETA_HOST_DEVICE size_t Exponents(int32_t block, int32_t kv_head) const {
    return K(block, kv_head) + 2 * tile_bytes();
  }
  // The position of the 16-byte chunk `chunk` in a token's row.
  ETA_HOST_DEVICE int32_t Chunk(int32_t token, int32_t chunk) const {
    if (!swizzled) return chunk;
    if (scaled()) {
      return head_dim == 64   ? chunk ^ ((token >> 1) & 3)
             : head_dim == 96 ? chunk ^ ((token >> 2) & 1)
                              : chunk ^ (token & 7);
    }
    return head_dim == 96 ? chunk ^ ((token >> 1) & 3) : chunk ^ (token & 7);
  }
  // Byte offset of element (token, i) inside a K tile, or inside a V tile of 16 or 32 bits.
  ETA_HOST_DEVICE size_t Element(int32_t token, int32_t i) const {
    const int32_t chunk = Chunk(token, i / chunk_elements);
    return (static_cast<size_t>(token) * head_dim + chunk * chunk_elements + i % chunk_elements) *
           element_bytes;
  }
  // Byte offset, inside an 8-bit V tile, of the word with element i of tokens 4 quad .. 4 quad + 3.
  // The words of four neighbouring quads fall into different banks.
  ETA_HOST_DEVICE size_t ValueWord(int32_t quad, int32_t i) const {
    return (static_cast<size_t>(quad) * head_dim + (i ^ (quad & 3) * 8)) * 4;
  }

  // Bytes of one block's record, all KV heads, and offsets inside it.
  ETA_HOST_DEVICE size_t record_bytes() const { return (VTotal(num_kv_heads) + 127) / 128 * 128; }
  ETA_HOST_DEVICE size_t Mu(int32_t kv_head) const {
    return static_cast<size_t>(kv_head) * head_dim * (narrow_index ? 2 : 4);
  }
  ETA_HOST_DEVICE size_t Sigma(int32_t kv_head) const {
    return Mu(kv_head) + static_cast<size_t>(head_dim) * (narrow_index ? 1 : 2);
  }
  // Byte offset of M with a float16 index, or of the RecordTrailer, whose first member is M, with
  // an 8-bit index.
  ETA_HOST_DEVICE size_t MaxNorm(int32_t kv_head) const {
    return Mu(num_kv_heads) + static_cast<size_t>(kv_head) * (narrow_index ? 16 : 4);
  }
  ETA_HOST_DEVICE size_t VTotal(int32_t kv_head) const {
    return (MaxNorm(num_kv_heads) + 15) / 16 * 16 + static_cast<size_t>(kv_head) * head_dim * 4;
  }

  int32_t head_dim;
  int32_t block_size;
  int32_t num_kv_heads;
  int32_t element_bytes;
  int32_t chunk_elements;  // elements in 16 bytes
  bool swizzled;
  bool narrow_index;  // int8 instead of float16
};

}  // namespace eta::cuda
