// KL(first || other) of the next token's distribution: how far a way of attending is from the first
// one, which is full attention as a rule. A ratio of perplexities falls below 1 where leaving out
// keys happens to help, and so flatters what prunes; the divergence does not.
//
// It is in nats per token, and exp(KL) - 1 is an increase of perplexity: the one on text that the
// first way itself would write.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace eta {

// Of the softmax of both, nats; at least 0. REQUIRES: spans of equal length, not empty.
double KlDivergence(std::span<const float> first, std::span<const float> other);

// Logits of the first way of attending, at chosen rows.
struct KeptLogits {
  int32_t vocab_size = 0;
  std::vector<float> rows;  // [rows, V]
};

// The divergence of each row from what was kept of it.
class KeptDivergence {
 public:
  // `first` must outlive this. With `is_first` rows are kept there, and nothing is measured.
  KeptDivergence(KeptLogits& first, bool is_first) : first_(first), is_first_(is_first) {}

  // The next rows, [n, V]. REQUIRES: not more in all than were kept by now.
  void Add(std::span<const float> logits);
  const std::vector<float>& rows() const { return rows_; }  // nats of each row, in order

 private:
  KeptLogits& first_;
  const bool is_first_;
  std::vector<float> rows_;
};

}  // namespace eta
