// The log of a run: one JSON object a line, for steps and for evaluations. A run that goes on from
// a checkpoint goes on in the same file, without what had come after the checkpoint.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/files/descriptor.h"
#include "training/progress/log_lines.h"

namespace eta::training {

// Move-only. Not thread-safe.
class RunLog {
 public:
  // After step `last_step`, 0: a new run, which replaces the file. `history` becomes what the file
  // had up to there. Errors of ParseRunLog and of the system.
  static absl::StatusOr<RunLog> Open(const std::string& path, int64_t last_step,
                                     RunHistory& history);

  // Each is on its way to the disk when the call returns. Errors of the system.
  absl::Status Append(const std::string& line);

 private:
  explicit RunLog(Descriptor fd) : fd_(std::move(fd)) {}

  Descriptor fd_;
};

}  // namespace eta::training
