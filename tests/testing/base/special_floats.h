// Numbers that are none.
#pragma once

#include <limits>

namespace eta {

inline constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
inline constexpr float kInfinity = std::numeric_limits<float>::infinity();

}  // namespace eta
