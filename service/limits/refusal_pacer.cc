#include "service/limits/refusal_pacer.h"

#include <algorithm>

namespace eta {

RefusalPacer::RefusalPacer(const TenantLedger& ledger, const Options& options,
                           std::function<Clock::time_point()> now)
    : ledger_(ledger), options_(options), now_(std::move(now)) {}

std::optional<RefusalPacer::Hold> RefusalPacer::Next(const Tenant& tenant, size_t message_bytes,
                                                     Clock::duration most) {
  if (options_.per_second <= 0.0) return std::nullopt;
  if (!ledger_.HasOthers(tenant)) return std::nullopt;
  const Clock::time_point now = now_();
  const std::lock_guard lock(mutex_);
  if (turns_.size() >= kMaxTenants) turns_.clear();  // who has a turn there begins anew
  Clock::time_point& turn = turns_.try_emplace(tenant.id(), now).first->second;
  const Clock::time_point due = std::max(turn, now);
  const Clock::duration wait = std::min<Clock::duration>({due - now - kBurst, most, kLongestWait});
  const size_t bytes = 2 * message_bytes + kCallBytes;  // as it came, and what was made of it
  const bool waits = wait > Clock::duration(0);
  if (waits && (calls_ >= options_.max_calls || bytes_ + bytes > options_.max_bytes)) {
    return std::nullopt;
  }
  const std::chrono::duration<double> period(1.0 / options_.per_second);
  turn = std::min<Clock::time_point>(due + std::chrono::duration_cast<Clock::duration>(period),
                                     now + kBurst + kLongestWait);
  if (!waits) return std::nullopt;
  ++calls_;
  bytes_ += bytes;
  ++delayed_;
  return Hold(*this, bytes, wait);
}

void RefusalPacer::Remove(size_t bytes) {
  const std::lock_guard lock(mutex_);
  --calls_;
  bytes_ -= bytes;
}

RefusalFigures RefusalPacer::Figures() const {
  const std::lock_guard lock(mutex_);
  return {.waiting = static_cast<int64_t>(calls_), .delayed = delayed_};
}

}  // namespace eta
