// Densities of decode rows over the last ten minutes. Not thread-safe; times must not go back by
// more than a slot.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "engine/base/clock.h"
#include "engine/request/attention_sums.h"

namespace eta {

// Of decode rows, and of row-layers that were measured.
struct RecentSums : AttentionSums {
  int64_t context = 0;  // T, over the rows

  void Add(const RecentSums& other) {
    AttentionSums::Add(other);
    context += other.context;
  }
};

struct RecentAttention {
  RecentSums all;
  RecentSums like_measured;  // those of them at contexts at which the profile was measured

  void Add(const RecentAttention& other) {
    all.Add(other.all);
    like_measured.Add(other.like_measured);
  }
};

class AttentionWindow {
 public:
  // Rows are forgotten slot by slot: a sum spans the last ten minutes, or up to a slot less.
  static constexpr std::chrono::seconds kSlot{30};
  static constexpr size_t kSlots = 20;

  void Add(const RecentSums& row, bool like_measured, Clock::time_point now);
  void Add(const AttentionWindow& other);
  RecentAttention Sum(Clock::time_point now) const;

 private:
  struct Slot {
    int64_t number = -1;  // of slots since the clock's epoch
    RecentAttention sums;
  };

  std::array<Slot, kSlots> slots_;
};

}  // namespace eta
