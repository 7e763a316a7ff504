// Steers the sparsity weight towards a union density: dual ascent on the constraint
// "union density <= target", in the logarithm of the weight, which keeps it positive and lets it
// move over orders of magnitude. A bound on quality may bind first: then the weight falls until the
// quality is back inside. It steers and does not judge: training/export/verdict.h does.
#pragma once

#include <cstdint>

namespace eta::training {

struct DualAscentOptions {
  double target_union = 0.25;             // (0, 1]
  double max_perplexity_increase = 0.01;  // of block-sparse over the dense original, as a share
  // At the learning rate's peak a model is above what it ends at: the bound is (1 + slack) times as
  // high then, and falls with the rate.
  double slack = 9.0;
  double initial_weight = 0.01;
  double min_weight = 1e-5;
  double max_weight = 10.0;
  // The logarithm of the weight moves by rate * log(union / target), at most max_move.
  double rate = 0.5;
  double max_move = 0.35;
};

// What decode-like, block-sparse evaluation on held-out text read.
struct DensityReading {
  double union_density = 1.0;
  double perplexity_increase = 0.0;
};

// All that a run needs to go on; plain numbers, for a state on disk.
struct DualAscentState {
  double weight = 0.0;
  int64_t readings = 0;
  DensityReading last;
};

class DualAscent {
 public:
  explicit DualAscent(const DualAscentOptions& options);
  DualAscent(const DualAscentOptions& options, const DualAscentState& state);

  double weight() const { return state_.weight; }
  const DualAscentState& state() const { return state_; }
  // `rate_share`: of the way from its end to its peak that the learning rate stands at, [0, 1]. A
  // reading that is not finite counts as one that is over the bound on quality.
  void Update(const DensityReading& reading, double rate_share);

 private:
  DualAscentOptions options_;
  DualAscentState state_;
};

}  // namespace eta::training
