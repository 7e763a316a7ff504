// Profiles in memory, their store, and calibrations.
#include <algorithm>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "service/stats/page/metric_groups.h"

namespace eta {
namespace {

// Of the rows that densities were measured on, by their longest context: the second half of it.
constexpr double kMeanContext = 0.75;

struct LabelledProfile {
  const LoadedProfile* profile;
  Label tenant;
  Label name;
  std::string version;
};

// Those that have labels of their own, and no two with the same: a version may have been deleted
// and made anew while the old one is in use.
std::vector<LabelledProfile> Labelled(const ServerStatus& status, Telemetry& labels) {
  std::vector<LabelledProfile> profiles;
  std::set<std::tuple<std::string_view, std::string_view, int64_t>> seen;
  for (const LoadedProfile& profile : status.profiles) {
    LabelledProfile labelled{.profile = &profile,
                             .tenant = labels.TenantLabel(profile.tenant.id()),
                             .name = labels.ProfileLabel(profile.name),
                             .version = std::to_string(profile.version)};
    if (labelled.tenant != Label::Other() &&
        labels.HasVersionLabel(profile.name, profile.version) &&
        seen.emplace(profile.tenant.id(), profile.name, profile.version).second) {
      profiles.push_back(std::move(labelled));
    }
  }
  return profiles;
}

}  // namespace

void AddProfiles(const ServerStatus& status, Telemetry& labels, MetricFamilies& page) {
  const std::vector<LabelledProfile> profiles = Labelled(status, labels);
  page.Begin("eta_profile_info");
  for (const LabelledProfile& labelled : profiles) {
    page.Add({{"tenant", labelled.tenant.text()},
              {"profile", labelled.name.text()},
              {"version", labelled.version},
              {"digest", labelled.profile->checksum}},
             1);
  }
  const auto target = [&](std::string_view name, std::optional<double> LoadedProfile::*value) {
    page.Begin(name);
    for (const LabelledProfile& labelled : profiles) {
      if (!(labelled.profile->*value)) continue;
      page.Add({{"tenant", labelled.tenant.text()},
                {"profile", labelled.name.text()},
                {"version", labelled.version}},
               *(labelled.profile->*value));
    }
  };
  target("eta_profile_target_density_ratio", &LoadedProfile::head_density);
  target("eta_profile_target_union_density_ratio", &LoadedProfile::union_density);
  target("eta_profile_target_mass_ratio", &LoadedProfile::retained_mass);
  page.Begin("eta_profile_target_cached_keys");
  const double groups =
      static_cast<double>(status.info.config.num_full_layers()) * status.info.config.num_kv_heads;
  for (const LabelledProfile& labelled : profiles) {
    if (labelled.profile->measured_context == 0) continue;
    page.Add({{"tenant", labelled.tenant.text()},
              {"profile", labelled.name.text()},
              {"version", labelled.version}},
             kMeanContext * static_cast<double>(labelled.profile->measured_context) * groups);
  }
  page.Begin("eta_default_profile_tenants");
  if (status.default_profile_tenants) page.Add({}, *status.default_profile_tenants);
  const std::optional<StoreStatus>& store = status.store;
  page.Begin("eta_profiles_loaded");
  if (store) page.Add({}, status.profiles.size());
  page.Begin("eta_profile_cache_bytes");
  if (store) page.Add({}, store->cache.bytes);
  page.Begin("eta_profile_reloads_total");
  if (store) {
    page.Add({{"result", "success"}}, store->cache.reads);
    page.Add({{"result", "failure"}}, store->cache.failed_reads);
  }
  page.Begin("eta_profile_last_reload_success_timestamp_seconds");
  if (store && store->cache.last_read) {
    page.Add({}, Seconds(status.time.time_since_epoch() - (status.now - *store->cache.last_read)));
  }
  page.Begin("eta_profile_staleness_seconds");
  if (store) {
    const Clock::time_point oldest = std::min(store->cache.oldest.value_or(status.now), status.now);
    page.Add({}, Seconds(status.now - oldest));
  }
  page.Begin("eta_profile_store_up");
  if (store) page.Add({}, store->up ? 1 : 0);
}

void AddCalibrations(const ServerStatus& status, MetricFamilies& page) {
  constexpr std::pair<std::string_view, CallEnd> kResults[] = {{"success", CallEnd::kOk},
                                                               {"cancelled", CallEnd::kCancelled},
                                                               {"rejected", CallEnd::kRejected},
                                                               {"failed", CallEnd::kFailed}};
  page.Begin("eta_calibrations_total");
  for (const auto& [name, end] : kResults) {
    page.Add({{"result", name}}, status.telemetry.server.calibrations[static_cast<size_t>(end)]);
  }
  page.Begin("eta_calibrations_in_progress");
  if (status.state) page.Add({}, status.calibrations.size());
  page.AddOnly("eta_calibration_duration_seconds", status.telemetry.server.calibration);
}

}  // namespace eta
