#include "engine/batching/estimates/read_cost.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace eta {
namespace {

constexpr double kCostFading = 255.0 / 256.0;  // of a step's weight, with each further step
constexpr double kPull = 0.003;  // towards what is taken until steps have told, for its own share
constexpr double kLeastCost = 0.05;  // of a cost, of what was taken first
constexpr double kMostCost = 50.0;

}  // namespace

void ReadCost::Measure(const StepLoad& load, std::chrono::nanoseconds duration) {
  const double seconds = std::chrono::duration<double>(duration).count();
  if (!(seconds > 0.0)) return;
  const Vector read = {weight_bytes_, static_cast<double>(load.first_bytes),
                       load.more_rows * weight_bytes_ + static_cast<double>(load.more_bytes)};
  for (int i = 0; i < kUnknowns; ++i) {
    for (int j = 0; j < kUnknowns; ++j) {
      products_[i][j] = products_[i][j] * kCostFading + read[i] * read[j];
    }
    seconds_[i] = seconds_[i] * kCostFading + read[i] * seconds;
  }
  Solve();
}

// Ridge regression: least squares with a pull towards kFirst times the seconds of a byte, by
// Gaussian elimination without pivots, since the matrix is positive definite.
void ReadCost::Solve() {
  double over = 0.0;
  double under = 0.0;
  for (int i = 0; i < kUnknowns; ++i) {
    over += kFirst[i] * seconds_[i];
    for (int j = 0; j < kUnknowns; ++j) under += kFirst[i] * products_[i][j] * kFirst[j];
  }
  const double of_byte = over / under;
  std::array<Vector, kUnknowns> matrix = products_;
  Vector right = seconds_;
  for (int i = 0; i < kUnknowns; ++i) {
    const double pull = kPull * std::max(products_[i][i], 1e-6 * products_[0][0]);
    matrix[i][i] += pull;
    right[i] += pull * kFirst[i] * of_byte;
  }
  for (int i = 0; i < kUnknowns; ++i) {
    for (int k = i + 1; k < kUnknowns; ++k) {
      const double factor = matrix[k][i] / matrix[i][i];
      for (int j = i; j < kUnknowns; ++j) matrix[k][j] -= factor * matrix[i][j];
      right[k] -= factor * right[i];
    }
  }
  Vector solved;
  for (int i = kUnknowns - 1; i >= 0; --i) {
    double rest = right[i];
    for (int j = i + 1; j < kUnknowns; ++j) rest -= matrix[i][j] * solved[j];
    solved[i] = rest / matrix[i][i];
  }
  for (int i = 0; i < kUnknowns; ++i) {
    const double cost = solved[i] / of_byte;
    costs_[i] = std::isfinite(cost)
                    ? kFirst[i] * std::clamp(cost / kFirst[i], kLeastCost, kMostCost)
                    : kFirst[i];
  }
}

}  // namespace eta
