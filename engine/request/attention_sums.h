// What attention read, in one form from the rows of a step to Stats (eta-semantics.md, "What is
// counted" and "Sparse prefill"): a row is counted once, and added to its request, its account and
// its tenant. Integers are exact. All is of full layers: those with a window are not counted.
#pragma once

#include <cstdint>
#include <span>

#include "engine/model/model_config.h"
#include "kernels/batch.h"

namespace eta {

struct AttentionSums {
  int64_t decode_rows = 0;
  int64_t keys_attended = 0;       // admitted keys, over rows, layers and query heads
  int64_t keys_eligible = 0;       // T, likewise: what full attention would have attended
  int64_t keys_read = 0;           // over rows, layers and KV heads
  int64_t values_read = 0;         // likewise; fewer than keys where reads are confirmed
  int64_t keys_cached = 0;         // T, likewise
  double head_density_sum = 0.0;   // over rows, of the mean over layers and query heads
  double union_density_sum = 0.0;  // likewise, over KV heads
  int64_t kv_bytes_read = 0;       // keys and values
  int64_t kv_bytes_dense = 0;      // what full attention would have read for the same rows
  int64_t index_bytes_read = 0;    // IndexBytesRead, beside kv_bytes_read
  // Decode rows gone full for want of mass or by wish (min_mass, begin): nothing above counts them.
  int64_t fallback_rows = 0;
  int64_t fallback_kv_bytes_read = 0;
  // Rows of sparse prefill.
  int64_t prefill_rows = 0;
  int64_t prefill_keys_attended = 0;
  int64_t prefill_keys_eligible = 0;
  double prefill_density_sum = 0.0;
  // Row-layers that were measured against full attention, and sums over them.
  int64_t shadow_row_layers = 0;
  double mass_kept_sum = 0.0;
  double output_error_sum = 0.0;

  void Add(const AttentionSums& other);

  // Means over rows, or over row-layers; 0 where there are none.
  double head_density() const { return Mean(head_density_sum, decode_rows); }
  double union_density() const { return Mean(union_density_sum, decode_rows); }
  double prefill_density() const { return Mean(prefill_density_sum, prefill_rows); }
  double mass_kept() const { return Mean(mass_kept_sum, shadow_row_layers); }
  double output_error() const { return Mean(output_error_sum, shadow_row_layers); }

  bool operator==(const AttentionSums&) const = default;

 private:
  static double Mean(double sum, int64_t count) {
    return count == 0 ? 0.0 : sum / static_cast<double>(count);
  }
};

// One layer's densities: of a row, or summed over rows, or their means. 0 of a layer with a window.
struct LayerDensity {
  double head_density = 0.0;
  double union_density = 0.0;
};

// What the layers of one row read (kernels' AttentionCounts): a layer's counts lie `stride` rows
// after those of the layer before.
struct RowCounts {
  const int32_t* tokens_attended = nullptr;  // [HQ]
  const int32_t* tokens_read = nullptr;      // [HKV]
  const int32_t* values_read = nullptr;      // [HKV]
  int64_t stride = 1;
};

// A decode row over kv_len tokens. Adds its densities to `layers`, [L] or empty.
AttentionSums CountDecodeRow(const ModelConfig& config, const KvGeometry& geometry,
                             const AttentionOptions& options, int32_t kv_len,
                             const RowCounts& counts, std::span<LayerDensity> layers = {});
// One gone full.
AttentionSums CountFallbackRow(const ModelConfig& config, const KvGeometry& geometry,
                               int32_t kv_len);
// A row of sparse prefill; reads tokens_attended alone.
AttentionSums CountPrefillRow(const ModelConfig& config, int32_t kv_len, const RowCounts& counts);
// A row of one layer that was measured against full attention.
AttentionSums CountShadowRow(float mass, float error);

// Bytes that selection reads per layer and KV head to choose the blocks of a decode row: records of
// its full blocks, and with relative thresholds the keys of the blocks and the tail that are always
// read, which it scores. `record_bytes` is of one block's record.
int64_t IndexBytesRead(const AttentionOptions& options, const KvGeometry& geometry, int32_t kv_len,
                       int64_t record_bytes);

}  // namespace eta
