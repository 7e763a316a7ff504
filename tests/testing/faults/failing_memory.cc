#include "tests/testing/faults/failing_memory.h"

#include <gtest/gtest.h>
#include <sqlite3.h>

#include <atomic>
#include <cstdlib>
#include <new>

#include "tests/testing/process/long_run.h"

namespace eta::testing {
namespace {

std::atomic<int64_t> countdown = 0;  // above 0: armed
std::atomic<bool> of_this_thread = false;
std::atomic<bool> failed = false;
thread_local bool armed_here = false;

bool Fails() {
  if (countdown.load(std::memory_order_relaxed) <= 0 || armed_here != of_this_thread) return false;
  if (countdown.fetch_sub(1, std::memory_order_relaxed) != 1) return false;
  failed = true;
  return true;
}

void* Allocate(size_t size, size_t alignment) {
  if (Fails()) return nullptr;
  if (alignment <= __STDCPP_DEFAULT_NEW_ALIGNMENT__) return std::malloc(size != 0 ? size : 1);
  return std::aligned_alloc(alignment, (size + alignment - 1) / alignment * alignment);
}

void* AllocateOrThrow(size_t size, size_t alignment = __STDCPP_DEFAULT_NEW_ALIGNMENT__) {
  void* const memory = Allocate(size, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

sqlite3_mem_methods sqlite_methods;

// Installs the hooks before anything of SQLite runs.
const bool sqlite_hooked = [] {
  sqlite3_config(SQLITE_CONFIG_GETMALLOC, &sqlite_methods);
  sqlite3_mem_methods failing = sqlite_methods;
  failing.xMalloc = [](int size) { return Fails() ? nullptr : sqlite_methods.xMalloc(size); };
  failing.xRealloc = [](void* memory, int size) {
    return Fails() ? nullptr : sqlite_methods.xRealloc(memory, size);
  };
  return sqlite3_config(SQLITE_CONFIG_MALLOC, &failing) == SQLITE_OK;
}();

}  // namespace

void FailAllocation(int64_t n, Threads threads) {
  failed = false;
  armed_here = true;
  of_this_thread = threads == Threads::kThisOne;
  countdown = n;
}

bool EndFailedAllocation() {
  countdown = 0;
  armed_here = false;
  return failed.exchange(false);
}

int64_t NextToFail(int64_t n) {
  return n + 1 + n / Rounds(8, 4096);
}

int64_t FailEachAllocation(const std::function<absl::Status()>& work) {
  EXPECT_TRUE(sqlite_hooked);
  int64_t runs = 0;
  for (int64_t n = 1;; n = NextToFail(n)) {
    absl::Status status;
    FailAllocation(n, Threads::kThisOne);
    try {
      status = work();
    } catch (const std::bad_alloc&) {
      status = absl::ResourceExhaustedError("");
    }
    if (!EndFailedAllocation()) {
      EXPECT_TRUE(status.ok()) << status << ", with nothing failing";
      return runs;
    }
    ++runs;
    EXPECT_TRUE(status.ok() || absl::IsResourceExhausted(status))
        << status << " where allocation " << n << " fails";
  }
}

}  // namespace eta::testing

// NOLINTBEGIN(misc-new-delete-overloads,cert-dcl54-cpp)
void* operator new(size_t size) {
  return eta::testing::AllocateOrThrow(size);
}
void* operator new[](size_t size) {
  return eta::testing::AllocateOrThrow(size);
}
void* operator new(size_t size, std::align_val_t alignment) {
  return eta::testing::AllocateOrThrow(size, static_cast<size_t>(alignment));
}
void* operator new[](size_t size, std::align_val_t alignment) {
  return eta::testing::AllocateOrThrow(size, static_cast<size_t>(alignment));
}
void* operator new(size_t size, const std::nothrow_t&) noexcept {
  return eta::testing::Allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void* operator new[](size_t size, const std::nothrow_t&) noexcept {
  return eta::testing::Allocate(size, __STDCPP_DEFAULT_NEW_ALIGNMENT__);
}
void operator delete(void* memory) noexcept {
  std::free(memory);
}
void operator delete[](void* memory) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete(void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
void operator delete[](void* memory, size_t, std::align_val_t) noexcept {
  std::free(memory);
}
// NOLINTEND(misc-new-delete-overloads,cert-dcl54-cpp)
