// A linear predictor of thresholds out of queries and keys of one layer: for every row and head the
// log-sum-exp of its scores plus a constant, the one with which keys at or above the threshold hold
// a given share of the attention. A predictor that aims there loses less than one that aims at each
// row's own share.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace eta::training {

struct FitShape {
  int32_t num_query_heads = 0;  // HQ
  int32_t num_kv_heads = 0;     // HKV
  int32_t head_dim = 0;         // d

  size_t query_dim() const {
    return static_cast<size_t>(num_query_heads) * static_cast<size_t>(head_dim);
  }
  size_t key_dim() const {
    return static_cast<size_t>(num_kv_heads) * static_cast<size_t>(head_dim);
  }
};

struct LinearThresholds {
  std::vector<float> weight;  // [HQ, HQ d]
  std::vector<float> bias;    // [HQ]
};

// Rows are added sequence by sequence; memory does not grow with them. Not thread-safe.
class ThresholdFit {
 public:
  // `rows_per_sequence`: that are looked at, evenly spread, at most. `threads`: at a time.
  ThresholdFit(const FitShape& shape, int32_t rows_per_sequence, int threads);

  // q [T, HQ d] and k [T, HKV d] of one sequence, after RoPE.
  void Add(std::span<const float> q, std::span<const float> k);

  // Ridge regression where a layer's queries have few enough dimensions; else the mean over rows.
  // REQUIRES: a row was added. 0 < mass < 1.
  LinearThresholds Solve(double mass) const;

 private:
  // Of one row and head: log-sum-exp of its scores, which the histogram gets too.
  double Scores(std::span<const float> query, std::span<const float> keys, size_t head,
                size_t count, std::vector<double>& scores);
  double Offset(size_t head, double mass) const;

  FitShape shape_;
  int32_t rows_per_sequence_;
  int threads_;
  bool regress_;
  double rows_ = 0.0;
  std::vector<double> products_;   // [HQ d + 1, HQ d + 1]: of queries, 1 last
  std::vector<double> targets_;    // [HQ d + 1, HQ]: of queries and log-sum-exps
  std::vector<double> histogram_;  // [HQ, bins]: attention by score minus log-sum-exp
};

}  // namespace eta::training
