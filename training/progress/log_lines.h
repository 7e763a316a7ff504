// The lines of a run's log, as text: a JSON object each.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "training/progress/step_record.h"

namespace eta::training {

struct RunHistory {
  std::vector<StepRecord> steps;
  std::vector<EvaluationRecord> evaluations;
};

std::string StepLine(const StepRecord& record);
std::string EvaluationLine(const EvaluationRecord& record);
// All lines, in the order of their steps.
std::string HistoryText(const RunHistory& history);

// The lines up to `last_step`. A last line without an end is left out: its writer was killed.
// INVALID_ARGUMENT, naming the line, for any other line that is not of such a log.
absl::StatusOr<RunHistory> ParseRunLog(const std::string& text, int64_t last_step);

}  // namespace eta::training
