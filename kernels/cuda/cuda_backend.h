// NVIDIA GPUs from compute capability 8.0 on: products by cuBLASLt in 16 or 32 bits, 16-bit or
// 32-bit KV, decode steps replayed as CUDA graphs.
//
// Ops are recorded and run together, by Launch() or Finish(); Upload() and Download() run what was
// recorded before them. Steps are padded to a few sizes (Backend::PaddedRows).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace eta::cuda {

// Unavailable, saying why, without a driver, a device or cuBLASLt; InvalidArgument for a `compute`
// that is not a floating-point type of at most 32 bits.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(int device, DType compute);

}  // namespace eta::cuda
