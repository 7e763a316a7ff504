// What readers of a Telemetry get: copies of its numbers.
#include <utility>

#include "service/telemetry/telemetry.h"

namespace eta {

AccountSeries Telemetry::SeriesOf(const Account& account, Clock::time_point now) const {
  AccountSeries series = account.series;
  series.recent = account.window.Sum(now);
  return series;
}

// The lock is let go between two accounts. Where some have gone meanwhile, this begins anew.
void Telemetry::ReadAccounts(const SnapshotQuery& query, Clock::time_point now,
                             std::unique_lock<std::mutex>& lock,
                             TelemetrySnapshot& snapshot) const {
  const Label only = tenants_.Find(query.tenant);
  if (!query.tenant.empty() && only == Label::Other()) return;
  int64_t folds = 0;
  do {
    folds = folds_;
    snapshot.accounts.clear();
    snapshot.accounts.reserve(accounts_.size());
    for (auto entry = accounts_.begin(); entry != accounts_.end(); ++entry) {
      const Account& account = entry->second;
      if (query.tenant.empty() || account.series.tenant == only) {
        snapshot.accounts.push_back(SeriesOf(account, now));
        if (query.layers) account.heads.AddTo(snapshot.accounts.back().layers);
      }
      lock.unlock();
      lock.lock();
      if (folds != folds_) break;
    }
  } while (folds != folds_);
}

TelemetrySnapshot Telemetry::Snapshot(const SnapshotQuery& query) const {
  const Clock::time_point now = now_();
  TelemetrySnapshot snapshot;
  snapshot.started = started_;
  std::unique_lock lock(mutex_);
  snapshot.model = model_;
  snapshot.load_duration = load_duration_;
  snapshot.steps_per_second = steps_.PerSecond(started_, now);
  snapshot.tokens_per_second = tokens_.PerSecond(started_, now);
  snapshot.server = server_;
  for (const auto& [mode, series] : modes_) snapshot.modes.push_back(series);
  snapshot.rejected.assign(rejected_.begin(), rejected_.end());
  snapshot.failed.assign(failed_.begin(), failed_.end());
  const Label only = tenants_.Find(query.tenant);
  const auto copy = [&](const auto& from, auto& to) {
    to.reserve(from.size());
    for (const auto& [series, count] : from) {
      if (query.tenant.empty() || (series.tenant == only && only != Label::Other())) {
        to.emplace_back(series, count);
      }
    }
  };
  copy(calls_, snapshot.calls);
  copy(reasons_, snapshot.reasons);
  ReadAccounts(query, now, lock, snapshot);
  for (size_t kind = 0; query.latencies && kind < kLatencies; ++kind) {
    for (size_t window = 0; window < kWindows; ++window) {
      snapshot.latencies[kind][window] = latencies_[kind][window].Quantiles(now);
      lock.unlock();
      lock.lock();
    }
  }
  return snapshot;
}

}  // namespace eta
