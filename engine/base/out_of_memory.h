// What a call is told that the host had no memory for.
#pragma once

#include <new>

#include "absl/status/status.h"

namespace eta {

// RESOURCE_EXHAUSTED, MEMORY_PRESSURE. Always the same status, made before memory is short: a copy
// of it allocates nothing. Any thread.
const absl::Status& OutOfMemory();

// What `work` returns, a Status or a StatusOr; OutOfMemory() where it throws std::bad_alloc.
template <typename Work>
auto CatchOutOfMemory(const Work& work) -> decltype(work()) {
  try {
    return work();
  } catch (const std::bad_alloc&) {
    return OutOfMemory();
  }
}

}  // namespace eta
