// The progress of a calibration, reported to its observer.
#pragma once

#include <chrono>
#include <cstdint>

#include "calibration/calibrate/calibrator.h"

namespace eta {

// Not thread-safe.
class CalibrationClock {
 public:
  // `observer` may be empty. It must outlive this object.
  explicit CalibrationClock(const CalibrationObserver& observer);

  void Enter(CalibrationPhase phase);
  // Sets the number of rows that the job still needs, as far as it is known.
  void Expect(int64_t rows) { rows_expected_ = rows; }
  // Begins a pass over `sequences` sequences with `rows` rows in all.
  void BeginPass(int32_t sequences, int64_t rows);
  // Reports how far the pass is.
  void Advance(int64_t rows_done, int32_t sequences_done);
  // Ends the pass.
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
  int64_t rows_done_ = 0;  // rows of the passes that have ended
  int64_t rows_expected_ = 0;
};

}  // namespace eta
