#include "engine/batching/estimates/slot_rate.h"

#include <algorithm>

namespace eta {
namespace {

using std::chrono::milliseconds;
using Seconds = std::chrono::duration<double>;

constexpr std::chrono::seconds kRateLifetime{30};
constexpr double kKept = 0.8;  // weight of what was measured before, at each measurement

}  // namespace

void SlotRate::Measure(int32_t before, int32_t after, bool full, Clock::time_point at) {
  const int32_t freed = taken_ - before;
  if (full_since_ && freed > 0) {
    time_ = kKept * time_ + (at - *full_since_);
    slots_ = kKept * slots_ + freed;
    full_since_ = at;
  }
  taken_ = after;
  if (!full) {
    if (full_since_) full_until_ = at;
    full_since_.reset();
  } else if (!full_since_) {
    if (at - full_until_ > kRateLifetime) time_ = Seconds(slots_ = 0.0);
    full_since_ = at;
  }
}

Seconds SlotRate::interval() const {
  return full_since_ && slots_ > 0.0 ? time_ / slots_ : Seconds(0.0);
}

milliseconds SlotRate::Predict(int64_t ahead, int32_t taken, Clock::time_point now) const {
  const Seconds each = interval();
  const int64_t needed = ahead + 1 - std::max(0, taken_ - taken);
  if (each.count() == 0.0 || needed <= 0) return milliseconds(0);
  const Seconds passed = std::min<Seconds>(now - *full_since_, each);
  return std::chrono::duration_cast<milliseconds>(static_cast<double>(needed) * each - passed);
}

}  // namespace eta
