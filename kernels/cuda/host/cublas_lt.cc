#include "kernels/cuda/host/cublas_lt.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"

namespace eta::cuda {
namespace {

// First the loader's search path, then the toolkit of this build.
constexpr const char* kFiles[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                  ETA_CUDA_LIBRARY_DIR "/libcublasLt.so"};

absl::StatusOr<CublasLt> LoadTable() {
  void* library = nullptr;
  for (const char* file : kFiles) {
    library = dlopen(file, RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) break;
  }
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("backend: cuda: cuBLASLt is missing; looked for ",
                                               absl::StrJoin(kFiles, ", ")));
  }
  std::string missing;
  const auto find = [&]<typename Function>(const char* name, Function& function) {
    function = reinterpret_cast<Function>(dlsym(library, name));
    if (function == nullptr) missing = name;
  };
  CublasLt table = {};
  find("cublasLtCreate", table.Create);
  find("cublasLtDestroy", table.Destroy);
  find("cublasLtGetStatusString", table.GetStatusString);
  find("cublasLtGetVersion", table.GetVersion);
  find("cublasLtMatmul", table.Matmul);
  find("cublasLtMatmulAlgoGetHeuristic", table.MatmulAlgoGetHeuristic);
  find("cublasLtMatmulDescCreate", table.MatmulDescCreate);
  find("cublasLtMatmulDescDestroy", table.MatmulDescDestroy);
  find("cublasLtMatmulDescSetAttribute", table.MatmulDescSetAttribute);
  find("cublasLtMatmulPreferenceCreate", table.MatmulPreferenceCreate);
  find("cublasLtMatmulPreferenceDestroy", table.MatmulPreferenceDestroy);
  find("cublasLtMatmulPreferenceSetAttribute", table.MatmulPreferenceSetAttribute);
  find("cublasLtMatrixLayoutCreate", table.MatrixLayoutCreate);
  find("cublasLtMatrixLayoutDestroy", table.MatrixLayoutDestroy);
  if (!missing.empty()) {
    return absl::UnavailableError(
        absl::StrCat("backend: cuda: cuBLASLt has no function ", missing));
  }
  return table;
}

}  // namespace

absl::StatusOr<const CublasLt*> CublasLt::Load() {
  static const absl::StatusOr<CublasLt>& table = *new absl::StatusOr<CublasLt>(LoadTable());
  if (!table.ok()) return table.status();
  return &*table;
}

}  // namespace eta::cuda
