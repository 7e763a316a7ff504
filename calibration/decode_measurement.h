// The cost and the quality of decoding, measured on known text: means over the decode rows of any
// number of passes, with equal weight for every row.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/request/pass.h"

namespace eta {

struct DecodeMeasurement {
  double perplexity = 0.0;       // of the tokens after these rows; 0: no loss was asked for
  double head_density = 1.0;     // eta-semantics.md, "What is counted"; full attention: 1
  double union_density = 1.0;    // likewise
  std::optional<double> recall;  // absent: not asked for; 1 if no key was above its threshold
  int64_t rows = 0;              // the rows behind the perplexity, or else behind the densities
  std::vector<float> losses;     // behind the perplexity: nats of each token, in order
  friend bool operator==(const DecodeMeasurement&, const DecodeMeasurement&) = default;
};

// Adds up outcomes in the order of the calls.
class DecodeMeter {
 public:
  void Add(const PassOutcome& outcome);
  DecodeMeasurement Measurement() const;

 private:
  double loss_ = 0.0;
  std::vector<float> losses_;
  double head_ = 0.0;
  double union_ = 0.0;
  int64_t rows_ = 0;
  int64_t above_ = 0;
  int64_t above_admitted_ = 0;
  bool recall_ = false;
};

}  // namespace eta
