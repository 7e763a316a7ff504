// What operator new has given and not got back, over all threads. Link counted_memory.cc into the
// test.
#pragma once

#include <cstdint>
#include <functional>

namespace eta::testing {

// Runs `work` and returns by how many bytes, as the allocator rounds them, the memory in use rose
// above what it was before, at most.
int64_t PeakBytes(const std::function<void()>& work);

}  // namespace eta::testing
