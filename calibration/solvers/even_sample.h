// An evenly spread share of things that come one after the other.
#pragma once

#include <cmath>
#include <cstdint>

namespace eta {

class EvenSample {
 public:
  explicit EvenSample(double share) : share_(share) {}  // [0, 1]

  // Whether the next one belongs to it.
  bool TakesNext() {
    const double before = std::floor(share_ * static_cast<double>(seen_));
    return std::floor(share_ * static_cast<double>(++seen_)) > before;
  }

 private:
  const double share_;
  int64_t seen_ = 0;
};

}  // namespace eta
