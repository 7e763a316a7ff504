#include "kernels/backends/make_backend.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cpu/cpu_backend.h"
#include "kernels/reference/reference_backend.h"

#ifdef ETA_HAS_CUDA
#include "kernels/cuda/cuda_backend.h"
#endif

namespace eta {

absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(const BackendOptions& options) {
  if (options.name == "cpu") return cpu::MakeBackend(options.num_threads, options.amx);
  if (options.name == "reference") return reference::MakeBackend();
#ifdef ETA_HAS_CUDA
  if (options.name == "cuda") return cuda::MakeBackend(options.device, options.compute);
#endif
  return absl::NotFoundError(absl::StrCat("backend: this build has ",
                                          absl::StrJoin(BackendNames(), ", "), ", not '",
                                          options.name, "'"));
}

std::vector<std::string> BackendNames() {
#ifdef ETA_HAS_CUDA
  return {"cpu", "cuda", "reference"};
#else
  return {"cpu", "reference"};
#endif
}

}  // namespace eta
