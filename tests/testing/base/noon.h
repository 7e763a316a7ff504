// A time of day for tests that move their clock themselves.
#pragma once

#include <chrono>

#include "engine/base/clock.h"

namespace eta {

inline constexpr Clock::time_point kNoon{std::chrono::hours(12)};

}  // namespace eta
