// What is done without as memory runs short, rung by rung. Pure: shares of the limit in, rungs out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string_view>

namespace eta {

enum class Pressure : uint8_t {
  kNone,
  kShortQueue,   // fewer requests may wait
  kNoCalibrate,  // and no new calibrations
  kNoGenerate,   // and no new calls, but those that an operator needs
  kEndStreams,   // and the answers that hold the most end, one after another
};
inline constexpr int kPressures = 5;
// "none", "short_queue", "no_calibrate", "no_generate", "end_streams".
inline std::string_view Name(Pressure pressure) {
  constexpr std::string_view kNames[kPressures] = {"none", "short_queue", "no_calibrate",
                                                   "no_generate", "end_streams"};
  return kNames[static_cast<size_t>(pressure)];
}

class PressureLadder {
 public:
  static constexpr double kHysteresis = 0.02;  // so far below a rung's share it is left again

  // `max_fraction`, (0, 1]: the share of the limit at which new calls are refused; the other rungs
  // follow from it: of 0.95 they are 0.85, 0.92 and 0.98.
  explicit PressureLadder(double max_fraction);

  // Where things stand once `fraction` of the limit is used. Up at once, by several rungs if need
  // be; down only from well below.
  Pressure Look(double fraction);

  double share(Pressure rung) const { return shares_[static_cast<size_t>(rung)]; }

 private:
  std::array<double, kPressures> shares_;  // ascending; of kNone 0
  Pressure at_ = Pressure::kNone;
};

}  // namespace eta
