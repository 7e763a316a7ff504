// How much of the device's time background steps may have while requests run. It follows from how
// long recent steps took, and from nothing else.
//
// A background step holds up every running stream for its duration. The pacer keeps the 99th
// percentile of the time between a stream's tokens below 1.5 times what it is without such steps,
// in one of two ways:
// - Short pauses, where a step of a few rows costs little against a step of the requests. At most
//   every 4th step is a background step. Its rows cost about 0.3 of a typical step of the requests;
//   the estimate of that cost is rough.
// - Rare pauses, elsewhere. With few streams a step of one row costs nearly as much as one of four.
//   At least 255 of 256 steps are the requests', so 99 % of the times between tokens have no pause
//   in them. A pause lasts at most 0.1 s.
// Either way background steps have less than a ninth of the time that the requests' steps have.
//
// Times are in seconds. Not thread-safe: the step thread's.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace eta {

// Seconds of a step by its rows, fixed + slope * rows: least squares over recent steps.
class StepCost {
 public:
  void Measure(double rows, double seconds);
  // A copy with one more measurement, of little weight.
  StepCost With(double rows, double seconds) const;

  double Of(double rows) const;
  // The most rows that cost at most `seconds`; not bounded above where rows cost nothing.
  double RowsWithin(double seconds) const;

 private:
  void Add(double weight, double rows, double seconds);
  double Slope() const;
  double Fixed() const;

  double weight_ = 0.0;
  double rows_ = 0.0;
  double seconds_ = 0.0;
  double rows_rows_ = 0.0;
  double rows_seconds_ = 0.0;
};

class BackgroundPacer {
 public:
  static constexpr int32_t kMinRows = 4;
  static constexpr int32_t kMinRowsAlone = 64;
  static constexpr int32_t kStepsBetween = 3;
  static constexpr int32_t kRareStepsBetween = 255;
  static constexpr double kGentle = 0.3;        // of a typical step
  static constexpr double kLongestPause = 0.1;  // seconds, unless kMinRows take longer
  static constexpr double kShare = 1.0 / 9.0;   // of the requests' time

  void MeasureForeground(double seconds);
  // `beside_foreground`: requests had rows to compute meanwhile.
  void MeasureBackground(int32_t rows, double seconds, bool beside_foreground);

  // How many rows, at most `max_rows`, the next step may give to background work while requests
  // have rows to compute; 0: it is theirs.
  int32_t Allowance(int32_t max_rows) const;
  // The same while there are no requests. A request that comes has to wait for the end of the step,
  // so the step lasts about kLongestPause; it has at least kMinRowsAlone rows, or it would waste
  // the device.
  int32_t AllowanceAlone(int32_t max_rows) const;

 private:
  static constexpr size_t kRecent = 31;

  // The cost of background steps, at least that of the shortest steps of the requests.
  StepCost Cost() const;
  double Typical() const;  // median

  StepCost background_;
  int32_t most_rows_ = 0;  // of any background step measured
  std::array<double, kRecent> foreground_{};
  size_t num_foreground_ = 0;
  int64_t steps_since_ = 0;
  double earned_ = 0.0;  // seconds that background steps may take; below 0: owed
};

}  // namespace eta
