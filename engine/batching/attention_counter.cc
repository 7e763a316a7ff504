#include "engine/batching/attention_counter.h"

#include <numeric>

#include "engine/model/kv_cache.h"

namespace eta {

AttentionCounter::AttentionCounter(const ModelConfig& config, const KvGeometry& geometry)
    : num_query_heads_(config.num_query_heads),
      num_kv_heads_(config.num_kv_heads),
      token_bytes_(KvTokenBytes(geometry)),
      key_bytes_(KvKeyBytes(geometry)),
      record_bytes_(IndexRecordBytes(geometry)),
      layers_(static_cast<size_t>(config.num_layers)) {}

RowReads AttentionCounter::AddLayer(int32_t layer_idx, const RowCounts& row, int32_t kv_len,
                                    const Screening& screening) {
  const auto attended =
      std::accumulate(row.tokens_attended, row.tokens_attended + num_query_heads_, int64_t{0});
  const auto read = std::accumulate(row.tokens_read, row.tokens_read + num_kv_heads_, int64_t{0});
  const auto values = std::accumulate(row.values_read, row.values_read + num_kv_heads_, int64_t{0});
  Layer& layer = layers_[layer_idx];
  layer.head_density +=
      static_cast<double>(attended) / (static_cast<double>(kv_len) * num_query_heads_);
  layer.union_density += static_cast<double>(read) / (static_cast<double>(kv_len) * num_kv_heads_);
  keys_attended_ += attended;
  keys_eligible_ += static_cast<int64_t>(kv_len) * num_query_heads_;
  keys_read_ += read;
  values_read_ += values;
  keys_cached_ += static_cast<int64_t>(kv_len) * num_kv_heads_;
  records_read_ += static_cast<int64_t>(screening.records) * num_kv_heads_;
  keys_scored_ += static_cast<int64_t>(screening.keys) * num_kv_heads_;
  return {.keys_attended = attended, .keys_read = read, .values_read = values};
}

void AttentionCounter::AddPrefill(const PrefillReads& reads) {
  prefill_.rows += reads.rows;
  prefill_.keys_attended += reads.keys_attended;
  prefill_.keys_eligible += reads.keys_eligible;
  prefill_.density += reads.density;
}

RowReads AttentionCounter::AddFallback(int32_t kv_len) {
  const int64_t keys = static_cast<int64_t>(kv_len) * static_cast<int64_t>(layers_.size());
  ++fallback_rows_;
  fallback_keys_ += keys * num_kv_heads_;
  return {.keys_attended = keys * num_query_heads_,
          .keys_read = keys * num_kv_heads_,
          .values_read = keys * num_kv_heads_};
}

AttentionStatistics AttentionCounter::Statistics(bool with_layers) const {
  AttentionStatistics statistics;
  statistics.decode_rows = rows_;
  statistics.keys_attended = keys_attended_;
  statistics.keys_eligible = keys_eligible_;
  statistics.keys_read = keys_read_;
  statistics.values_read = values_read_;
  statistics.keys_cached = keys_cached_;
  statistics.kv_bytes_read = keys_read_ * key_bytes_ + values_read_ * (token_bytes_ - key_bytes_);
  statistics.kv_bytes_dense = keys_cached_ * token_bytes_;
  statistics.index_bytes_read = records_read_ * record_bytes_ + keys_scored_ * key_bytes_;
  statistics.fallback_rows = fallback_rows_;
  statistics.fallback_kv_bytes_read = fallback_keys_ * token_bytes_;
  statistics.prefill_rows = prefill_.rows;
  statistics.prefill_keys_attended = prefill_.keys_attended;
  statistics.prefill_keys_eligible = prefill_.keys_eligible;
  if (prefill_.rows > 0) {
    statistics.prefill_density = prefill_.density / static_cast<double>(prefill_.rows);
  }
  if (shadow_row_layers_ > 0) {
    const auto measured = static_cast<double>(shadow_row_layers_);
    statistics.shadow_row_layers = shadow_row_layers_;
    statistics.mass_kept = mass_ / measured;
    statistics.output_error = error_ / measured;
  }
  if (rows_ == 0) return statistics;
  const auto rows = static_cast<double>(rows_);
  for (const Layer& layer : layers_) {
    statistics.head_density += layer.head_density / rows;
    statistics.union_density += layer.union_density / rows;
    if (with_layers) {
      statistics.layers.push_back({layer.head_density / rows, layer.union_density / rows});
    }
  }
  statistics.head_density /= static_cast<double>(layers_.size());
  statistics.union_density /= static_cast<double>(layers_.size());
  return statistics;
}

}  // namespace eta
