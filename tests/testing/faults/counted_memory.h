// Memory that operator new has given and not got back, over all threads. Link counted_memory.cc
// into the test.
#pragma once

#include <cstdint>
#include <functional>

namespace eta::testing {

// Runs `work` and returns the peak of its memory: the most bytes in use above those before, as the
// allocator rounds them.
int64_t PeakBytes(const std::function<void()>& work);

}  // namespace eta::testing
