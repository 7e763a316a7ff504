// How far a calibration is, told to its observer.
#pragma once

#include <chrono>
#include <cstdint>

#include "calibration/calibrator.h"

namespace eta {

// Not thread-safe.
class CalibrationClock {
 public:
  // `observer` may be empty; it must outlive this.
  explicit CalibrationClock(const CalibrationObserver& observer);

  void Enter(CalibrationPhase phase);
  // Rows that the job will take from here on, as far as is known.
  void Expect(int64_t rows) { rows_expected_ = rows; }
  // A pass over `sequences`, of `rows` in all, begins ...
  void BeginPass(int32_t sequences, int64_t rows);
  // ... is so far ...
  void Advance(int64_t rows_done, int32_t sequences_done);
  // ... and is over.
  void EndPass();

 private:
  void Tell();

  const CalibrationObserver& observer_;
  const std::chrono::steady_clock::time_point start_;
  std::chrono::steady_clock::time_point told_;
  CalibrationPhase phase_ = CalibrationPhase::kCollect;
  int32_t sequences_ = 0;
  int32_t sequences_done_ = 0;
  int64_t pass_rows_ = 0;
  int64_t pass_rows_done_ = 0;
  int64_t rows_done_ = 0;  // of the passes before
  int64_t rows_expected_ = 0;
};

}  // namespace eta
