#include "engine/model/kv_cache.h"

#include <utility>

#include "engine/base/status_macros.h"

namespace eta {

absl::StatusOr<int64_t> KvCache::BytesPerBlock(const Backend& backend, const ModelConfig& config,
                                               const KvGeometry& geometry) {
  ASSIGN_OR_RETURN(const KvLayout layout, backend.Layout(geometry));
  return static_cast<int64_t>(layout.tile_bytes + layout.record_bytes) * GroupLayers(config).slots;
}

absl::StatusOr<std::unique_ptr<KvCache>> KvCache::Create(Backend& backend,
                                                         const ModelConfig& config,
                                                         const KvGeometry& geometry,
                                                         int32_t num_blocks) {
  ASSIGN_OR_RETURN(const KvLayout layout, backend.Layout(geometry));
  auto cache = std::make_unique<KvCache>();
  cache->geometry_ = geometry;
  cache->num_blocks_ = num_blocks;
  cache->groups_ = GroupLayers(config);
  for (int32_t i = 0; i < cache->groups_.slots; ++i) {
    ASSIGN_OR_RETURN(auto tiles,
                     backend.Allocate(layout.tile_bytes * static_cast<size_t>(num_blocks)));
    ASSIGN_OR_RETURN(auto records,
                     backend.Allocate(layout.record_bytes * static_cast<size_t>(num_blocks)));
    cache->slots_.push_back({std::move(tiles), std::move(records)});
  }
  return cache;
}

size_t KvCache::bytes() const {
  size_t bytes = 0;
  for (const Slot& slot : slots_) bytes += slot.tiles->size() + slot.records->size();
  return bytes;
}

KvLayerView KvCache::layer(int32_t layer_idx) const {
  const LayerGroups::Place place = groups_.places[static_cast<size_t>(layer_idx)];
  const Slot& slot = slots_[static_cast<size_t>(place.slot)];
  return {.tiles = slot.tiles->data(), .records = slot.records->data(), .table = place.group};
}

KvGeometry MakeKvGeometry(const ModelConfig& config, DType dtype,
                          std::optional<DType> index_dtype) {
  const bool outlier = config.index == IndexKind::kOutlier;
  return {.num_kv_heads = config.num_kv_heads,
          .head_dim = config.head_dim,
          .block_size = config.block_size,
          .sub_block = config.block_size >= 16 ? 4 : 0,
          .dtype = dtype,
          .index = config.index,
          .index_dtype = index_dtype.value_or(outlier ? DType::kInt8 : DType::kFloat16)};
}

int64_t KvTokenBytes(const KvGeometry& geometry) {
  return 2 * KvKeyBytes(geometry);
}

int64_t KvKeyBytes(const KvGeometry& geometry) {
  const int64_t exponent = geometry.dtype == DType::kFloat8E4M3 ? 1 : 0;
  return geometry.head_dim * static_cast<int64_t>(SizeOf(geometry.dtype)) + exponent;
}

int64_t IndexRecordBytes(const KvGeometry& geometry) {
  if (geometry.index == IndexKind::kOutlier) {
    // mu, sigma and the outlier; then the steps A and B, float16.
    return 3 * geometry.head_dim * static_cast<int64_t>(SizeOf(geometry.index_dtype)) + 4;
  }
  // mu and sigma; then M, with 8 bits also p, e and 2^x.
  const int64_t scalars = geometry.index_dtype == DType::kInt8 ? 4 : 1;
  return 2 * geometry.head_dim * static_cast<int64_t>(SizeOf(geometry.index_dtype)) +
         scalars * static_cast<int64_t>(sizeof(float));
}

}  // namespace eta
