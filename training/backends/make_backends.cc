#include "training/backends/make_backends.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "engine/base/files/input_file.h"
#include "training/cpu/cpu_backend.h"
#ifdef ETA_TRAINING_HAS_CUDA
#include "training/cuda/cuda_backend.h"
#endif
#include "training/reference/reference_backend.h"

namespace eta::training {

std::vector<std::string> TrainingBackendNames() {
#ifdef ETA_TRAINING_HAS_CUDA
  return {"cpu", "cuda", "reference"};
#else
  return {"cpu", "reference"};
#endif
}

absl::StatusOr<std::vector<std::unique_ptr<TrainingBackend>>> MakeTrainingBackends(
    const TrainingBackendOptions& options) {
#ifdef ETA_TRAINING_HAS_CUDA
  if (options.name == "cuda") return cuda::MakeBackends(options.num_devices);
#endif
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
