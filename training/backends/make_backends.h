// Makes the training backends of a job by their name: the one place that knows all of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "training/backend.h"

namespace eta::training {

struct TrainingBackendOptions {
  std::string name = "cpu";
  int num_threads = 0;  // cpu; 0: as many as usable_cpus.h says
  int num_devices = 1;  // cuda: the first so many devices of the host, one rank each
};

// The backends of one job, rank 0 first. NOT_FOUND, listing the backends of this build, for an
// unknown name. UNAVAILABLE, with the reason, if a device or its libraries are missing.
absl::StatusOr<std::vector<std::unique_ptr<TrainingBackend>>> MakeTrainingBackends(
    const TrainingBackendOptions& options);
std::vector<std::string> TrainingBackendNames();

}  // namespace eta::training
