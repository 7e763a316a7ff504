// cuBLASLt, loaded when a CUDA backend is opened. A program that was built with CUDA must also
// start on machines without it, and the library is larger than everything else together.
#pragma once

#include <cublasLt.h>

#include "absl/status/statusor.h"

namespace eta::cuda {

// The functions that this backend calls, with the names of cublasLt.h without their prefix.
struct CublasLt {
  decltype(&cublasLtCreate) Create;
  decltype(&cublasLtDestroy) Destroy;
  decltype(&cublasLtGetStatusString) GetStatusString;
  decltype(&cublasLtGetVersion) GetVersion;
  decltype(&cublasLtMatmul) Matmul;
  decltype(&cublasLtMatmulAlgoGetHeuristic) MatmulAlgoGetHeuristic;
  decltype(&cublasLtMatmulDescCreate) MatmulDescCreate;
  decltype(&cublasLtMatmulDescDestroy) MatmulDescDestroy;
  decltype(&cublasLtMatmulDescSetAttribute) MatmulDescSetAttribute;
  decltype(&cublasLtMatmulPreferenceCreate) MatmulPreferenceCreate;
  decltype(&cublasLtMatmulPreferenceDestroy) MatmulPreferenceDestroy;
  decltype(&cublasLtMatmulPreferenceSetAttribute) MatmulPreferenceSetAttribute;
  decltype(&cublasLtMatrixLayoutCreate) MatrixLayoutCreate;
  decltype(&cublasLtMatrixLayoutDestroy) MatrixLayoutDestroy;
  decltype(&cublasLtMatrixLayoutSetAttribute) MatrixLayoutSetAttribute;

  // The library of this process; the first call loads it, and it stays. Unavailable, naming the
  // files that were tried, if there is none. Thread-safe.
  static absl::StatusOr<const CublasLt*> Load();
};

}  // namespace eta::cuda
