// The right results of decode rows over repeated content, computed on the host: the thresholds for
// a wanted density, the counts, and the exact output of single heads at any context length. Rows
// have thresholds of their own and the SiLU gate, or relative thresholds and no gate.
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

// What decides which blocks rows read.
struct OperatingPoint {
  std::vector<float> thresholds;  // [rows, HQ]
  float relative_c = 0.0f;        // where they are relative
};

class Oracle {
 public:
  // `records` [content block, HKV] are those that the backend wrote; `queries` are [rows, HQ, d].
  // All arguments must outlive this object.
  Oracle(const KvContent& content, const AttentionOptions& options,
         std::span<const BlockRecord> records, int32_t num_query_heads,
         std::span<const SequencePlace> sequences, std::span<const float> queries,
         cpu::Workers& workers);

  // The point at which the union density is as near to `wanted` as possible. With thresholds of
  // their own all heads admit the same share of their blocks, and no bound is nearer to its
  // threshold than clearance().
  OperatingPoint PointFor(double wanted) const;
  // The point with constant `c`. REQUIRES: relative thresholds.
  OperatingPoint PointAt(float c) const;
  // Whether counts are right: exact, but that a block may be read or not if relative thresholds
  // make it a tie in float32.
  bool Agrees(const ExpectedCounts& got, std::span<const float> thresholds, bool admit_all) const;

  // Counts of rows, also of admit_all rows, for which thresholds do not matter.
  ExpectedCounts Count(std::span<const float> thresholds, bool admit_all) const;
  double UnionDensity(const ExpectedCounts& counts) const;
  double HeadDensity(const ExpectedCounts& counts) const;

  // Output [d] of one row and query head, in double precision.
  std::vector<float> Output(int32_t row, int32_t head, std::span<const float> thresholds,
                            bool admit_all) const;

 private:
  // The most that float32 rounding moves a bound. With an 8-bit index also what a float16 value of
  // the record does that rounds the other way.
  float clearance() const {
    return content_.geometry().index_dtype == DType::kInt8 ? 1e-3f : 1e-4f;
  }
  int32_t group() const { return num_query_heads_ / content_.geometry().num_kv_heads; }
  const float* Bounds(int32_t row, int32_t head) const {
    return bounds_.data() + (static_cast<size_t>(row) * static_cast<size_t>(num_query_heads_) +
                             static_cast<size_t>(head)) *
                                static_cast<size_t>(content_.num_blocks());
  }
  // For each full block, whether a head admits it.
  std::vector<bool> Admitted(int32_t row, int32_t head, float threshold, bool admit_all) const;
  // For each full block, whether a head attends to it: it or, with shared reads, one of its group.
  std::vector<bool> Attended(int32_t row, int32_t head, std::span<const float> thresholds,
                             bool admit_all) const;
  bool AlwaysRead(int32_t block, int32_t full_blocks) const;
  std::vector<float> ThresholdsAt(double share) const;
  double Score(int32_t row, int32_t head, int32_t token) const;  // of a content token
  // Lhat. `terms`: of every content block.
  float RowMass(int32_t row, int32_t head, std::span<const float> terms) const;

  const KvContent& content_;
  AttentionOptions options_;
  int32_t num_query_heads_;
  float softmax_scale_;
  std::span<const SequencePlace> sequences_;
  std::span<const float> queries_;
  cpu::Workers& workers_;
  std::vector<float> bounds_;      // [rows, HQ, content block]; or masses
  std::vector<float> sorted_;      // the same, descending
  std::vector<float> row_masses_;  // [rows, HQ], Lhat, where thresholds are relative
};

}  // namespace eta::bench
