#include "engine/passes/background_pacer.h"

#include <algorithm>
#include <limits>

namespace eta {
namespace {

constexpr double kDecay = 0.9;     // of older steps' weight, per step
constexpr double kHint = 0.1;      // weight of an estimate beside measurements
constexpr int32_t kMaxGrowth = 4;  // a step has at most so many times the rows of any before

}  // namespace

void StepCost::Measure(double rows, double seconds) {
  for (double* sum : {&weight_, &rows_, &seconds_, &rows_rows_, &rows_seconds_}) *sum *= kDecay;
  Add(1.0, rows, seconds);
}

StepCost StepCost::With(double rows, double seconds) const {
  StepCost cost = *this;
  cost.Add(kHint, rows, seconds);
  return cost;
}

void StepCost::Add(double weight, double rows, double seconds) {
  weight_ += weight;
  rows_ += weight * rows;
  seconds_ += weight * seconds;
  rows_rows_ += weight * rows * rows;
  rows_seconds_ += weight * rows * seconds;
}

double StepCost::Slope() const {
  const double spread = weight_ * rows_rows_ - rows_ * rows_;
  if (spread <= 1e-9 * weight_ * rows_rows_) return 0.0;  // all of one size
  return std::max(0.0, (weight_ * rows_seconds_ - rows_ * seconds_) / spread);
}

double StepCost::Fixed() const {
  return weight_ == 0.0 ? 0.0 : std::max(0.0, (seconds_ - Slope() * rows_) / weight_);
}

double StepCost::Of(double rows) const {
  return Fixed() + Slope() * rows;
}

double StepCost::RowsWithin(double seconds) const {
  const double left = seconds - Fixed();
  if (left < 0.0) return 0.0;
  const double slope = Slope();
  return slope > 0.0 ? left / slope : std::numeric_limits<double>::infinity();
}

void BackgroundPacer::MeasureForeground(double seconds) {
  foreground_[num_foreground_++ % kRecent] = seconds;
  ++steps_since_;
  earned_ = std::min(earned_ + kShare * seconds, std::max(kLongestPause, Cost().Of(kMinRows)));
}

void BackgroundPacer::MeasureBackground(int32_t rows, double seconds, bool beside_foreground) {
  background_.Measure(rows, seconds);
  most_rows_ = std::max(most_rows_, rows);
  if (!beside_foreground) return;
  steps_since_ = 0;
  earned_ -= seconds;
}

StepCost BackgroundPacer::Cost() const {
  const size_t count = std::min(num_foreground_, kRecent);
  if (count == 0) return background_;
  return background_.With(1.0, *std::min_element(foreground_.begin(), foreground_.begin() + count));
}

double BackgroundPacer::Typical() const {
  const size_t count = std::min(num_foreground_, kRecent);
  if (count == 0) return 0.0;
  auto recent = foreground_;
  const auto middle = recent.begin() + count / 2;
  std::nth_element(recent.begin(), middle, recent.begin() + count);
  return *middle;
}

int32_t BackgroundPacer::AllowanceAlone(int32_t max_rows) const {
  const double rows = background_.RowsWithin(kLongestPause);
  return rows < max_rows
             ? std::clamp(static_cast<int32_t>(rows), std::min(kMinRowsAlone, max_rows), max_rows)
             : max_rows;
}

int32_t BackgroundPacer::Allowance(int32_t max_rows) const {
  if (steps_since_ < kStepsBetween) return 0;
  const int32_t least = std::min(kMinRows, max_rows);
  const StepCost cost = Cost();
  double budget = kGentle * Typical();
  if (cost.Of(least) > budget) {
    if (steps_since_ < kRareStepsBetween) return 0;
    budget = std::max(kLongestPause, cost.Of(least));
  }
  budget = std::min(budget, earned_);
  if (cost.Of(least) > budget) return 0;
  const double rows = cost.RowsWithin(budget);
  const int32_t most = std::min(max_rows, kMaxGrowth * std::max(kMinRows, most_rows_));
  return rows < most ? std::max(least, static_cast<int32_t>(rows)) : most;
}

}  // namespace eta
