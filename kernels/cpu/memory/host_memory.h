// Long-lived memory of the CPU backend: weights and buffers.
#pragma once

#include <cstddef>
#include <memory>

namespace eta::cpu {

struct FreeHostMemory {
  void operator()(std::byte* data) const;
};
using HostMemory = std::unique_ptr<std::byte[], FreeHostMemory>;

// Allocates `bytes` zeros on a cache-line boundary; null if there is no such memory. From 2 MiB on
// in huge pages, if the system has them. All pages are taken now, so that a limit which is too low
// shows at the start and not in a step.
HostMemory AllocateHostMemory(size_t bytes);
// Throws std::bad_alloc instead.
HostMemory AllocateOrThrow(size_t bytes);

}  // namespace eta::cpu
