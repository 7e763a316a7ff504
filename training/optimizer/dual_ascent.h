// Steers the sparsity weight towards a union density: dual ascent on the constraint
// "union density <= target", in the logarithm of the weight, which keeps it positive and lets it
// move over orders of magnitude. A bound on quality may bind first: then the weight falls until the
// quality is back inside.
#pragma once

#include <cstdint>

namespace eta::training {

struct DualAscentOptions {
  double target_union = 0.25;             // (0, 1]
  double max_perplexity_increase = 0.01;  // of block-sparse over the dense original, as a share
  double initial_weight = 0.01;
  double min_weight = 1e-5;
  double max_weight = 10.0;
  // The logarithm of the weight moves by rate * log(union / target), at most max_move.
  double rate = 1.0;
  double max_move = 0.7;
  double tolerance = 0.01;  // a union up to target * (1 + tolerance) meets the target
};

// What decode-like, block-sparse evaluation on held-out text read.
struct DensityReading {
  double union_density = 1.0;
  double perplexity_increase = 0.0;
};

enum class DualAscentEnd : uint8_t {
  kSteering,       // neither yet
  kTargetReached,  // the union density is the target's, within the bound on quality
  kQualityBound,   // the bound on quality came first
};

// All that a run needs to go on; plain numbers, for a state on disk.
struct DualAscentState {
  double weight = 0.0;
  int64_t readings = 0;
  DualAscentEnd first = DualAscentEnd::kSteering;  // what came first
  DualAscentEnd now = DualAscentEnd::kSteering;    // what the last reading says
  DensityReading last;
};

class DualAscent {
 public:
  explicit DualAscent(const DualAscentOptions& options);
  DualAscent(const DualAscentOptions& options, const DualAscentState& state);

  double weight() const { return state_.weight; }
  const DualAscentState& state() const { return state_; }
  // A reading that is not finite counts as one that is over the bound on quality.
  void Update(const DensityReading& reading);

 private:
  DualAscentOptions options_;
  DualAscentState state_;
};

}  // namespace eta::training
