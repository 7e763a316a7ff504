// The backend for NVIDIA GPUs from compute capability 8.0 on: products by cuBLASLt in 16 or 32
// bits, KV in 8, 16 or 32 bits, decode steps replayed as CUDA graphs.
//
// Ops are recorded. Launch() or Finish() runs them together; Upload() and Download() run the ops
// that were recorded before them. Steps are padded to a few sizes (Backend::PaddedRows).
#pragma once

#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace eta::cuda {

// Unavailable, with the reason, without a driver, a device or cuBLASLt. InvalidArgument for a
// `compute` that is not a floating-point type of at most 32 bits.
absl::StatusOr<std::unique_ptr<Backend>> MakeBackend(int device, DType compute);

}  // namespace eta::cuda
