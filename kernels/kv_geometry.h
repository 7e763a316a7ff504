// The shape of the KV cache and of its index, and one layer's part of it. batch.h explains the
// letters of shapes in brackets.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/dtype.h"

namespace eta {

// What a block's record says of its keys (eta-semantics.md, "Block index"). kMoment: mean,
// deviation and largest norm. kOutlier: the key that stands out, and mean and deviation of the
// others.
enum class IndexKind : uint8_t { kMoment, kOutlier };

// The shape of the KV cache, the same in every layer.
struct KvGeometry {
  int32_t num_kv_heads = 0;       // HKV
  int32_t head_dim = 0;           // d
  int32_t block_size = 64;        // b, tokens per block
  int32_t sub_block = 4;          // tokens per sub-block of the deviation's envelope; 0 = flat
  DType dtype = DType::kFloat16;  // float32, float16, bfloat16 or float8_e4m3
  IndexKind index = IndexKind::kMoment;
  // Of the vectors in a record: float16 or int8 (kMoment), int8 (kOutlier). The reference also has
  // float32 (kOutlier): records that are not rounded, for tests.
  DType index_dtype = DType::kFloat16;

  bool operator==(const KvGeometry&) const = default;
};

// Bytes of one block in one layer, all KV heads. The backend chooses the arrangement inside.
struct KvLayout {
  size_t tile_bytes = 0;    // K and V
  size_t record_bytes = 0;  // index record and the running V total
};

// One layer's part of the block pool: [num_blocks] tiles and [num_blocks] records. With them, for
// records of kOutlier, what the model's index_metric.safetensors has for the layer. Without records
// the layer has no index: AppendKv writes none, and nothing is selected there. So it is in layers
// with a window, whose blocks before the window may be gone (eta-semantics.md, "Windows").
struct KvLayerView {
  std::byte* tiles = nullptr;
  std::byte* records = nullptr;         // null: no index
  const float* index_metric = nullptr;  // C [HKV, d, d], symmetric; null: identity
  const float* index_centre = nullptr;  // mean key [HKV, d]; null: zero
  int32_t table = 0;                    // which of a sequence's block tables finds its blocks

  bool operator==(const KvLayerView&) const = default;
};

}  // namespace eta
