// The row-layers of one step that are measured against full attention, and what was measured
// (eta-semantics.md, "What is counted"). Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "engine/model/model.h"

namespace eta {

// One decode row in one layer. Mass and error are means over query heads.
struct ShadowRow {
  int32_t layer = 0;
  int32_t row = 0;     // of the step
  size_t member = 0;   // whose row it is, as the caller counts
  int32_t kv_len = 0;  // T
  float mass = 0.0f;   // share of full attention's softmax on the keys that were attended to
  float error = 0.0f;  // |o - o_full| / |o_full|
};

class ShadowRows {
 public:
  ShadowRows(int32_t num_layers, int32_t num_query_heads);

  void Clear();
  // False: it is there already.
  bool Add(const ShadowRow& row);
  bool empty() const { return rows_.empty(); }
  size_t size() const { return rows_.size(); }
  // Keys of all row-layers: the sum of T.
  int64_t keys() const { return keys_; }

  // For ForwardOutputs, until the next Add or Clear; empty where there are no rows.
  std::span<const ShadowLayer> Layers();
  // After the step was finished: fills in mass and error. Both are NaN where a broken model made
  // them so.
  void Read();
  // Ascending by layer, then row.
  std::span<const ShadowRow> rows() const { return rows_; }
  // Null: it is not among them.
  const ShadowRow* Find(int32_t layer, int32_t row) const;

 private:
  size_t num_query_heads_;
  std::vector<ShadowRow> rows_;
  int64_t keys_ = 0;
  std::vector<int32_t> indices_;  // of rows_, in their order
  std::vector<float> mass_;       // [rows_.size(), HQ]
  std::vector<float> error_;      // likewise
  std::vector<ShadowLayer> layers_;
};

}  // namespace eta
