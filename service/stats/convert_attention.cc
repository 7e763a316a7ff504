// lint: untrusted-input
#include "service/stats/convert_attention.h"

#include <algorithm>
#include <set>
#include <tuple>
#include <vector>

#include "service/stats/convert_stats.h"
#include "service/wire/attention_message.h"

namespace eta {
namespace {

v1::AttentionMode ToMode(AttentionMode mode) {
  switch (mode) {
    case AttentionMode::kFull:
      return v1::ATTENTION_MODE_FULL;
    case AttentionMode::kDynamic:
      return v1::ATTENTION_MODE_DYNAMIC;
    case AttentionMode::kProfile:
      return v1::ATTENTION_MODE_PROFILE;
  }
  return v1::ATTENTION_MODE_UNSPECIFIED;
}

// The version of an account; null if it is not in memory, or the account has no labels of its own.
const LoadedProfile* ProfileOf(const AccountSeries& account,
                               const std::vector<LoadedProfile>& profiles) {
  if (account.version <= 0 || account.tenant == Label::Other()) return nullptr;
  const auto found =
      std::find_if(profiles.begin(), profiles.end(), [&](const LoadedProfile& profile) {
        return profile.version == account.version && profile.name == account.profile.text() &&
               profile.tenant.id() == account.tenant.text();
      });
  return found == profiles.end() ? nullptr : &*found;
}

void Fill(const RecentSums& sums, v1::RecentAttention& out) {
  out.set_shadow_row_layers(sums.shadow_row_layers);
  if (sums.shadow_row_layers > 0) {
    out.set_mass_kept(sums.mass_kept());
    out.set_output_error(sums.output_error());
  }
  out.set_decode_steps(sums.decode_rows);
  out.set_head_density(sums.head_density());
  out.set_union_density(sums.union_density());
  out.set_context(static_cast<double>(sums.context) / static_cast<double>(sums.decode_rows));
}

void FillRecent(const RecentAttention& recent, v1::AttentionSeries& out) {
  if (recent.all.decode_rows > 0) Fill(recent.all, *out.mutable_recent());
  if (recent.like_measured.decode_rows > 0) {
    Fill(recent.like_measured, *out.mutable_recent_as_calibrated());
  }
}

void FillDrift(const LoadedProfile& profile, v1::AttentionSeries& out) {
  if (profile.retained_mass) out.set_calibrated_mass(*profile.retained_mass);
  if (!profile.head_density || !profile.union_density) return;
  out.set_calibrated_head_density(*profile.head_density);
  out.set_calibrated_union_density(*profile.union_density);
  if (profile.measured_context > 0) out.set_calibrated_context(profile.measured_context);
  if (!out.has_recent()) return;
  const bool alike = out.has_recent_as_calibrated();
  const v1::RecentAttention& measured = alike ? out.recent_as_calibrated() : out.recent();
  if (*profile.head_density > 0.0) {
    out.set_head_density_drift(measured.head_density() / *profile.head_density - 1.0);
  }
  if (*profile.union_density > 0.0) {
    out.set_union_density_drift(measured.union_density() / *profile.union_density - 1.0);
  }
  if (out.has_head_density_drift() || out.has_union_density_drift()) {
    out.set_drift_context(alike ? v1::DRIFT_CONTEXT_CALIBRATED : v1::DRIFT_CONTEXT_OTHER);
  }
}

void FillLayers(const std::vector<LayerTotals>& layers, v1::AttentionSeries& out) {
  for (const LayerTotals& layer : layers) {
    v1::LayerAttention& message = *out.add_layers();
    message.mutable_keys_attended()->Add(layer.keys_attended.begin(), layer.keys_attended.end());
    message.mutable_keys_read()->Add(layer.keys_read.begin(), layer.keys_read.end());
    message.set_keys_eligible(layer.keys_eligible);
  }
}

int64_t LayerNumbers(const std::vector<LayerTotals>& layers) {
  int64_t numbers = 0;
  for (const LayerTotals& layer : layers) {
    numbers += static_cast<int64_t>(layer.keys_attended.size() + layer.keys_read.size()) + 1;
  }
  return numbers;
}

// Those whose layers have room in the message.
std::set<const AccountSeries*> BusiestWithLayers(std::vector<const AccountSeries*> series) {
  std::stable_sort(series.begin(), series.end(), [](const auto* a, const auto* b) {
    return a->attention.decode_rows > b->attention.decode_rows;
  });
  std::set<const AccountSeries*> busiest;
  int64_t room = kMaxStatsLayerNumbers;
  for (const AccountSeries* account : series) {
    const int64_t numbers = LayerNumbers(account->layers);
    if (numbers <= room) busiest.insert(account);
    room = std::max<int64_t>(0, room - numbers);
  }
  return busiest;
}

}  // namespace

void FillAttention(const ServerStatus& status, v1::Stats& out) {
  std::vector<const AccountSeries*> series;
  for (const AccountSeries& account : status.telemetry.accounts) {
    const AttentionSums& totals = account.attention;
    if (!account.shown()) continue;
    if (totals.decode_rows + totals.prefill_rows + totals.fallback_rows > 0) {
      series.push_back(&account);
    }
  }
  const std::set<const AccountSeries*> with_layers = BusiestWithLayers(series);
  std::sort(series.begin(), series.end(), [](const auto* a, const auto* b) {
    return std::tie(a->mode, a->profile, a->version, a->tenant) <
           std::tie(b->mode, b->profile, b->version, b->tenant);
  });
  for (const AccountSeries* account : series) {
    v1::AttentionSeries& message = *out.add_attention();
    message.set_mode(ToMode(account->mode));
    message.set_tenant(account->tenant.text());
    if (account->mode == AttentionMode::kProfile) message.set_profile(account->profile.text());
    if (account->version > 0) message.set_version(account->version);
    *message.mutable_totals() = ToMessage(account->attention);
    if (with_layers.contains(account)) FillLayers(account->layers, message);
    FillRecent(account->recent, message);
    message.set_fallbacks(account->fallbacks);
    if (const LoadedProfile* profile = ProfileOf(*account, status.profiles)) {
      FillDrift(*profile, message);
    }
  }
}

}  // namespace eta
