// A proof from its beginning to its measurements: the two ways of attending, what decides the
// numbers, and all parts.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/prove/proof_parts.h"

namespace eta {

struct ProofInput {
  std::string attention;  // the way that is proved
  std::string traffic;    // file of the operator's prompts; empty: none
  bool parse_special = false;
  ProofPlan plan;
};

// Full attention, and the way. InvalidArgument (`attention`) for one that runs on a cache of its
// own, or that is fitted to the text that it is judged on.
absl::StatusOr<std::vector<EvaluatedAttention>> ProofWays(TableBench& bench,
                                                          const std::string& attention);

// "relative, c -4.3; sinks 1, reads shared": how a way attends.
std::string WayInWords(const EvaluatedAttention& way);

// Errors of files that cannot be read.
absl::StatusOr<ProofKey> MakeProofKey(TableBench& bench, const EvaluatedAttention& way,
                                      const ProofInput& input);

// RULER's questions with the bench's texts as haystacks, all of them or, of the evaluation sets,
// those of prose. Errors of the texts. The bench must outlive it.
absl::StatusOr<QuestionSource> RulerQuestions(TableBench& bench);

// All parts, the short ones first. `ways`: of ProofWays.
absl::StatusOr<ProofScores> MeasureProof(TableBench& bench,
                                         const std::vector<EvaluatedAttention>& ways,
                                         const ProofInput& input, const QuestionSource& questions,
                                         ProofLog& log, ProofClock& clock);

}  // namespace eta
