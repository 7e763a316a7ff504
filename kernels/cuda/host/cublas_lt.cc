#include "kernels/cuda/host/cublas_lt.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "kernels/cuda/host/shared_library.h"

namespace eta::cuda {
namespace {

// First the loader's search path, then the toolkit of this build.
constexpr const char* kFiles[] = {"libcublasLt.so.13", "libcublasLt.so.12", "libcublasLt.so",
                                  ETA_CUDA_LIBRARY_DIR "/libcublasLt.so"};

absl::StatusOr<CublasLt> LoadTable() {
  SharedLibrary library(kFiles);
  if (!library.found()) {
    return absl::UnavailableError(absl::StrCat("backend: cuda: cuBLASLt is missing; looked for ",
                                               absl::StrJoin(kFiles, ", ")));
  }
  CublasLt table = {};
  library.Find("cublasLtCreate", table.Create);
  library.Find("cublasLtDestroy", table.Destroy);
  library.Find("cublasLtGetStatusString", table.GetStatusString);
  library.Find("cublasLtGetVersion", table.GetVersion);
  library.Find("cublasLtMatmul", table.Matmul);
  library.Find("cublasLtMatmulAlgoGetHeuristic", table.MatmulAlgoGetHeuristic);
  library.Find("cublasLtMatmulDescCreate", table.MatmulDescCreate);
  library.Find("cublasLtMatmulDescDestroy", table.MatmulDescDestroy);
  library.Find("cublasLtMatmulDescSetAttribute", table.MatmulDescSetAttribute);
  library.Find("cublasLtMatmulPreferenceCreate", table.MatmulPreferenceCreate);
  library.Find("cublasLtMatmulPreferenceDestroy", table.MatmulPreferenceDestroy);
  library.Find("cublasLtMatmulPreferenceSetAttribute", table.MatmulPreferenceSetAttribute);
  library.Find("cublasLtMatrixLayoutCreate", table.MatrixLayoutCreate);
  library.Find("cublasLtMatrixLayoutDestroy", table.MatrixLayoutDestroy);
  library.Find("cublasLtMatrixLayoutSetAttribute", table.MatrixLayoutSetAttribute);
  if (!library.missing().empty()) {
    return absl::UnavailableError(
        absl::StrCat("backend: cuda: cuBLASLt has no function ", library.missing()));
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
