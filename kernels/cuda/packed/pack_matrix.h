// Packs matrices of a checkpoint into device memory, piece by piece, so that the host holds no
// second copy of them.
#pragma once

#include <memory>
#include <span>

#include "absl/status/statusor.h"
#include "kernels/backend.h"
#include "kernels/cuda/rows/matmul.h"

namespace eta::cuda {

// Whether a stack is kept packed: some part is, none is exact, and products are of 16 bits. The
// other parts are then 16-bit parts of it.
bool KeepsPacked(std::span<const HostMatrix> parts, WeightFormat format, DType compute);

// The stack as a packed weight in memory of `backend`. InvalidArgument for more than kMostParts
// parts and for a matrix that 32-bit indices do not reach; errors of Allocate.
// REQUIRES: CheckParts(), KeepsPacked().
absl::StatusOr<std::unique_ptr<DeviceMatrix>> PackMatrix(Backend& backend,
                                                         std::span<const HostMatrix> parts,
                                                         WeightFormat format, DType compute);

}  // namespace eta::cuda
