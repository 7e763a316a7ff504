#include "service/telemetry/attention_window.h"

namespace eta {
namespace {

int64_t SlotAt(Clock::time_point now) {
  return now.time_since_epoch() / AttentionWindow::kSlot;
}

void AddTo(RecentAttention& to, const RecentAttention& from) {
  to.all.Add(from.all);
  to.like_measured.Add(from.like_measured);
}

}  // namespace

void DensitySums::Add(const DensitySums& other) {
  decode_rows += other.decode_rows;
  head_density += other.head_density;
  union_density += other.union_density;
  context += other.context;
  shadow_row_layers += other.shadow_row_layers;
  mass_kept += other.mass_kept;
  output_error += other.output_error;
}

void AttentionWindow::Add(const DensitySums& row, bool like_measured, Clock::time_point now) {
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
    if (from.number == to.number) AddTo(to.sums, from.sums);
  }
}

RecentAttention AttentionWindow::Sum(Clock::time_point now) const {
  const int64_t oldest = SlotAt(now) - static_cast<int64_t>(kSlots) + 1;
  RecentAttention sum;
  for (const Slot& slot : slots_) {
    if (slot.number >= oldest) AddTo(sum, slot.sums);
  }
  return sum;
}

}  // namespace eta
