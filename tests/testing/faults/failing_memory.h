// An allocator that fails on command, in place of the process's own: operator new, and what SQLite
// allocates. Link failing_memory.cc into the test. For one test at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace eta::testing {

enum class Threads { kThisOne, kOthers };

// From now on the allocation number `n`, counted from 1 over these threads, fails, once.
void FailAllocation(int64_t n, Threads threads);
// Allocations succeed again. True: one had failed.
bool EndFailedAllocation();

// Runs `work` again and again, each time with another allocation of this thread failing, until none
// does. Every run must end with OK, with RESOURCE_EXHAUSTED or with std::bad_alloc; the last, in
// which nothing failed, with OK. Where there are many allocations, some are passed over: usually
// all but every 8th part of the number, in a long run every 4096th. Returns how many failed.
int64_t FailEachAllocation(const std::function<absl::Status()>& work);

// The next number to fail after `n`.
int64_t NextToFail(int64_t n);

}  // namespace eta::testing
