// Writes matrices of a checkpoint that are not kept packed into device memory, as numbers.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/rows/matmul.h"

namespace eta::cuda {

// The stack in memory of `backend`, as numbers of the type of products; as float32 if it is exact
// and has another type. InvalidArgument where `format` would pack it; errors of Allocate. The
// caller asks the backend whether its uploads went well. REQUIRES: CheckParts().
absl::StatusOr<std::unique_ptr<DeviceMatrix>> WriteMatrix(Backend& backend,
                                                          std::span<const HostMatrix> parts,
                                                          WeightFormat format, DType compute);

}  // namespace eta::cuda
