// cuBLASLt, loaded when a CUDA backend is opened: a program that was built with CUDA must start on
// machines without it, and the library is larger than everything else together.
#pragma once

#include <cublasLt.h>

#include "absl/status/statusor.h"

namespace eta::cuda {

// The functions that this backend calls, under the names of cublasLt.h without their prefix.
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

  // The library of this process, loaded by the first call and kept. Unavailable, naming the files
  // that were looked for, if there is none. Thread-safe.
  static absl::StatusOr<const CublasLt*> Load();
};

}  // namespace eta::cuda
