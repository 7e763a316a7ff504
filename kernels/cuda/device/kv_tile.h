// Where keys, values and records are inside a block of the CUDA backend's KV cache. Plain
// arithmetic, the same on host and device.
//
// A block's tiles in one layer, per KV head: one K tile [b][d], then one V tile [b][d], both
// token-major and contiguous. So one bulk copy brings K and V of a block (16 KB at b = 64, d = 64,
// 16 bits). If tensor cores read the tile (SupportsTensorCores, HasWideHeads), the 16-byte chunks
// of a row are swizzled, so that the chunks of eight consecutive tokens fall into different banks
// of shared memory. Otherwise chunks stand in order.
//
// With 8 bits the V tile is [b / 4][d] words of four consecutive tokens each, since no load
// transposes bytes. The exponents of the scales follow the V tile, int8 [2][b], K's first
// (eta-semantics.md, "8-bit cache"). One bulk copy brings all of it (8320 bytes).
//
// A block's record has three parts: the vectors of every KV head, which screening reads; scalars of
// every KV head; v_total float32 [d] of every KV head, which the floor reads once per row, from the
// last full block. Vectors and scalars of a KV head, by form:
//
//   kHalf     mu float16 [d], sigma float16 [d]                  M float32
//   kNarrow   mu8 int8 [d], sigma8 e4m3 [d]                      RecordTrailer
//   kOutlier  mu8 int8 [d], sigma8 uint8 [d], out8 int8 [d]      OutlierTrailer
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/kv_geometry.h"

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
// The most tokens of a block.
inline constexpr int32_t kMaxBlockSize = 128;

ETA_HOST_DEVICE bool IsFastBlock(int32_t block_size) {
  return block_size == 16 || block_size == 32 || block_size == 64 || block_size == 128;
}

// Whether the tensor-core kernels take a geometry. All others go through the plain kernels.
ETA_HOST_DEVICE bool SupportsTensorCores(int32_t head_dim, int32_t block_size, int32_t group,
                                         DType dtype) {
  const bool narrow = dtype != DType::kFloat32;
  const bool dim = head_dim == 64 || head_dim == 96 || head_dim == 128;
  return narrow && dim && IsFastBlock(block_size) && group >= 1 && group <= 16;
}

// Whether they do on devices with enough shared memory (TensorCoresTake).
inline constexpr int32_t kWideHeadDim = 256;
ETA_HOST_DEVICE bool HasWideHeads(int32_t head_dim, int32_t block_size, int32_t group,
                                  DType dtype) {
  const bool narrow = dtype != DType::kFloat32;
  return narrow && head_dim == kWideHeadDim && IsFastBlock(block_size) && group >= 1 && group <= 8;
}

// What a record holds (eta-semantics.md, "Block index"): a float16 or an 8-bit record of kind
// moment, or one of kind outlier.
enum class RecordForm : uint8_t { kHalf, kNarrow, kOutlier };

ETA_HOST_DEVICE RecordForm FormOf(const KvGeometry& geometry) {
  if (geometry.index == IndexKind::kOutlier) return RecordForm::kOutlier;
  return geometry.index_dtype == DType::kInt8 ? RecordForm::kNarrow : RecordForm::kHalf;
}

// The scalars of an 8-bit record of kind moment, per KV head.
struct alignas(16) RecordTrailer {
  float max_norm;     // M
  float mu_scale;     // p
  float mu_error;     // e
  float sigma_scale;  // 2^x
};

// The steps of a record of kind outlier, per KV head: bits of float16.
struct alignas(4) OutlierTrailer {
  uint16_t step;          // A
  uint16_t outlier_step;  // B
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
        swizzled(SupportsTensorCores(head_dim, block_size, 1, geometry.dtype) ||
                 HasWideHeads(head_dim, block_size, 1, geometry.dtype)),
        form(FormOf(geometry)) {}

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
    const int32_t per_element = form == RecordForm::kHalf ? 4 : form == RecordForm::kNarrow ? 2 : 3;
    return static_cast<size_t>(kv_head) * head_dim * per_element;
  }
  ETA_HOST_DEVICE size_t Sigma(int32_t kv_head) const {
    return Mu(kv_head) + static_cast<size_t>(head_dim) * (form == RecordForm::kHalf ? 2 : 1);
  }
  // kOutlier.
  ETA_HOST_DEVICE size_t Outlier(int32_t kv_head) const {
    return Mu(kv_head) + 2 * static_cast<size_t>(head_dim);
  }
  ETA_HOST_DEVICE size_t Scalars(int32_t kv_head) const {
    return Mu(num_kv_heads) + static_cast<size_t>(kv_head) * scalar_bytes();
  }
  ETA_HOST_DEVICE int32_t scalar_bytes() const { return form == RecordForm::kNarrow ? 16 : 4; }
  ETA_HOST_DEVICE size_t VTotal(int32_t kv_head) const {
    return (Scalars(num_kv_heads) + 15) / 16 * 16 + static_cast<size_t>(kv_head) * head_dim * 4;
  }

  int32_t head_dim;
  int32_t block_size;
  int32_t num_kv_heads;
  int32_t element_bytes;
  int32_t chunk_elements;  // elements in 16 bytes
  bool swizzled;
  RecordForm form;
};

// The sum of a sequence's values up to the end of a block in `records`, for one KV head: [d].
ETA_HOST_DEVICE float* ValueTotal(const KvTile& tile, std::byte* records, int32_t block,
                                  int32_t kv_head) {
  return reinterpret_cast<float*>(records + static_cast<size_t>(block) * tile.record_bytes() +
                                  tile.VTotal(kv_head));
}
ETA_HOST_DEVICE const float* ValueTotal(const KvTile& tile, const std::byte* records, int32_t block,
                                        int32_t kv_head) {
  return reinterpret_cast<const float*>(records + static_cast<size_t>(block) * tile.record_bytes() +
                                        tile.VTotal(kv_head));
}

}  // namespace eta::cuda
