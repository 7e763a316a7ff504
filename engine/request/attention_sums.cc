#include "engine/request/attention_sums.h"

#include <numeric>

#include "engine/model/kv_cache.h"

namespace eta {
namespace {

int64_t SumOf(const int32_t* counts, int32_t heads) {
  return std::accumulate(counts, counts + heads, int64_t{0});
}

// Of a model without full layers nothing is left out.
double Share(int64_t part, int64_t whole) {
  return whole == 0 ? 1.0 : static_cast<double>(part) / static_cast<double>(whole);
}

}  // namespace

void AttentionSums::Add(const AttentionSums& other) {
  decode_rows += other.decode_rows;
  keys_attended += other.keys_attended;
  keys_eligible += other.keys_eligible;
  keys_read += other.keys_read;
  values_read += other.values_read;
  keys_cached += other.keys_cached;
  head_density_sum += other.head_density_sum;
  union_density_sum += other.union_density_sum;
  kv_bytes_read += other.kv_bytes_read;
  kv_bytes_dense += other.kv_bytes_dense;
  index_bytes_read += other.index_bytes_read;
  fallback_rows += other.fallback_rows;
  fallback_kv_bytes_read += other.fallback_kv_bytes_read;
  prefill_rows += other.prefill_rows;
  prefill_keys_attended += other.prefill_keys_attended;
  prefill_keys_eligible += other.prefill_keys_eligible;
  prefill_density_sum += other.prefill_density_sum;
  shadow_row_layers += other.shadow_row_layers;
  mass_kept_sum += other.mass_kept_sum;
  output_error_sum += other.output_error_sum;
}

AttentionSums CountDecodeRow(const ModelConfig& config, const KvGeometry& geometry,
                             const AttentionOptions& options, int32_t kv_len,
                             const RowCounts& counts, std::span<LayerDensity> layers) {
  const int32_t query_heads = config.num_query_heads;
  const int32_t kv_heads = config.num_kv_heads;
  AttentionSums sums = {.decode_rows = 1};
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsFull(layer)) continue;
    const int64_t row = layer * counts.stride;
    const int64_t attended = SumOf(counts.tokens_attended + row * query_heads, query_heads);
    const int64_t read = SumOf(counts.tokens_read + row * kv_heads, kv_heads);
    sums.keys_attended += attended;
    sums.keys_read += read;
    sums.values_read += SumOf(counts.values_read + row * kv_heads, kv_heads);
    if (layers.empty()) continue;
    LayerDensity& density = layers[static_cast<size_t>(layer)];
    density.head_density += Share(attended, int64_t{kv_len} * query_heads);
    density.union_density += Share(read, int64_t{kv_len} * kv_heads);
  }
  const int64_t layer_groups = int64_t{config.num_full_layers()} * kv_heads;
  sums.keys_eligible = int64_t{kv_len} * config.num_full_layers() * query_heads;
  sums.keys_cached = kv_len * layer_groups;
  sums.head_density_sum = Share(sums.keys_attended, sums.keys_eligible);
  sums.union_density_sum = Share(sums.keys_read, sums.keys_cached);
  const int64_t value_bytes = KvTokenBytes(geometry) - KvKeyBytes(geometry);
  sums.kv_bytes_read = sums.keys_read * KvKeyBytes(geometry) + sums.values_read * value_bytes;
  sums.kv_bytes_dense = sums.keys_cached * KvTokenBytes(geometry);
  sums.index_bytes_read =
      layer_groups * IndexBytesRead(options, geometry, kv_len, IndexRecordBytes(geometry));
  return sums;
}

AttentionSums CountFallbackRow(const ModelConfig& config, const KvGeometry& geometry,
                               int32_t kv_len) {
  const int64_t keys = int64_t{kv_len} * config.num_full_layers() * config.num_kv_heads;
  return {.fallback_rows = 1, .fallback_kv_bytes_read = keys * KvTokenBytes(geometry)};
}

AttentionSums CountPrefillRow(const ModelConfig& config, int32_t kv_len, const RowCounts& counts) {
  const int64_t heads = config.num_query_heads;
  int64_t attended = 0;
  for (int32_t layer = 0; layer < config.num_layers; ++layer) {
    if (!config.IsFull(layer)) continue;
    attended +=
        SumOf(counts.tokens_attended + layer * counts.stride * heads, config.num_query_heads);
  }
  const int64_t eligible = int64_t{kv_len} * config.num_full_layers() * heads;
  return {.prefill_rows = 1,
          .prefill_keys_attended = attended,
          .prefill_keys_eligible = eligible,
          .prefill_density_sum = Share(attended, eligible)};
}

AttentionSums CountShadowRow(float mass, float error) {
  return {.shadow_row_layers = 1, .mass_kept_sum = mass, .output_error_sum = error};
}

int64_t IndexBytesRead(const AttentionOptions& options, const KvGeometry& geometry, int32_t kv_len,
                       int64_t record_bytes) {
  const int64_t full_blocks = kv_len / geometry.block_size;
  const int64_t others = full_blocks - NumAlwaysRead(options);
  if (options.admit_all || others <= 0) return 0;
  const int64_t scored = options.relative ? kv_len - others * geometry.block_size : 0;
  return full_blocks * record_bytes + scored * KvKeyBytes(geometry);
}

}  // namespace eta
