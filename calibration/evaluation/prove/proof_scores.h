// What a proof has measured: full attention, and one other way, "sparse", on the same questions.
// Counts are numbers of a log that a user may have changed: doubles, finite and below 1e15.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "calibration/solvers/interval.h"

namespace eta {

// A task says something of sparsity if full attention can do it: if its mean score is this or more.
inline constexpr double kLeastFullScore = 0.2;

// Scores [0, 1] of one task of RULER at one length, by question.
struct TaskScores {
  std::string task;
  int32_t length = 0;
  std::vector<double> full;
  std::vector<double> sparse;  // as many
};

struct TextScore {
  std::string text;
  double context = 0.0;  // tokens of a window
  double windows = 0.0;
  double tokens = 0.0;  // that were scored
  double loss = 0.0;    // full attention's, nats per token
  MeanInterval more;    // of sparse, paired; over windows
  double kl = 0.0;      // KL(full || sparse), nats
  double top_1 = 0.0;   // of the scored tokens, by sparse
  double full_top_1 = 0.0;
  double union_density = 1.0;
  double bytes_read = 1.0;
};

// One of the operator's prompts, gone on with greedily.
struct TrafficScore {
  double tokens = 0.0;  // of full attention's continuation
  double agreed = 0.0;  // before the continuations part; all of them if they never do
  // Of sparse, the continuation given: tokens that were compared, those that were its likeliest
  // too, and the sum of KL(full || sparse) in nats.
  double compared = 0.0;
  double same = 0.0;
  double kl = 0.0;
};

// Decode steps of one stream.
struct SpeedScore {
  int32_t context = 0;
  double full_ms = 0.0;    // of a step, medians over turns
  double sparse_ms = 0.0;  //
  double ratio = 0.0;      // median over turns of full's time over sparse's
};

struct ProofScores {
  std::vector<TaskScores> ruler;  // task by task, in RULER's order; of each by length
  std::vector<TextScore> texts;
  std::vector<TrafficScore> traffic;
  int64_t long_prompts = 0;  // of the operator's, left out
  std::vector<SpeedScore> speeds;
  std::string no_speed;  // why there are none
};

}  // namespace eta
