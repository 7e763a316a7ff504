// Memory of the backends that run on the host.
#pragma once

#include <cstddef>
#include <memory>

#include "absl/status/statusor.h"
#include "kernels/backend.h"

namespace eta::training {

// On a cache-line boundary. RESOURCE_EXHAUSTED if the host has none left.
absl::StatusOr<std::unique_ptr<Buffer>> AllocateHostBuffer(size_t bytes);

}  // namespace eta::training
