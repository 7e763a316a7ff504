// Adds up what the decode rows and the rows of sparse prefill of one request read
// (eta-semantics.md, "What is counted" and "Sparse prefill"). Not thread-safe.
#pragma once

#include <cstdint>
#include <vector>

#include "engine/model/model_config.h"
#include "engine/request/request.h"
#include "kernels/params.h"

namespace eta {

// What one decode row read, over heads, or over layers and heads.
struct RowReads {
  int64_t keys_attended = 0;
  int64_t keys_read = 0;
  int64_t values_read = 0;
};

// What rows of sparse prefill attended to, over layers and query heads.
struct PrefillReads {
  int64_t rows = 0;
  int64_t keys_attended = 0;
  int64_t keys_eligible = 0;  // T
  double density = 0.0;       // summed over rows
};

// One decode row's counts in one layer (AttentionCounts).
struct RowCounts {
  const int32_t* tokens_attended;  // [HQ]
  const int32_t* tokens_read;      // [HKV]
  const int32_t* values_read;      // [HKV]
};

// What selection read of the cache to choose a row's blocks, beside the blocks, per layer and KV
// head: block records; and keys that it scored one by one, those of the blocks and the tail that a
// row of relative thresholds reads in any case.
struct Screening {
  int32_t records = 0;
  int32_t keys = 0;
};

class AttentionCounter {
 public:
  AttentionCounter(const ModelConfig& config, const KvGeometry& geometry);

  // Adds one decode row of kv_len tokens in one layer. Returns the sums over heads.
  RowReads AddLayer(int32_t layer_idx, const RowCounts& row, int32_t kv_len,
                    const Screening& screening);
  // A row-layer that was measured against full attention.
  void AddShadow(float mass, float error) {
    ++shadow_row_layers_;
    mass_ += mass;
    error_ += error;
  }
  void AddPrefill(const PrefillReads& reads);
  // A decode row of kv_len tokens gone full (min_mass, begin), in all layers. Returns
  // what it read.
  RowReads AddFallback(int32_t kv_len);
  // To be called once AddLayer was called for all layers of a row.
  void AddRow() { ++rows_; }

  AttentionStatistics Statistics(bool with_layers) const;

 private:
  struct Layer {
    double head_density = 0.0;  // sum over rows of the mean over heads
    double union_density = 0.0;
  };

  int32_t num_query_heads_;
  int32_t num_kv_heads_;
  int64_t token_bytes_;   // KvTokenBytes()
  int64_t key_bytes_;     // KvKeyBytes()
  int64_t record_bytes_;  // IndexRecordBytes()
  int64_t rows_ = 0;
  int64_t keys_attended_ = 0;  // as in AttentionStatistics
  int64_t keys_eligible_ = 0;
  int64_t keys_read_ = 0;
  int64_t values_read_ = 0;
  int64_t keys_cached_ = 0;
  int64_t records_read_ = 0;  // summed over rows, layers and KV heads
  int64_t keys_scored_ = 0;   // likewise
  std::vector<Layer> layers_;
  PrefillReads prefill_;
  int64_t fallback_rows_ = 0;
  int64_t fallback_keys_ = 0;  // summed over rows, layers and KV heads
  int64_t shadow_row_layers_ = 0;
  double mass_ = 0.0;  // summed over them
  double error_ = 0.0;
};

}  // namespace eta
