// What one row read, and sums of rows.
#include "engine/request/attention_sums.h"

#include <gtest/gtest.h>

#include <vector>

#include "engine/model/kv_cache.h"

namespace eta {
namespace {

KvGeometry Geometry(IndexKind index) {
  return {.num_kv_heads = 2,
          .head_dim = 64,
          .block_size = 64,
          .dtype = DType::kFloat16,
          .index = index,
          .index_dtype = index == IndexKind::kOutlier ? DType::kInt8 : DType::kFloat16};
}

ModelConfig Config() {
  ModelConfig config;
  config.num_layers = 2;
  config.num_query_heads = 4;
  config.num_kv_heads = 2;
  return config;
}

TEST(IndexBytesRead, CountsRecordsAndTheKeysThatRelativeThresholdsScore) {
  const KvGeometry moment = Geometry(IndexKind::kMoment);
  const KvGeometry outlier = Geometry(IndexKind::kOutlier);
  AttentionOptions options = {.pinned_blocks = 2, .sink_blocks = 1};
  const auto bytes = [&](const KvGeometry& geometry, int32_t kv_len) {
    return IndexBytesRead(options, geometry, kv_len, IndexRecordBytes(geometry));
  };
  EXPECT_EQ(bytes(moment, 640 + 5), 10 * 260);
  EXPECT_EQ(bytes(outlier, 640 + 5), 10 * 196);
  EXPECT_EQ(bytes(moment, 3 * 64 + 63), 0) << "all is read anyway";
  options.relative = true;
  EXPECT_EQ(bytes(outlier, 640 + 5), 10 * 196 + (3 * 64 + 5) * 128);
  options.relative = false;
  EXPECT_EQ(IndexBytesRead(options, moment, 640, 0), 0) << "no records";
  options.admit_all = true;
  EXPECT_EQ(bytes(moment, 640), 0);
}

// The second of three rows of a step.
TEST(AttentionSums, ARowIsSummedOverLayersAndHeads) {
  std::vector<int32_t> attended(2 * 3 * 4, 1000), read(2 * 3 * 2, 1000), values(2 * 3 * 2, 1000);
  for (int layer = 0; layer < 2; ++layer) {
    for (int head = 0; head < 4; ++head) attended[(layer * 3 + 1) * 4 + head] = 64 * (layer + 1);
    for (int head = 0; head < 2; ++head) read[(layer * 3 + 1) * 2 + head] = 128 + 64 * layer;
    for (int head = 0; head < 2; ++head) values[(layer * 3 + 1) * 2 + head] = 64 + 64 * layer;
  }
  const RowCounts counts = {&attended[4], &read[2], &values[2], 3};
  std::vector<LayerDensity> layers(2);
  const KvGeometry geometry = Geometry(IndexKind::kMoment);
  const AttentionSums row =
      CountDecodeRow(Config(), geometry, {.pinned_blocks = 1}, 640, counts, layers);
  EXPECT_EQ(row.decode_rows, 1);
  EXPECT_EQ(row.keys_attended, 4 * 64 + 4 * 128);
  EXPECT_EQ(row.keys_eligible, 640 * 2 * 4);
  EXPECT_EQ(row.keys_read, 2 * 128 + 2 * 192);
  EXPECT_EQ(row.values_read, 2 * 64 + 2 * 128);
  EXPECT_EQ(row.keys_cached, 640 * 2 * 2);
  EXPECT_EQ(row.kv_bytes_read, (row.keys_read + row.values_read) * 128);
  EXPECT_EQ(row.kv_bytes_dense, 640 * 2 * 2 * 256);
  EXPECT_EQ(row.index_bytes_read, 2 * 2 * 10 * 260);
  EXPECT_DOUBLE_EQ(row.head_density(), 0.15);
  EXPECT_DOUBLE_EQ(row.union_density(), 0.25);
  EXPECT_DOUBLE_EQ(layers[0].head_density, 0.1);
  EXPECT_DOUBLE_EQ(layers[1].union_density, 0.3);

  const AttentionSums prompt = CountPrefillRow(Config(), 640, counts);
  EXPECT_EQ(prompt.prefill_rows, 1);
  EXPECT_EQ(prompt.prefill_keys_attended, row.keys_attended);
  EXPECT_EQ(prompt.prefill_keys_eligible, row.keys_eligible);
  EXPECT_DOUBLE_EQ(prompt.prefill_density(), 0.15);

  const AttentionSums fallback = CountFallbackRow(Config(), geometry, 640);
  EXPECT_EQ(fallback,
            (AttentionSums{.fallback_rows = 1, .fallback_kv_bytes_read = row.kv_bytes_dense}));

  AttentionSums sums = row;
  sums.Add(prompt);
  sums.Add(fallback);
  sums.Add({.shadow_row_layers = 2, .mass_kept_sum = 1.5, .output_error_sum = 0.5});
  sums.Add(row);
  EXPECT_EQ(sums.decode_rows, 2);
  EXPECT_EQ(sums.keys_read, 2 * row.keys_read);
  EXPECT_DOUBLE_EQ(sums.head_density(), 0.15) << "a mean of rows";
  EXPECT_EQ(sums.prefill_rows, 1);
  EXPECT_EQ(sums.fallback_rows, 1);
  EXPECT_DOUBLE_EQ(sums.mass_kept(), 0.75);
  EXPECT_DOUBLE_EQ(sums.output_error(), 0.25);
}

TEST(AttentionSums, EveryFieldIsAdded) {
  const AttentionSums value = {.decode_rows = 1,
                               .keys_attended = 2,
                               .keys_eligible = 3,
                               .keys_read = 4,
                               .values_read = 5,
                               .keys_cached = 6,
                               .head_density_sum = 7.5,
                               .union_density_sum = 8.5,
                               .kv_bytes_read = 9,
                               .kv_bytes_dense = 10,
                               .index_bytes_read = 11,
                               .fallback_rows = 12,
                               .fallback_kv_bytes_read = 13,
                               .prefill_rows = 14,
                               .prefill_keys_attended = 15,
                               .prefill_keys_eligible = 16,
                               .prefill_density_sum = 17.5,
                               .shadow_row_layers = 18,
                               .mass_kept_sum = 19.5,
                               .output_error_sum = 20.5};
  AttentionSums sum;
  sum.Add(value);
  sum.Add(value);
  EXPECT_EQ(sum, (AttentionSums{.decode_rows = 2,
                                .keys_attended = 4,
                                .keys_eligible = 6,
                                .keys_read = 8,
                                .values_read = 10,
                                .keys_cached = 12,
                                .head_density_sum = 15.0,
                                .union_density_sum = 17.0,
                                .kv_bytes_read = 18,
                                .kv_bytes_dense = 20,
                                .index_bytes_read = 22,
                                .fallback_rows = 24,
                                .fallback_kv_bytes_read = 26,
                                .prefill_rows = 28,
                                .prefill_keys_attended = 30,
                                .prefill_keys_eligible = 32,
                                .prefill_density_sum = 35.0,
                                .shadow_row_layers = 36,
                                .mass_kept_sum = 39.0,
                                .output_error_sum = 41.0}));
}

TEST(AttentionSums, NothingHasNoMeanButZero) {
  EXPECT_EQ(AttentionSums{}.head_density(), 0.0);
  EXPECT_EQ(AttentionSums{}.mass_kept(), 0.0);
}

}  // namespace
}  // namespace eta
