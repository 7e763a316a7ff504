// What a step's rows read, told to their requests once the step is done.
#pragma once

#include "engine/batching/estimates/read_cost.h"
#include "engine/batching/steps/running_step.h"

namespace eta {

struct StepReads {
  ShadowSampler::Work work;  // of the step, with the bytes that it read
  StepLoad load;             // of its decode rows that count, and of those that made drafts
  bool all_counted = true;   // the others are replayed
};

// Counts the rows of a finished step that count, and in its report what others read: those of
// drafts that did not hold, and those that made drafts. `observed`: the rows that count are listed
// for the observer too.
StepReads CountReads(RunningStep& step, bool observed);

}  // namespace eta
