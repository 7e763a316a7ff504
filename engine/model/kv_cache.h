// The memory of the KV cache: one pool of blocks. A block is a page of the layers of one group
// (layer_groups.h); a model whose layers are of one kind has one, and its blocks are of all layers.
// All of it is reserved at start. BlockPool says who holds which block. Not thread-safe.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/model/layer_groups.h"
#include "engine/model/model_config.h"
#include "kernels/backend.h"

namespace eta {

class KvCache {
 public:
  // Bytes of one block over the layers of a group, tiles and records.
  static absl::StatusOr<int64_t> BytesPerBlock(const Backend& backend, const ModelConfig& config,
                                               const KvGeometry& geometry);

  static absl::StatusOr<std::unique_ptr<KvCache>> Create(Backend& backend,
                                                         const ModelConfig& config,
                                                         const KvGeometry& geometry,
                                                         int32_t num_blocks);

  const KvGeometry& geometry() const { return geometry_; }
  const LayerGroups& groups() const { return groups_; }
  int32_t num_blocks() const { return num_blocks_; }
  size_t bytes() const;
  KvLayerView layer(int32_t layer_idx) const;

 private:
  struct Slot {
    std::unique_ptr<Buffer> tiles;
    std::unique_ptr<Buffer> records;
  };

  KvGeometry geometry_;
  int32_t num_blocks_ = 0;
  LayerGroups groups_;
  std::vector<Slot> slots_;  // [groups_.slots]
};

// The cache's shape for a model: its block size and kind of index, envelope of sub-blocks of 4 at
// b >= 16. `index_dtype` absent: what records of that kind usually hold, float16 or, of outlier
// records, int8.
KvGeometry MakeKvGeometry(const ModelConfig& config, DType dtype,
                          std::optional<DType> index_dtype = {});

// What attention and screening read, for one KV head: K and V of a token with the exponents of
// their scales, if there are any; K alone; a record's part that bounds a block, without its V
// total.
int64_t KvTokenBytes(const KvGeometry& geometry);
int64_t KvKeyBytes(const KvGeometry& geometry);
int64_t IndexRecordBytes(const KvGeometry& geometry);

}  // namespace eta
