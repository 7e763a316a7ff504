// Which labels the names of a Telemetry have, and what becomes of what was counted under a label
// that goes: it leaves the page, as after a restart, and stays in the sums. Under any other label
// it would look like events of now.
#include <string>
#include <utility>

#include "service/telemetry/telemetry.h"

namespace eta {
namespace {

std::string VersionName(std::string_view profile, int64_t version) {
  return std::string(profile) + "@" + std::to_string(version);
}

}  // namespace

Label Telemetry::UseTenant(std::string_view tenant, Clock::time_point now) {
  const Label label = tenants_.Use(tenant, now);
  if (label != Label::Other() || !tenants_.Lacks(tenant, now - kLabelHold)) return label;
  UseLabelsOfRunning(now);
  const std::optional<Label> idle = tenants_.DropIdle(now - kLabelHold);
  if (!idle) return label;
  FoldTenant(*idle);
  return tenants_.Use(tenant, now);
}

Label Telemetry::UseProfile(std::string_view profile, Clock::time_point now) {
  const Label label = profiles_.Use(profile, now);
  if (label != Label::Other() || !profiles_.Lacks(profile, now - kLabelHold)) return label;
  UseLabelsOfRunning(now);
  const std::optional<Label> idle = profiles_.DropIdle(now - kLabelHold);
  if (!idle) return label;
  FoldProfile(*idle);
  return profiles_.Use(profile, now);
}

int64_t Telemetry::UseVersion(const Label& profile, int64_t version, Clock::time_point now) {
  if (profile == Label::None()) return AccountSeries::kNoVersion;
  if (profile == Label::Other()) return AccountSeries::kOtherVersions;
  const std::string name = VersionName(profile.text(), version);
  Label label = versions_.Use(name, now);
  if (label == Label::Other() && versions_.Lacks(name, now - kLabelHold)) {
    UseLabelsOfRunning(now);
    if (const std::optional<Label> idle = versions_.DropIdle(now - kLabelHold)) {
      FoldVersion(*idle);
      label = versions_.Use(name, now);
    }
  }
  return label == Label::Other() ? AccountSeries::kOtherVersions : version;
}

int64_t Telemetry::FindVersion(const Label& profile, int64_t version) const {
  if (profile == Label::None()) return AccountSeries::kNoVersion;
  if (profile == Label::Other()) return AccountSeries::kOtherVersions;
  const Label label = versions_.Find(VersionName(profile.text(), version));
  return label == Label::Other() ? AccountSeries::kOtherVersions : version;
}

// What runs has not been looked up since it began.
void Telemetry::UseLabelsOfRunning(Clock::time_point now) {
  for (const auto& [request, account] : running_) {
    const AccountSeries& series = account->series;
    tenants_.Use(series.tenant.text(), now);
    profiles_.Use(series.profile.text(), now);
    if (series.version > 0) versions_.Use(VersionName(series.profile.text(), series.version), now);
  }
}

void Telemetry::FoldTenant(const Label& label) {
  FoldAccounts([&](AccountSeries& series) {
    if (series.tenant != label) return false;
    series.tenant = Label::Gone();
    return true;
  });
  FoldCalls([&](CallSeries& series) {
    if (series.tenant != label) return false;
    series.tenant = Label::Gone();
    return true;
  });
  for (auto entry = reasons_.begin(); entry != reasons_.end();) {
    if (entry->first.tenant != label) {
      ++entry;
      continue;
    }
    TenantReason key = entry->first;
    key.tenant = Label::Gone();
    reasons_[std::move(key)] += entry->second;
    entry = reasons_.erase(entry);
  }
}

void Telemetry::FoldProfile(const Label& label) {
  FoldAccounts([&](AccountSeries& series) {
    if (series.profile != label) return false;
    series.profile = Label::Gone();
    series.version = AccountSeries::kOtherVersions;
    return true;
  });
  FoldCalls([&](CallSeries& series) {
    if (series.profile != label) return false;
    series.profile = Label::Gone();
    series.version = AccountSeries::kOtherVersions;
    return true;
  });
}

void Telemetry::FoldVersion(const Label& label) {
  const auto rename = [&](auto& series) {
    if (series.version <= 0 || VersionName(series.profile.text(), series.version) != label.text()) {
      return false;
    }
    series.profile = Label::Gone();
    series.version = AccountSeries::kOtherVersions;
    return true;
  };
  FoldAccounts(rename);
  FoldCalls(rename);
}

// Accounts to which `rename` gives other labels go into the account of these. Nothing runs on them:
// the labels of what runs are in use.
void Telemetry::FoldAccounts(const std::function<bool(AccountSeries&)>& rename) {
  ++folds_;
  for (auto entry = accounts_.begin(); entry != accounts_.end();) {
    AccountSeries& series = entry->second.series;
    if (!rename(series)) {
      ++entry;
      continue;
    }
    const auto node = accounts_.extract(entry++);
    const Account& from = node.mapped();
    Account& to = FindAccount({series.tenant, series.mode, series.profile, series.version});
    to.series.attention.Add(series.attention);
    to.series.prompt_tokens += series.prompt_tokens;
    to.series.cached_tokens += series.cached_tokens;
    to.series.output_tokens += series.output_tokens;
    to.series.density.Add(series.density);
    to.series.union_density.Add(series.union_density);
    to.series.mass_kept.Add(series.mass_kept);
    to.series.fallbacks += series.fallbacks;
    to.heads.Add(from.heads);
    to.window.Add(from.window);
  }
}

// Calls to which `rename` gives other labels count under these.
void Telemetry::FoldCalls(const std::function<bool(CallSeries&)>& rename) {
  for (auto entry = calls_.begin(); entry != calls_.end();) {
    CallSeries key = entry->first;
    if (!rename(key)) {
      ++entry;
      continue;
    }
    calls_[std::move(key)] += entry->second;
    entry = calls_.erase(entry);
  }
}

Label Telemetry::TenantLabel(std::string_view tenant) {
  const std::lock_guard lock(mutex_);
  return tenants_.Use(tenant, Clock::time_point{});
}

Label Telemetry::FindTenantLabel(std::string_view tenant) const {
  const std::lock_guard lock(mutex_);
  return tenants_.Find(tenant);
}

Label Telemetry::ProfileLabel(std::string_view profile) {
  const std::lock_guard lock(mutex_);
  return profiles_.Use(profile, Clock::time_point{});
}

bool Telemetry::HasVersionLabel(std::string_view profile, int64_t version) {
  const std::lock_guard lock(mutex_);
  if (profiles_.Find(profile) == Label::Other()) return false;
  return versions_.Use(VersionName(profile, version), Clock::time_point{}) != Label::Other();
}

}  // namespace eta
