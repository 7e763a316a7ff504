#include "service/process/pressure_level.h"

#include <algorithm>
#include <cstddef>

namespace eta {

PressureLevel::PressureLevel(double max_fraction)
    : shares_{0.0, max_fraction, max_fraction + (1.0 - max_fraction) * 0.6} {}

Pressure PressureLevel::Update(double fraction) {
  auto at = static_cast<size_t>(at_);
  while (at + 1 < kPressures && fraction > shares_[at + 1]) ++at;
  // A hysteresis wider than the share itself would never let go of it.
  while (at > 0 && fraction <= std::max(shares_[at] - kHysteresis, shares_[at] / 2)) --at;
  at_ = static_cast<Pressure>(at);
  return at_;
}

}  // namespace eta
