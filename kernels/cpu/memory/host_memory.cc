#include "kernels/cpu/memory/host_memory.h"

#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <new>

namespace eta::cpu {
namespace {

constexpr size_t kCacheLine = 64;
// Weights are streamed and pools are read in scattered pieces. Fewer address translations save 5 %
// to 20 % of the time.
constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

void FreeHostMemory::operator()(std::byte* data) const {
  std::free(data);
}

HostMemory AllocateHostMemory(size_t bytes) {
  const size_t alignment = bytes >= kHugePage ? kHugePage : kCacheLine;
  if (bytes > std::numeric_limits<size_t>::max() - kCacheLine) return nullptr;
  // Not whole huge pages: of the weights of thousands of experts they would waste a third.
  const size_t size = std::max(kCacheLine, (bytes + kCacheLine - 1) / kCacheLine * kCacheLine);
  void* data = nullptr;
  if (posix_memalign(&data, alignment, size) != 0) return nullptr;
  if (alignment == kHugePage) madvise(data, size, MADV_HUGEPAGE);
  std::memset(data, 0, size);
  return HostMemory(static_cast<std::byte*>(data));
}

HostMemory AllocateOrThrow(size_t bytes) {
  HostMemory memory = AllocateHostMemory(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace eta::cpu
