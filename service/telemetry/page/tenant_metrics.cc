#include "service/telemetry/page/tenant_metrics.h"

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "absl/strings/ascii.h"
#include "service/telemetry/call_end.h"
#include "service/telemetry/label_names.h"

namespace eta {
namespace {

constexpr int64_t TenantFigures::*kSummed[] = {
    &TenantFigures::calls,   &TenantFigures::kv_tokens, &TenantFigures::running,
    &TenantFigures::waiting, &TenantFigures::paused,    &TenantFigures::calibrations};

void Add(const std::optional<ProfileUse>& from, std::optional<ProfileUse>& to) {
  if (!from) return;
  if (!to) to.emplace();
  to->versions += from->versions;
  to->bytes += from->bytes;
  to->versions_ever += from->versions_ever;
}

}  // namespace

void WriteTenants(const TelemetryFigures& figures, const ServerFigures* server, PageWriter& page) {
  std::map<std::string_view, TenantFigures> tenants;
  if (server != nullptr) {
    for (const TenantFigures& tenant : server->tenants) {
      const auto [entry, fresh] = tenants.try_emplace(tenant.tenant, tenant);
      if (!fresh) {
        for (const auto value : kSummed) entry->second.*value += tenant.*value;
        Add(tenant.stored, entry->second.stored);
      }
    }
  }
  const auto write = [&](std::string_view name, int64_t TenantFigures::*value, bool bound) {
    page.Family(name);
    for (const auto& [label, tenant] : tenants) {
      if (bound && (tenant.*value == 0 || label == LabelNames::kOther)) continue;
      page.Sample(LabelText().Add("tenant", label), tenant.*value);
    }
  };
  write("eta_tenant_calls", &TenantFigures::calls, /*bound=*/false);
  write("eta_tenant_max_calls", &TenantFigures::max_calls, /*bound=*/true);
  page.Family("eta_tenant_tokens_left");
  for (const auto& [label, tenant] : tenants) {
    if (!tenant.tokens_left || label == LabelNames::kOther) continue;
    page.Sample(LabelText().Add("tenant", label), *tenant.tokens_left);
  }
  write("eta_tenant_burst_tokens", &TenantFigures::burst_tokens, /*bound=*/true);
  const auto write_real = [&](std::string_view name, double TenantFigures::*value) {
    page.Family(name);
    for (const auto& [label, tenant] : tenants) {
      if (tenant.*value == 0.0 || label == LabelNames::kOther) continue;
      page.Sample(LabelText().Add("tenant", label), tenant.*value);
    }
  };
  write_real("eta_tenant_tokens_per_second", &TenantFigures::tokens_per_second);
  write_real("eta_tenant_weight", &TenantFigures::weight);
  write("eta_tenant_kv_tokens", &TenantFigures::kv_tokens, /*bound=*/false);
  write("eta_tenant_max_kv_tokens", &TenantFigures::max_kv_tokens, /*bound=*/true);
  write("eta_tenant_requests_running", &TenantFigures::running, /*bound=*/false);
  write("eta_tenant_requests_waiting", &TenantFigures::waiting, /*bound=*/false);
  write("eta_tenant_requests_paused", &TenantFigures::paused, /*bound=*/false);
  write("eta_tenant_calibrations", &TenantFigures::calibrations, /*bound=*/false);
  write("eta_tenant_max_calibrations", &TenantFigures::max_calibrations, /*bound=*/true);
  const auto write_stored = [&](std::string_view name, int64_t ProfileUse::*value) {
    page.Family(name);
    for (const auto& [label, tenant] : tenants) {
      if (tenant.stored) page.Sample(LabelText().Add("tenant", label), (*tenant.stored).*value);
    }
  };
  write_stored("eta_tenant_profile_versions", &ProfileUse::versions);
  write("eta_tenant_max_profile_versions", &TenantFigures::max_profile_versions, /*bound=*/true);
  write_stored("eta_tenant_profile_bytes", &ProfileUse::bytes);
  write("eta_tenant_max_profile_bytes", &TenantFigures::max_profile_bytes, /*bound=*/true);
  write_stored("eta_tenant_profile_versions_ever", &ProfileUse::versions_ever);
  write("eta_tenant_max_profile_versions_ever", &TenantFigures::max_profile_versions_ever,
        /*bound=*/true);
  std::map<std::pair<std::string_view, std::string>, int64_t> refused;  // over the methods
  for (const auto& [series, count] : figures.reasons) {
    const std::string reason = absl::AsciiStrToLower(series.reason);
    if (IsTenantLimit(reason)) refused[{series.tenant, reason}] += count;
  }
  page.Family("eta_tenant_refused_total");
  for (const auto& [labels, count] : refused) {
    page.Sample(LabelText().Add("tenant", labels.first).Add("reason", labels.second), count);
  }
}

}  // namespace eta
