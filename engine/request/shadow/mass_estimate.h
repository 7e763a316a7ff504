// What measured row-layers say of the mass that attention keeps, and when that is too little.
#pragma once

#include <cmath>
#include <cstdint>

namespace eta {

// The mean lies under a bound if it does by two of its standard errors, over at least kLeast
// row-layers. So one bad row does not count, whatever it kept, and rows that differ much have to be
// more.
class MassEstimate {
 public:
  static constexpr int64_t kLeast = 16;
  static constexpr double kErrors = 2.0;

  void Add(double mass) {
    ++count_;
    sum_ += mass;
    squares_ += mass * mass;
  }
  void Add(const MassEstimate& other) {
    count_ += other.count_;
    sum_ += other.sum_;
    squares_ += other.squares_;
  }

  int64_t count() const { return count_; }
  bool LiesUnder(double bound) const {
    if (count_ < kLeast) return false;
    const auto n = static_cast<double>(count_);
    const double mean = sum_ / n;
    const double variance = std::fmax(0.0, (squares_ - n * mean * mean) / (n - 1.0));
    return mean + kErrors * std::sqrt(variance / n) < bound;
  }

 private:
  int64_t count_ = 0;
  double sum_ = 0.0;
  double squares_ = 0.0;
};

}  // namespace eta
