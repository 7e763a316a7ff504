// The cost and the quality of decoding, measured on known text: means over the decode rows of any
// number of passes, with equal weight for every row.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/request/pass.h"

namespace eta {

// Share of full attention's softmax on the keys that heads attended to.
struct RetainedMass {
  double mean = 0.0;  // over rows, layers and query heads
  double p1 = 0.0;    // 1st percentile over rows and layers, of means over query heads; to 1e-4
  std::vector<float> rows;  // behind the mean: of each row, in order
  friend bool operator==(const RetainedMass&, const RetainedMass&) = default;
};

// KL(full || this) of the next token's distribution (solvers/divergence.h).
struct MeasuredDivergence {
  double nats = 0.0;        // mean per token
  std::vector<float> rows;  // behind the mean: of each row of the sample, in order
  int block = 1;            // rows of a block of its interval
  friend bool operator==(const MeasuredDivergence&, const MeasuredDivergence&) = default;
};

struct DecodeMeasurement {
  double perplexity = 0.0;           // of the tokens after these rows; 0: no loss was asked for
  double head_density = 1.0;         // eta-semantics.md, "What is counted"; full attention: 1
  double union_density = 1.0;        // likewise
  std::optional<double> recall;      // absent: not asked for; 1 if no key was above its threshold
  int64_t rows = 0;                  // the rows behind the perplexity, or else behind the densities
  std::vector<float> losses;         // behind the perplexity: nats of each token, in order
  std::optional<RetainedMass> mass;  // absent: not asked for
  std::optional<MeasuredDivergence> divergence;  // likewise, and of full attention
  friend bool operator==(const DecodeMeasurement&, const DecodeMeasurement&) = default;
};

// Adds up outcomes in the order of the calls.
class DecodeMeter {
 public:
  void Add(const PassOutcome& outcome);
  DecodeMeasurement Measurement() const;

 private:
  void AddMass(const PassOutcome& outcome);
  std::optional<RetainedMass> Mass() const;

  double loss_ = 0.0;
  std::vector<float> losses_;
  AttentionSums attention_;
  int64_t above_ = 0;
  int64_t above_admitted_ = 0;
  bool recall_ = false;
  std::vector<float> row_masses_;
  std::vector<int64_t> mass_bins_;  // rows and layers, by their mass; empty: no mass was measured
};

}  // namespace eta
