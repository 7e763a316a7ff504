// The clock of deadlines and durations: it never jumps.
#pragma once

#include <chrono>

namespace eta {

using Clock = std::chrono::steady_clock;

}  // namespace eta
