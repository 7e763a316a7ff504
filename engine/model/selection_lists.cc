#include "engine/model/selection_lists.h"

#include <algorithm>

namespace eta {

int64_t ListCapacity(int32_t max_context, int32_t block_size) {
  return int64_t{max_context} / block_size + 1;
}

int64_t ListBytesPerRow(int32_t num_kv_heads, int32_t max_context, int32_t block_size) {
  constexpr int64_t kBytesPerBlock = 2 * sizeof(uint32_t);
  return num_kv_heads * ListCapacity(max_context, block_size) * kBytesPerBlock;
}

int64_t MaskWords(int32_t max_context, int32_t block_size) {
  return (ListCapacity(max_context, block_size) + 63) / 64;
}

int64_t MaskBytesPerRow(int32_t num_query_heads, int32_t max_context, int32_t block_size) {
  return num_query_heads * MaskWords(max_context, block_size) *
         static_cast<int64_t>(sizeof(uint64_t));
}

int32_t MaxDecodeRows(const ModelConfig& config, int32_t max_context, int32_t max_running,
                      int32_t max_rows) {
  const int64_t fit =
      kMaxListBytes / ListBytesPerRow(config.num_kv_heads, max_context, config.block_size);
  return static_cast<int32_t>(std::clamp<int64_t>(fit, max_running, max_rows));
}

}  // namespace eta
