// How a run is getting on, in a line.
#pragma once

#include <cstdint>
#include <string>

#include "training/progress/step_record.h"

namespace eta::training {

// "step 120 of 1000: loss 3.214, heads 0.41, blocks 0.63, 812K tokens/s, 18 min left"
std::string ProgressText(const StepRecord& record, int64_t steps);
// "step 500: perplexity 12.02 full, 12.05 sparse at union 0.27, needles 12 and 12 of 12"; of a
// model that the server does not run "... 12.02 as trained", with what native sparse attention
// reads
std::string EvaluationText(const EvaluationRecord& record);

}  // namespace eta::training
