// What one more decode row costs in time, in steps of one row: weights are read once for all rows,
// so it is much less than 1.
//
// A line is fitted to the durations of the last steps by their rows; old steps fade. Not
// thread-safe.
#pragma once

#include <chrono>
#include <cstdint>

namespace eta {

class RowCost {
 public:
  // A step without prompt rows.
  void Measure(int32_t rows, std::chrono::nanoseconds duration);
  // At least kLeast. Until steps of different sizes have been seen, kUnknown.
  double value() const;

  static constexpr double kLeast = 0.02;
  static constexpr double kUnknown = 0.15;

 private:
  // Weighted sums over the steps: of 1, rows, seconds, rows * rows, rows * seconds.
  double weight_ = 0.0;
  double rows_ = 0.0;
  double seconds_ = 0.0;
  double rows_rows_ = 0.0;
  double rows_seconds_ = 0.0;
};

}  // namespace eta
