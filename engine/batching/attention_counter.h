// Adds up what the decode rows of one request read (eta-semantics.md, "What is counted"). Not
// thread-safe.
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
};

class AttentionCounter {
 public:
  AttentionCounter(const ModelConfig& config, const KvGeometry& geometry);

  // Adds one decode row in one layer: tokens attended [HQ] and tokens read [HKV], of kv_len tokens;
  // `screened` is the number of block records that selection read. Returns the sums over heads.
  RowReads AddLayer(int32_t layer_idx, const int32_t* tokens_attended, const int32_t* tokens_read,
                    int32_t kv_len, int32_t screened);
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
  int64_t record_bytes_;  // IndexRecordBytes()
  int64_t rows_ = 0;
  int64_t keys_attended_ = 0;  // as in AttentionStatistics
  int64_t keys_eligible_ = 0;
  int64_t keys_read_ = 0;
  int64_t keys_cached_ = 0;
  int64_t records_read_ = 0;  // summed over rows, layers and KV heads
  std::vector<Layer> layers_;
};

}  // namespace eta
