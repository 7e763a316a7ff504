#include "service/telemetry/attention_window.h"

namespace eta {
namespace {

int64_t SlotAt(Clock::time_point now) {
  return now.time_since_epoch() / AttentionWindow::kSlot;
}

}  // namespace

void AttentionWindow::Add(const RecentSums& row, bool like_measured, Clock::time_point now) {
  const int64_t number = SlotAt(now);
  Slot& slot = slots_[static_cast<size_t>(number) % kSlots];
  if (slot.number != number) slot = {.number = number, .sums = {}};
  slot.sums.all.Add(row);
  if (like_measured) slot.sums.like_measured.Add(row);
}

void AttentionWindow::Add(const AttentionWindow& other) {
  for (size_t i = 0; i < kSlots; ++i) {
    const Slot& from = other.slots_[i];
    Slot& to = slots_[i];
    if (from.number > to.number) to = {.number = from.number, .sums = {}};
    if (from.number == to.number) to.sums.Add(from.sums);
  }
}

RecentAttention AttentionWindow::Sum(Clock::time_point now) const {
  const int64_t oldest = SlotAt(now) - static_cast<int64_t>(kSlots) + 1;
  RecentAttention sum;
  for (const Slot& slot : slots_) {
    if (slot.number >= oldest) sum.Add(slot.sums);
  }
  return sum;
}

}  // namespace eta
