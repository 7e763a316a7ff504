// What decode rows over repeated content must give, worked out on the host: which thresholds bring
// a wanted density, what is counted, and the exact output of single heads at any context length.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/cpu/workers.h"
#include "tests/bench/eta_bench/data.h"

namespace eta::bench {

struct ExpectedCounts {
  std::vector<int32_t> tokens_attended;  // [rows, HQ]
  std::vector<int32_t> tokens_read;      // [rows, HKV]
};

class Oracle {
 public:
  // `records` [content block, HKV] as the backend wrote them; `queries` [rows, HQ, d]. Everything
  // must outlive this object. Options are AttentionOptions' defaults.
  Oracle(const KvContent& content, std::span<const BlockRecord> records, int32_t num_query_heads,
         std::span<const SequencePlace> sequences, std::span<const float> queries,
         cpu::Workers& workers);

  // Thresholds [rows, HQ] at which the union density is as near to `wanted` as can be: every head
  // admits the same share of its blocks, and no bound is nearer to its threshold than clearance().
  std::vector<float> ThresholdsFor(double wanted) const;

  // Of admit_all rows too, where thresholds play no part in what is read.
  ExpectedCounts Count(std::span<const float> thresholds, bool admit_all) const;
  double UnionDensity(const ExpectedCounts& counts) const;
  double HeadDensity(const ExpectedCounts& counts) const;

  // Output [d] of one row and query head, in double precision.
  std::vector<float> Output(int32_t row, int32_t head, float threshold, bool admit_all) const;

 private:
  // What float32 rounding may move a bound by; with an 8-bit index, what a float16 value of the
  // record that rounds the other way may.
  float clearance() const {
    return content_.geometry().index_dtype == DType::kInt8 ? 1e-3f : 1e-4f;
  }
  int32_t group() const { return num_query_heads_ / content_.geometry().num_kv_heads; }
  const float* Bounds(int32_t row, int32_t head) const {
    return bounds_.data() + (static_cast<size_t>(row) * static_cast<size_t>(num_query_heads_) +
                             static_cast<size_t>(head)) *
                                static_cast<size_t>(content_.num_blocks());
  }
  // Ordinals of the full blocks that a head admits.
  std::vector<bool> Admitted(int32_t row, int32_t head, float threshold, bool admit_all) const;
  std::vector<float> ThresholdsAt(double share) const;

  const KvContent& content_;
  int32_t num_query_heads_;
  float softmax_scale_;
  std::span<const SequencePlace> sequences_;
  std::span<const float> queries_;
  cpu::Workers& workers_;
  std::vector<float> bounds_;  // [rows, HQ, content block]
  std::vector<float> sorted_;  // the same, descending
};

}  // namespace eta::bench
