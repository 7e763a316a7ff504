// How short of memory the server is, in two levels. Pure: shares of the limit in, levels out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace eta {

enum class Pressure : uint8_t {
  kNone,
  kShort,     // no new calls, but those that an operator needs
  kCritical,  // and the answers that hold the most end, one after another
};
inline constexpr int kPressures = 3;
// "none", "short", "critical".
inline std::string_view Name(Pressure pressure) {
  constexpr std::string_view kNames[kPressures] = {"none", "short", "critical"};
  return kNames[static_cast<size_t>(pressure)];
}

class PressureLevel {
 public:
  static constexpr double kHysteresis = 0.02;  // so far below a level's share it is left again

  // `max_fraction`, (0, 1]: the share of the limit at which memory is short. Where it is critical
  // follows from it: of 0.95 it is 0.98.
  explicit PressureLevel(double max_fraction);

  // Where things stand once `fraction` of the limit is used. Up at once, by both levels if need be;
  // down only from well below.
  Pressure Update(double fraction);

  double share(Pressure level) const { return shares_[static_cast<size_t>(level)]; }

 private:
  std::array<double, kPressures> shares_;  // ascending; of kNone 0
  Pressure at_ = Pressure::kNone;
};

}  // namespace eta
