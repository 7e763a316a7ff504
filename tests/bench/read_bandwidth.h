// The bandwidth of a CUDA device's memory for a kernel that does nothing but read.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace eta::bench {

// Bytes/s: the median of several passes over `bytes` bytes (fewer if the device has less free), far
// more than its caches hold. Errors are CUDA's.
absl::StatusOr<double> DeviceReadBandwidth(int device, size_t bytes);

}  // namespace eta::bench
