// What the attention of a model's layers was given over one sequence: keys and values as the cache
// stores them, and of chosen rows the queries and thresholds. Diagnostics are computed from it on
// the host, in double precision, without the model.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/batch.h"

namespace eta {

// One chosen row in one layer.
struct RecordedRow {
  int32_t position = 0;           // t; the row attends to keys 0 .. t
  std::vector<float> q;           // [HQ, d], post-RoPE
  std::vector<float> thresholds;  // [HQ], tau_eff = tau - a
  float hidden_norm = 0.0f;       // |x_t|: of the residual stream that enters the layer

  int32_t num_keys() const { return position + 1; }  // T
};

struct RecordedLayer {
  std::vector<std::vector<float>> keys;    // [HKV][T, d], post-RoPE, as stored
  std::vector<std::vector<float>> values;  // [HKV][T, d], as stored
  std::vector<RecordedRow> rows;           // by position; the same positions in every layer
  std::vector<float> index_metric;         // KvLayerView's, of the model; or empty
  std::vector<float> index_centre;         // likewise
};

struct RecordedWindow {
  int32_t num_query_heads = 0;
  int32_t num_kv_heads = 0;
  int32_t head_dim = 0;
  float softmax_scale = 0.0f;
  Gate gate = Gate::kNone;
  float beta = 1.0f;
  std::vector<uint8_t> tempered;  // [T]: 1 where the key's gated logit is 0; shorter: 0 behind it
  std::vector<RecordedLayer> layers;

  int32_t group_size() const { return num_query_heads / num_kv_heads; }
  std::span<const float> query(const RecordedRow& row, int32_t head) const {
    return std::span(row.q).subspan(static_cast<size_t>(head) * static_cast<size_t>(head_dim),
                                    static_cast<size_t>(head_dim));
  }
  std::span<const float> value(const RecordedLayer& layer, int32_t kv_head,
                               int32_t position) const {
    return std::span(layer.values[static_cast<size_t>(kv_head)])
        .subspan(static_cast<size_t>(position) * static_cast<size_t>(head_dim),
                 static_cast<size_t>(head_dim));
  }
};

// S = s * <q, k> of keys 0 .. t for one query head, [T] (eta-semantics.md, "Gate").
std::vector<double> RowScores(const RecordedWindow& window, const RecordedLayer& layer,
                              const RecordedRow& row, int32_t head);

// The logits that full attention's softmax sees: S * sigma(beta * (S - tau_eff)), but S for the
// row's own key, which is the last one, and 0 for tempered ones. Without a gate: S. [T]
std::vector<double> GatedLogits(const RecordedWindow& window, std::span<const double> scores,
                                float threshold);

// The softmax of `logits`.
std::vector<double> Softmax(std::span<const double> logits);

// Gives every row and head the threshold log-sum-exp of its scores + c, for models that predict
// none: a key reaches it if it alone has exp(c) of the softmax ("Relative thresholds", with the
// true log-sum-exp in place of the estimated one).
void SetRelativeThresholds(RecordedWindow& window, float c);

}  // namespace eta
