// An allocator that fails on command, in place of the process's own: operator new, and SQLite's
// allocations. Link failing_memory.cc into the test. For one test at a time.
#pragma once

#include <cstdint>
#include <functional>

#include "absl/status/status.h"

namespace eta::testing {

enum class Threads { kThisOne, kOthers };

// Makes allocation number `n` fail, once. The count starts at 1 now, over the given threads.
void FailAllocation(int64_t n, Threads threads);
// Lets all allocations succeed again. True if one had failed.
bool EndFailedAllocation();

// Runs `work` again and again, each time with another allocation of this thread failing, until none
// fails. Each run must end with OK, RESOURCE_EXHAUSTED or std::bad_alloc; the last run, without a
// failure, with OK. Of many allocations some are skipped: the step grows to an eighth of the
// number, in a long run to a 4096th. Returns how many runs had a failure.
int64_t FailEachAllocation(const std::function<absl::Status()>& work);

// The number of the next allocation to fail after `n`.
int64_t NextToFail(int64_t n);

}  // namespace eta::testing
