// What a proof has measured, as tables with their pictures: retrieval by task and by length,
// perplexity, traffic and speed. What was not measured has no table.
#pragma once

#include <vector>

#include "calibration/evaluation/prove/proof_plan.h"
#include "calibration/evaluation/prove/proof_scores.h"
#include "calibration/evaluation/prove/proof_verdict.h"
#include "calibration/evaluation/tables/table.h"

namespace eta {

std::vector<Table> ProofTables(const ProofScores& scores, const ProofVerdict& verdict,
                               const ProofPlan& plan);

}  // namespace eta
