// What each tenant may use and uses.
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "service/stats/page/metric_groups.h"
#include "service/telemetry/call_end.h"

namespace eta {
namespace {

// Adds what `from` uses.
void AddUse(const TenantStatus& from, TenantStatus& to) {
  to.use.calls += from.use.calls;
  to.queue.kv_tokens += from.queue.kv_tokens;
  to.queue.running += from.queue.running;
  to.queue.waiting += from.queue.waiting;
  to.queue.paused += from.queue.paused;
  to.calibrations += from.calibrations;
  if (!from.stored) return;
  if (!to.stored) to.stored.emplace();
  to.stored->versions += from.stored->versions;
  to.stored->bytes += from.stored->bytes;
  to.stored->versions_ever += from.stored->versions_ever;
}

using ByLabel = std::map<Label, TenantStatus>;

void AddRefused(const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  std::map<std::pair<std::string_view, std::string>, int64_t> refused;  // over the methods
  for (const auto& [series, count] : telemetry.reasons) {
    const std::string reason = absl::AsciiStrToLower(series.reason);
    if (series.tenant == Label::Gone()) continue;
    if (IsTenantLimit(reason)) refused[{series.tenant.text(), reason}] += count;
  }
  page.Begin("eta_tenant_refused_total");
  for (const auto& [labels, count] : refused) {
    page.Add({{"tenant", labels.first}, {"reason", labels.second}}, count);
  }
}

}  // namespace

void AddTenants(const ServerStatus& status, Telemetry& labels, MetricFamilies& page) {
  ByLabel tenants;
  for (const TenantStatus& tenant : status.tenants) {
    const std::string& name = tenant.use.tenant;
    const Label label = tenant.named ? labels.TenantLabel(name) : labels.FindTenantLabel(name);
    const auto [entry, fresh] = tenants.try_emplace(label, tenant);
    if (!fresh) AddUse(tenant, entry->second);
  }
  // What is absent has no sample; a bound that is 0 is none.
  const auto add = [&](std::string_view name, const auto& value) {
    page.Begin(name);
    for (const auto& [label, tenant] : tenants) {
      const std::optional<double> number = value(tenant);
      if (number) page.Add({{"tenant", label.text()}}, *number);
    }
  };
  const auto use = [&](std::string_view name, const auto& value) {
    add(name, [&](const TenantStatus& tenant) {
      return std::optional(static_cast<double>(value(tenant)));
    });
  };
  const auto stored = [&](std::string_view name, auto ProfileUse::*value) {
    add(name, [&](const TenantStatus& tenant) -> std::optional<double> {
      if (!tenant.stored) return std::nullopt;
      return static_cast<double>((*tenant.stored).*value);
    });
  };
  const auto bound = [&](std::string_view name, const auto& value) {
    page.Begin(name);
    for (const auto& [label, tenant] : tenants) {
      const auto number = static_cast<double>(value(tenant.use.limit));
      if (number != 0.0 && label != Label::Other()) page.Add({{"tenant", label.text()}}, number);
    }
  };
  using Status = TenantStatus;
  using Limit = TenantLimit;
  use("eta_tenant_calls", [](const Status& tenant) { return tenant.use.calls; });
  bound("eta_tenant_max_calls", [](const Limit& limit) { return limit.max_calls; });
  page.Begin("eta_tenant_tokens_left");
  for (const auto& [label, tenant] : tenants) {
    if (!tenant.use.tokens_left || label == Label::Other()) continue;
    page.Add({{"tenant", label.text()}}, *tenant.use.tokens_left);
  }
  bound("eta_tenant_burst_tokens", [](const Limit& limit) { return limit.burst_tokens; });
  bound("eta_tenant_tokens_per_second", [](const Limit& limit) { return limit.tokens_per_second; });
  bound("eta_tenant_weight", [](const Limit& limit) { return limit.weight; });
  use("eta_tenant_kv_tokens", [](const Status& tenant) { return tenant.queue.kv_tokens; });
  bound("eta_tenant_max_kv_tokens", [](const Limit& limit) { return limit.max_kv_tokens; });
  use("eta_tenant_requests_running", [](const Status& tenant) { return tenant.queue.running; });
  use("eta_tenant_requests_waiting", [](const Status& tenant) { return tenant.queue.waiting; });
  use("eta_tenant_requests_paused", [](const Status& tenant) { return tenant.queue.paused; });
  use("eta_tenant_calibrations", [](const Status& tenant) { return tenant.calibrations; });
  bound("eta_tenant_max_calibrations", [](const Limit& limit) { return limit.max_calibrations; });
  stored("eta_tenant_profile_versions", &ProfileUse::versions);
  bound("eta_tenant_max_profile_versions",
        [](const Limit& limit) { return limit.profiles.versions; });
  stored("eta_tenant_profile_bytes", &ProfileUse::bytes);
  bound("eta_tenant_max_profile_bytes", [](const Limit& limit) { return limit.profiles.bytes; });
  stored("eta_tenant_profile_versions_ever", &ProfileUse::versions_ever);
  bound("eta_tenant_max_profile_versions_ever",
        [](const Limit& limit) { return limit.profiles.versions_ever; });
  AddRefused(status.telemetry, page);
}

}  // namespace eta
