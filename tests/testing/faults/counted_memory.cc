#include "tests/testing/faults/counted_memory.h"

#include <malloc.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <new>

namespace eta::testing {
namespace {

std::atomic<int64_t> in_use = 0;
std::atomic<int64_t> peak = 0;

void* Counted(void* memory) {
  if (memory == nullptr) throw std::bad_alloc();
  const auto size = static_cast<int64_t>(malloc_usable_size(memory));
  const int64_t now = in_use.fetch_add(size, std::memory_order_relaxed) + size;
  int64_t before = peak.load(std::memory_order_relaxed);
  while (now > before && !peak.compare_exchange_weak(before, now, std::memory_order_relaxed)) {
  }
  return memory;
}

void Free(void* memory) {
  if (memory == nullptr) return;
  in_use.fetch_sub(static_cast<int64_t>(malloc_usable_size(memory)), std::memory_order_relaxed);
  std::free(memory);
}

}  // namespace

int64_t PeakBytes(const std::function<void()>& work) {
  const int64_t before = in_use;
  peak = before;
  work();
  return peak - before;
}

}  // namespace eta::testing

void* operator new(size_t size) {
  return eta::testing::Counted(std::malloc(std::max<size_t>(size, 1)));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  void* const memory = std::malloc(std::max<size_t>(size, 1));
  return memory == nullptr ? nullptr : eta::testing::Counted(memory);
}
void* operator new(size_t size, std::align_val_t alignment) {
  const auto step = static_cast<size_t>(alignment);
  return eta::testing::Counted(
      std::aligned_alloc(step, (std::max<size_t>(size, 1) + step - 1) / step * step));
}
void operator delete(void* memory) noexcept {
  eta::testing::Free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  eta::testing::Free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  eta::testing::Free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  eta::testing::Free(memory);
}
