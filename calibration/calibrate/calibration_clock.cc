#include "calibration/calibrate/calibration_clock.h"

#include <algorithm>

namespace eta {
namespace {

constexpr std::chrono::milliseconds kInterval{250};

}  // namespace

CalibrationClock::CalibrationClock(const CalibrationObserver& observer)
    : observer_(observer), start_(std::chrono::steady_clock::now()), told_(start_ - kInterval) {}

void CalibrationClock::Enter(CalibrationPhase phase) {
  phase_ = phase;
  sequences_ = 0;
  sequences_done_ = 0;
  Tell();
}

void CalibrationClock::BeginPass(int32_t sequences, int64_t rows) {
  sequences_ = sequences;
  sequences_done_ = 0;
  pass_rows_ = rows;
  pass_rows_done_ = 0;
}

void CalibrationClock::Advance(int64_t rows_done, int32_t sequences_done) {
  // A pass that lost its blocks computes rows again; progress does not go backwards for that.
  pass_rows_done_ = std::clamp(rows_done, pass_rows_done_, pass_rows_);
  sequences_done_ = sequences_done;
  if (std::chrono::steady_clock::now() - told_ >= kInterval) Tell();
}

void CalibrationClock::EndPass() {
  sequences_done_ = sequences_;
  rows_done_ += pass_rows_;
  rows_expected_ = std::max<int64_t>(rows_expected_ - pass_rows_, 0);
  pass_rows_ = pass_rows_done_ = 0;
}

void CalibrationClock::Tell() {
  if (!observer_) return;
  told_ = std::chrono::steady_clock::now();
  const double seconds = std::chrono::duration<double>(told_ - start_).count();
  const auto done = static_cast<double>(rows_done_ + pass_rows_done_);
  const double rate = seconds > 0.0 ? done / seconds : 0.0;
  const auto left = static_cast<double>(std::max<int64_t>(rows_expected_ - pass_rows_done_, 0));
  observer_({.phase = phase_,
             .sequences_done = sequences_done_,
             .sequences_total = sequences_,
             .tokens_per_second = rate,
             .seconds_left = rate > 0.0 ? left / rate : 0.0});
}

}  // namespace eta
