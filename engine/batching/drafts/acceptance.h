// How many drafts of a kind hold, of late, and when to try again those that do not pay. Not
// thread-safe.
#pragma once

#include <algorithm>
#include <cstdint>

namespace eta {

class Acceptance {
 public:
  explicit Acceptance(double first) : rate_(first) {}

  // The probability that a token is right if those before it were.
  double rate() const { return rate_; }

  // What became of a draft: accepted <= drafted.
  void Observe(int32_t drafted, int32_t accepted) {
    for (int32_t i = 0; i < accepted; ++i) rate_ += kNewest * (1.0 - rate_);
    if (accepted < drafted) rate_ -= kNewest * rate_;  // those behind it were not tried
  }

  // Of a draft that would pay.
  void Pays() {
    pause_ = kFirstPause;
    skipped_ = 0;
  }
  // Of one that would not: whether to try it nevertheless, the less often the longer that is so.
  bool TriesAgain() {
    if (++skipped_ <= pause_) return false;
    pause_ = std::min(2 * pause_, kLongestPause);
    skipped_ = 0;
    return true;
  }

 private:
  static constexpr double kNewest = 1.0 / 8.0;  // the weight of the newest token in the average
  static constexpr int32_t kFirstPause = 16;    // drafts
  static constexpr int32_t kLongestPause = 512;

  double rate_;
  int32_t pause_ = kFirstPause;
  int32_t skipped_ = 0;
};

}  // namespace eta
