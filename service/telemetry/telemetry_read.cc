// What readers of a Telemetry get: copies of its numbers.
#include <utility>

#include "service/telemetry/telemetry.h"

namespace eta {
namespace {

void Add(const AttentionTotals& from, AttentionTotals& to) {
  to.decode_rows += from.decode_rows;
  to.keys_attended += from.keys_attended;
  to.keys_eligible += from.keys_eligible;
  to.keys_read += from.keys_read;
  to.keys_cached += from.keys_cached;
  to.head_density += from.head_density;
  to.union_density += from.union_density;
  to.kv_bytes_read += from.kv_bytes_read;
  to.kv_bytes_dense += from.kv_bytes_dense;
  to.index_bytes_read += from.index_bytes_read;
}

// The profile as a snapshot names it: empty for requests without one.
std::string ProfileOf(AttentionMode mode, std::string_view label) {
  return mode == AttentionMode::kProfile ? std::string(label) : std::string();
}

}  // namespace

AccountFigures Telemetry::FiguresOf(const Account& account) const {
  AccountFigures figures = account.figures;
  AttentionTotals& attention = figures.attention;
  attention.kv_bytes_read = attention.keys_read * token_bytes_;
  attention.kv_bytes_dense = attention.keys_cached * token_bytes_;
  attention.index_bytes_read = account.records_read * record_bytes_;
  return figures;
}

TelemetryFigures Telemetry::Figures() const {
  TelemetryFigures figures;
  figures.uptime = Clock::now() - started_;
  const std::lock_guard lock(mutex_);
  figures.model = model_;
  figures.load_duration = load_duration_;
  figures.server = server_;
  figures.modes.reserve(modes_.size());
  for (const auto& [key, series] : modes_) figures.modes.push_back(series);
  figures.accounts.reserve(accounts_.size());
  for (const auto& [key, account] : accounts_) figures.accounts.push_back(FiguresOf(account));
  figures.calls.assign(calls_.begin(), calls_.end());
  figures.rejected.assign(rejected_.begin(), rejected_.end());
  figures.failed.assign(failed_.begin(), failed_.end());
  figures.reasons.assign(reasons_.begin(), reasons_.end());
  return figures;
}

TelemetrySnapshot Telemetry::Snapshot(const SnapshotQuery& query) const {
  const Clock::time_point now = Clock::now();
  TelemetrySnapshot snapshot;
  snapshot.started = started_;
  std::map<std::pair<AttentionMode, std::string_view>, AttentionSeries> attention;
  std::map<std::string_view, TenantTotals> tenants;
  std::vector<std::pair<CallSeries, int64_t>> calls;
  std::vector<std::pair<TenantReason, int64_t>> reasons;

  std::unique_lock lock(mutex_);
  snapshot.steps_per_second = steps_.PerSecond(started_, now);
  snapshot.tokens_per_second = tokens_.PerSecond(started_, now);
  snapshot.steps = server_.steps;
  snapshot.preemptions = server_.preemptions;
  const std::string_view only = tenants_.Find(query.tenant);
  const auto wanted = [&](std::string_view tenant) {
    return query.tenant.empty() || (tenant == only && only != LabelNames::kOther);
  };
  calls.assign(calls_.begin(), calls_.end());
  reasons.assign(reasons_.begin(), reasons_.end());
  // Accounts are never taken away, so that the lock may be let go between two.
  for (const auto& [key, account] : accounts_) {
    if (wanted(account.figures.tenant)) {
      const AccountFigures figures = FiguresOf(account);
      AttentionSeries& series = attention[{figures.mode, figures.profile}];
      series.mode = figures.mode;
      series.profile = ProfileOf(figures.mode, figures.profile);
      Add(figures.attention, series.totals);
      if (query.layers) account.heads.AddTo(series.layers);
      TenantTotals& tenant = tenants[figures.tenant];
      Add(figures.attention, tenant.attention);
      tenant.prompt_tokens += figures.prompt_tokens;
      tenant.cached_tokens += figures.cached_tokens;
      tenant.output_tokens += figures.output_tokens;
    }
    lock.unlock();
    lock.lock();
  }
  for (size_t kind = 0; kind < kLatencies; ++kind) {
    for (size_t window = 0; window < kWindows; ++window) {
      snapshot.latencies[kind][window] = latencies_[kind][window].Quantiles(now);
      lock.unlock();
      lock.lock();
    }
  }
  lock.unlock();

  std::map<std::tuple<std::string_view, std::string_view, absl::StatusCode>, int64_t> tenant_calls;
  for (const auto& [series, count] : calls) {
    if (!wanted(series.tenant)) continue;
    tenant_calls[{series.tenant, series.method, series.code}] += count;
  }
  for (const auto& [key, count] : tenant_calls) {
    const auto& [tenant, method, code] = key;
    tenants[tenant].calls.push_back(
        {.method = std::string(method), .code = absl::StatusCodeToString(code), .calls = count});
  }
  for (const auto& [key, count] : reasons) {
    if (!wanted(key.tenant)) continue;
    tenants[key.tenant].reasons.push_back(
        {.method = std::string(key.method), .reason = key.reason, .calls = count});
  }
  for (auto& [key, series] : attention) snapshot.attention.push_back(std::move(series));
  for (auto& [name, totals] : tenants) {
    totals.tenant = std::string(name);
    snapshot.prompt_tokens += totals.prompt_tokens;
    snapshot.cached_tokens += totals.cached_tokens;
    snapshot.output_tokens += totals.output_tokens;
    snapshot.tenants.push_back(std::move(totals));
  }
  return snapshot;
}

}  // namespace eta
