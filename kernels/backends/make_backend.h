// Makes a backend by its name: the one place that knows all of them.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace eta {

struct BackendOptions {
  std::string name = "cpu";
  int num_threads = 0;  // cpu; 0: as many as usable_cpus.h says
  bool amx = true;      // cpu; prefill uses AMX where the machine has it
  int device = 0;       // cuda; index among the devices that the process sees
  // cuda: the type of products; weights and their inputs are rounded to it. bfloat16, float16 or
  // float32 (exact, slow). Sums are float32 in all three.
  DType compute = DType::kBFloat16;
};

// NotFound, listing the backends of this build, for an unknown name. Unavailable, with the reason,
// if the backend's device or its libraries are missing.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options);
std::vector<std::string> BackendNames();

}  // namespace eta
