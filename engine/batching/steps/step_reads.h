// What a step's rows read, told to their requests once the step is done.
#pragma once

#include "engine/batching/steps/running_step.h"

namespace eta {

// Counts the rows of a finished step that count, and in its report what those of drafts read that
// did not hold. `observed`: the rows are listed for the observer too. Returns the step's work with
// the bytes that it read.
ShadowSampler::Work CountReads(RunningStep& step, bool observed);

}  // namespace eta
