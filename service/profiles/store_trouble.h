// Whether the profile store is known not to answer. A request that can go on without the store asks
// this before it waits. Not thread-safe.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <optional>

#include "absl/status/status.h"
#include "engine/base/clock.h"

namespace eta {

// UNAVAILABLE (STORE_UNAVAILABLE): there is no answer yet.
absl::Status StoreIsSlow();

class StoreTrouble {
 public:
  static constexpr size_t kReaders = 2;                 // threads that read
  static constexpr std::chrono::seconds kBelieved{10};  // a failure is news for so long
  static constexpr std::chrono::seconds kRetry{1};

  // A read that takes longer than `patience` is trouble.
  explicit StoreTrouble(std::chrono::milliseconds patience) : patience_(patience) {}

  // A reader begins a read, and ends it with OK or with the store's own trouble.
  void Begin(size_t reader, Clock::time_point now) { reads_[reader] = now; }
  void End(size_t reader, const absl::Status& trouble, Clock::time_point now);

  // OK, or why no answer is to be expected now.
  absl::Status At(Clock::time_point now) const;
  // Whether somebody should find out by a read if the trouble is over: once in kRetry.
  bool ShouldRetry(Clock::time_point now);

 private:
  const std::chrono::milliseconds patience_;
  std::array<std::optional<Clock::time_point>, kReaders> reads_;  // when those began that run
  absl::Status failure_;                                          // of the newest read
  Clock::time_point failed_;
  std::optional<Clock::time_point> retried_;
};

}  // namespace eta
