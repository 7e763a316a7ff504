// Densities of decode rows over the last ten minutes. Not thread-safe; times must not go back by
// more than a slot.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>

#include "engine/base/clock.h"

namespace eta {

// Sums over decode rows: divided by their number they are means.
struct DensitySums {
  int64_t decode_rows = 0;
  double head_density = 0.0;
  double union_density = 0.0;
  int64_t context = 0;  // T
  // Over row-layers that were measured against full attention:
  int64_t shadow_row_layers = 0;
  double mass_kept = 0.0;
  double output_error = 0.0;

  void Add(const DensitySums& other);
};

struct RecentAttention {
  DensitySums all;
  DensitySums like_measured;  // those of them at contexts at which the profile was measured
};

class AttentionWindow {
 public:
  // Rows are forgotten slot by slot: a sum spans the last ten minutes, or up to a slot less.
  static constexpr std::chrono::seconds kSlot{30};
  static constexpr size_t kSlots = 20;

  void Add(const DensitySums& row, bool like_measured, Clock::time_point now);
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
