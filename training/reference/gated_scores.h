// One row of gated attention: scores, gates and logits of query t, head h.
#pragma once

#include <vector>

#include "training/attention_params.h"

namespace eta::training::reference {

struct GatedScores {
  std::vector<double> score;  // S, of keys 0 .. t
  std::vector<double> gate;   // m; 0 with kNone
  std::vector<double> logit;  // S~; -infinity of a key that the query does not attend to
};

// Query `t` of sequence `b`, query head `h`.
GatedScores ScoreRow(const AttentionForwardParams& params, int32_t b, int32_t h, int32_t t);

// The largest gate of a whole block, and where it is: of `heads` rows of the same query, the first
// of the equal ones.
struct LargestGate {
  double gate;
  int32_t head;  // index into the rows
  int32_t key;
};
LargestGate LargestOfBlock(const std::vector<GatedScores>& rows, int32_t block);

}  // namespace eta::training::reference
