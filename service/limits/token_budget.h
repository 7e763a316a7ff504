// A token bucket, told by what is owed: what was debited and has not flowed in again. So a change
// of its size forgets nothing, and a bucket that owes nothing may be thrown away. Not thread-safe.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdint>

#include "engine/request/request.h"

namespace eta {

// Bytes of text that cost one token to be made into tokens, whatever becomes of the call. That is
// about a 64th of the tokens that prose has. So much prose takes 6 us: as long as a GPU computes a
// few tokens, and far shorter than a CPU computes one.
inline constexpr int64_t kTextBytesPerToken = 256;

class TokenBudget {
 public:
  struct Size {
    double tokens_per_second = 0.0;  // > 0
    int64_t burst_tokens = 0;
  };

  // Debits `tokens` if they are there.
  bool Debit(int64_t tokens, const Size& size, Clock::time_point now) {
    const double owed = Owed(size, now) + static_cast<double>(tokens);
    if (owed > static_cast<double>(size.burst_tokens)) return false;
    owed_ = owed;
    since_ = now;
    return true;
  }

  // Of what was debited. Never makes more of it than an untouched bucket has.
  void Refund(int64_t tokens, const Size& size, Clock::time_point now) {
    owed_ = std::max(0.0, Owed(size, now) - static_cast<double>(tokens));
    since_ = now;
  }

  double Owed(const Size& size, Clock::time_point now) const {
    const std::chrono::duration<double> passed = now - since_;
    return std::max(0.0, owed_ - std::max(0.0, passed.count()) * size.tokens_per_second);
  }

  // The time until the bucket has `tokens`, if nobody takes any and they fit at all.
  std::chrono::milliseconds Wait(int64_t tokens, const Size& size, Clock::time_point now) const {
    const double missing =
        Owed(size, now) + static_cast<double>(tokens) - static_cast<double>(size.burst_tokens);
    constexpr double kLongest = 1e12;  // 30 years
    return std::chrono::milliseconds(static_cast<int64_t>(
        std::ceil(std::clamp(missing * 1e3 / size.tokens_per_second, 0.0, kLongest))));
  }

  void Forget() { owed_ = 0.0; }

 private:
  double owed_ = 0.0;  // at since_; exact for integers up to 2^53, which tokens are
  Clock::time_point since_{};
};

}  // namespace eta
