// Decode rows over one layer's cache, on any backend: selection and attention as ops of a step.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/backend.h"
#include "kernels/params/selection.h"
#include "tests/bench/eta_bench/data.h"

namespace eta::bench {

inline constexpr float kGateBeta = 5.0f;

class DecodeRows {
 public:
  // Makes one row per sequence, at its last position. `queries` are [rows, HQ, d]. The sequences'
  // block tables must outlive this object. Rows with relative thresholds have no gate.
  DecodeRows(Backend& backend, const KvGeometry& geometry, const AttentionOptions& options,
             int32_t num_query_heads, std::span<const SequencePlace> sequences,
             std::span<const float> queries);

  // Thresholds are [rows, HQ].
  void SetThresholds(std::span<const float> thresholds);
  void SetRelative(float c);
  void SetAdmitAll(bool admit_all);

  void Plan();
  void Select(const KvLayerView& layer);  // after Plan()
  void Attend(const KvLayerView& layer);  // after Select()
  // Runs a step of its own: plan, select, attend, finish.
  void RunOnce(const KvLayerView& layer);

  // Counts of the last finished step.
  const std::vector<int32_t>& tokens_attended() const { return tokens_attended_; }  // [rows, HQ]
  const std::vector<int32_t>& tokens_read() const { return tokens_read_; }          // [rows, HKV]
  const std::vector<int32_t>& values_read() const { return values_read_; }          // [rows, HKV]
  std::vector<float> Output();                                                      // [rows, HQ, d]

 private:
  TensorView View(const Buffer& buffer, int64_t cols, DType dtype) const;

  Backend& backend_;
  KvGeometry geometry_;
  int32_t num_query_heads_;
  float softmax_scale_;
  Gate gate_;
  std::vector<SequenceRows> rows_;
  std::vector<int32_t> tokens_;
  int64_t padded_rows_;  // rows that the backend prefers for its tensors
  std::unique_ptr<Buffer> queries_, thresholds_, out_;
  std::unique_ptr<Buffer> blocks_, heads_, counts_, rescued_;
  BlockSelection selection_;
  std::vector<int32_t> tokens_attended_, tokens_read_, values_read_;
};

}  // namespace eta::bench
