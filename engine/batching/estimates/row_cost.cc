#include "engine/batching/estimates/row_cost.h"

#include <algorithm>

namespace eta {
namespace {

constexpr double kFadingPerStep = 127.0 / 128.0;  // of a step's weight, with each further step
constexpr double kLeastSpread = 0.05;  // variance of rows below which a line says nothing

}  // namespace

void RowCost::Measure(int32_t rows, std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  const auto add = [](double& sum, double term) { sum = sum * kFadingPerStep + term; };
  add(weight_, 1.0);
  add(rows_, rows);
  add(seconds_, seconds);
  add(rows_rows_, static_cast<double>(rows) * rows);
  add(rows_seconds_, rows * seconds);
}

double RowCost::value() const {
  if (weight_ <= 0.0) return kUnknown;
  const double mean_rows = rows_ / weight_;
  const double mean_seconds = seconds_ / weight_;
  const double spread = rows_rows_ / weight_ - mean_rows * mean_rows;
  if (spread < kLeastSpread) return kUnknown;
  const double slope = (rows_seconds_ / weight_ - mean_rows * mean_seconds) / spread;
  const double one = mean_seconds - slope * (mean_rows - 1.0);  // a step of one row
  if (one <= 0.0) return 1.0;
  return std::clamp(slope / one, kLeast, 1.0);
}

}  // namespace eta
