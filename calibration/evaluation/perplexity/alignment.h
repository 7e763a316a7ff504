// How far what a model computes sparsely is from what it computes in full, row by row (the paper's
// tables and equations of residual stream alignment).
#pragma once

#include <span>

namespace eta {

struct VectorAlignment {
  double cosine = 0.0;  // S_cos; 0 if either vector is 0
  double shift = 0.0;   // E_l2 = |full - sparse| / |full|; 0 if |full| is 0
};

struct LogitAlignment {
  double cosine = 0.0;     // of the logits
  double kl = 0.0;         // KL(full || sparse) of their softmax, nats
  bool same_best = false;  // the most likely token is the same; lowest id on a tie
};

// log sum exp; minus infinity of nothing.
double LogSumExp(std::span<const double> logits);

// REQUIRES: spans of equal length, not empty.
VectorAlignment AlignVectors(std::span<const float> full, std::span<const float> sparse);
LogitAlignment AlignLogits(std::span<const float> full, std::span<const float> sparse);

}  // namespace eta
