// The kernel for more than kMostNarrowRows rows (packed_product.h), by the products of warpgroups.
#pragma once

#include <cstdint>

#include "kernels/cuda/host/device.h"
#include "kernels/cuda/packed/packed_args.cuh"
#include "kernels/dtype.h"

namespace eta::cuda::packed {

// Warps of a thread block that have a tile each, four warpgroups, and those that bring x, one more.
inline constexpr int kWideOwners = 16;
inline constexpr int kWideSuppliers = 4;
inline constexpr int kWideThreads = 32 * (kWideOwners + kWideSuppliers);

// Cuts K into `args.ranks` slices and launches the kernel. `args`: all but the cut, with `clusters`
// of segments of kWideOwners warps. Returns false, and does nothing, if the device has too little
// shared memory. REQUIRES: HasClusters().
bool LaunchWide(Device& device, DType dtype, int32_t clusters, Args& args);  // wide_product.cu

}  // namespace eta::cuda::packed
