// What a CUDA device's memory gives to a kernel that does nothing but read it.
#pragma once

#include <cstddef>

#include "absl/status/statusor.h"

namespace eta::bench {

// Bytes/s, the median of several passes over `bytes` bytes (less where the device has less free),
// far more than its caches hold. Errors are CUDA's.
absl::StatusOr<double> DeviceReadBandwidth(int device, size_t bytes);

}  // namespace eta::bench
