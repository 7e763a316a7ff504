#include "service/telemetry/latency_window.h"

#include <algorithm>
#include <bit>

namespace eta {
namespace {

int64_t NumberOf(Clock::time_point now, std::chrono::nanoseconds slot) {
  return now.time_since_epoch() / slot;
}

}  // namespace

LatencyWindow::LatencyWindow(std::chrono::seconds slot, int slots)
    : slot_(slot), slots_(static_cast<size_t>(slots)) {}

// Values below 2^kSubBits are their own bin; above, the bits after the highest one tell.
int LatencyWindow::BinOf(std::chrono::nanoseconds duration) {
  const auto value = static_cast<uint64_t>(std::max<int64_t>(duration.count(), 0));
  const int shift = std::max(static_cast<int>(std::bit_width(value)) - kSubBits - 1, 0);
  const auto bin = (static_cast<uint64_t>(shift) << kSubBits) + (value >> shift);
  return static_cast<int>(std::min<uint64_t>(bin, kBins - 1));
}

std::chrono::nanoseconds LatencyWindow::MiddleOf(int bin) {
  const int shift = std::max((bin >> kSubBits) - 1, 0);
  const int64_t low = int64_t{bin - (shift << kSubBits)} << shift;
  return std::chrono::nanoseconds(low + (int64_t{1} << shift) / 2);
}

void LatencyWindow::Observe(std::chrono::nanoseconds duration, Clock::time_point now) {
  const int64_t number = NumberOf(now, slot_);
  Slot& slot = slots_[static_cast<size_t>(number) % slots_.size()];
  if (slot.number != number) slot = {.number = number};
  ++slot.counts[static_cast<size_t>(BinOf(duration))];
}

LatencyQuantiles LatencyWindow::Quantiles(Clock::time_point now) const {
  const int64_t newest = NumberOf(now, slot_);
  std::array<int64_t, kBins> counts{};
  LatencyQuantiles quantiles;
  for (const Slot& slot : slots_) {
    if (slot.number < 0 || slot.number <= newest - static_cast<int64_t>(slots_.size())) continue;
    for (size_t i = 0; i < kBins; ++i) counts[i] += slot.counts[i];
  }
  for (const int64_t count : counts) quantiles.count += count;
  // The smallest value that so large a part does not exceed.
  const auto quantile = [&](int64_t percent) {
    const int64_t rank = std::max<int64_t>((quantiles.count * percent + 99) / 100, 1);
    int64_t below = 0;
    for (int bin = 0; bin < kBins; ++bin) {
      below += counts[static_cast<size_t>(bin)];
      if (below >= rank) return MiddleOf(bin);
    }
    return std::chrono::nanoseconds(0);
  };
  quantiles.p50 = quantile(50);
  quantiles.p95 = quantile(95);
  quantiles.p99 = quantile(99);
  return quantiles;
}

void RateWindow::Add(int64_t events, Clock::time_point now) {
  const int64_t second = NumberOf(now, std::chrono::seconds(1));
  Slot& slot = slots_[static_cast<size_t>(second) % kSeconds];
  if (slot.second != second) slot = {.second = second, .events = 0};
  slot.events += events;
}

double RateWindow::PerSecond(Clock::time_point started, Clock::time_point now) const {
  const int64_t newest = NumberOf(now, std::chrono::seconds(1));
  int64_t events = 0;
  for (const Slot& slot : slots_) {
    if (slot.second >= 0 && slot.second > newest - kSeconds) events += slot.events;
  }
  // The newest second has only begun.
  const double begun =
      std::chrono::duration<double>(now.time_since_epoch() - std::chrono::seconds(newest)).count();
  const double elapsed = std::chrono::duration<double>(now - started).count();
  const double span = std::min(elapsed, kSeconds - 1 + begun);
  return span > 0.0 ? static_cast<double>(events) / span : 0.0;
}

}  // namespace eta
