// The kernel of packed_product.h for one or two rows and weights of int8 and int4 alone.
#pragma once

#include <cstdint>

#include "kernels/cuda/host/device.h"
#include "kernels/cuda/packed/packed_args.cuh"
#include "kernels/dtype.h"

namespace eta::cuda::packed {

// Launches the kernel. `args`: all but the cut of K, with `tasks` clusters of segments of one tile,
// with SwiGLU of two. Returns false, and does nothing, if a part has another type, or the device
// has too little shared memory.
bool LaunchInteger(Device& device, DType dtype, int32_t tasks, Args& args);  // integer_product.cu

}  // namespace eta::cuda::packed
