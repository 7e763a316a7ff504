#include "training/backend.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/input_file.h"
#include "training/cpu/cpu_backend.h"
#include "training/reference/reference_backend.h"

namespace eta::training {

std::vector<std::string> TrainingBackendNames() {
  return {"cpu", "reference"};
}

absl::StatusOr<std::vector<std::unique_ptr<TrainingBackend>>> MakeTrainingBackends(
    const TrainingBackendOptions& options) {
  std::vector<std::unique_ptr<TrainingBackend>> backends;
  if (options.name == "cpu") {
    backends.push_back(cpu::MakeBackend(options.num_threads));
  } else if (options.name == "reference") {
    backends.push_back(reference::MakeBackend());
  } else {
    return absl::NotFoundError(absl::StrCat("backend: no ", Quoted(options.name), ", only ",
                                            absl::StrJoin(TrainingBackendNames(), ", ")));
  }
  if (options.num_devices != 1) {
    return absl::InvalidArgumentError(
        absl::StrCat("backend: ", options.name, " has one device, not ", options.num_devices));
  }
  return backends;
}

}  // namespace eta::training
