// Long-lived memory of the CPU backend: weights and buffers.
#pragma once

#include <cstddef>
#include <memory>

namespace eta::cpu {

struct FreeHostMemory {
  void operator()(std::byte* data) const;
};
using HostMemory = std::unique_ptr<std::byte[], FreeHostMemory>;

// `bytes` of zeros on a cache-line boundary, from 2 MiB on in huge pages where the system has them;
// null if there is no such memory. All pages are taken now: a limit that is too low shows at start,
// not in a step.
HostMemory AllocateHostMemory(size_t bytes);

}  // namespace eta::cpu
