// What Telemetry counts of calls, requests and steps.
#include <array>
#include <iterator>
#include <map>
#include <string>
#include <string_view>
#include <tuple>
#include <utility>

#include "engine/request/answers/format_validation.h"
#include "service/stats/page/metric_groups.h"

namespace eta {
namespace {

std::string VersionLabel(int64_t version) {
  if (version == AccountSeries::kNoVersion) return std::string(Label::kNone);
  if (version == AccountSeries::kOtherVersions) return std::string(Label::kOther);
  return std::to_string(version);
}

void AddModes(std::string_view name, Histogram ModeSeries::*histogram,
              const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  page.Begin(name);
  for (const ModeSeries& series : telemetry.modes) {
    page.Add({{"mode", Name(series.mode)}}, series.*histogram);
  }
}

// Of each account; what it is: a function of the account.
template <typename Value>
void AddAccounts(std::string_view name, const TelemetrySnapshot& telemetry, MetricFamilies& page,
                 const Value& value) {
  page.Begin(name);
  for (const AccountSeries& account : telemetry.accounts) {
    if (!account.shown()) continue;
    page.Add({{"mode", Name(account.mode)},
              {"profile", account.profile.text()},
              {"version", VersionLabel(account.version)},
              {"tenant", account.tenant.text()}},
             value(account));
  }
}

struct AttentionMetric {
  std::string_view name;  // after "eta_" or "eta_tenant_"
  int64_t AttentionSums::*value;
  bool of_tenants;
};

constexpr AttentionMetric kAttentionMetrics[] = {
    {"attention_decode_rows_total", &AttentionSums::decode_rows, true},
    {"attention_keys_attended_total", &AttentionSums::keys_attended, true},
    {"attention_keys_eligible_total", &AttentionSums::keys_eligible, true},
    {"attention_keys_read_total", &AttentionSums::keys_read, true},
    {"attention_keys_cached_total", &AttentionSums::keys_cached, true},
    {"attention_values_read_total", &AttentionSums::values_read, false},
    {"attention_prefill_rows_total", &AttentionSums::prefill_rows, false},
    {"attention_prefill_keys_attended_total", &AttentionSums::prefill_keys_attended, false},
    {"attention_prefill_keys_eligible_total", &AttentionSums::prefill_keys_eligible, false},
    {"attention_kv_bytes_read_total", &AttentionSums::kv_bytes_read, true},
    {"attention_kv_bytes_dense_total", &AttentionSums::kv_bytes_dense, true},
    {"attention_index_bytes_read_total", &AttentionSums::index_bytes_read, false},
    {"attention_fallback_rows_total", &AttentionSums::fallback_rows, false},
    {"attention_fallback_kv_bytes_read_total", &AttentionSums::fallback_kv_bytes_read, false},
};

}  // namespace

void AddCalls(const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  page.Begin("eta_requests_total");
  std::map<std::pair<std::string_view, absl::StatusCode>, int64_t> totals;
  for (const auto& [series, count] : telemetry.calls) {
    totals[{series.method, series.code}] += count;
    if (!series.shown()) continue;
    page.Add({{"method", series.method},
              {"code", absl::StatusCodeToString(series.code)},
              {"finish_reason", series.finish_reason},
              {"mode", series.mode},
              {"profile", series.profile.text()},
              {"version", VersionLabel(series.version)},
              {"tenant", series.tenant.text()}},
             count);
  }
  page.Begin("eta_calls_total");
  for (const auto& [labels, count] : totals) {
    page.Add({{"method", labels.first}, {"code", absl::StatusCodeToString(labels.second)}}, count);
  }
  const auto add = [&](std::string_view name, const auto& counts) {
    page.Begin(name);
    for (const auto& [series, count] : counts) {
      page.Add({{"method", series.method}, {"reason", series.reason}}, count);
    }
  };
  add("eta_requests_rejected_total", telemetry.rejected);
  add("eta_requests_failed_total", telemetry.failed);
  page.Begin("eta_requests_cancelled_total");
  for (int stage = 0; stage < kStages; ++stage) {
    page.Add({{"stage", Name(static_cast<Stage>(stage))}},
             telemetry.server.cancelled[static_cast<size_t>(stage)]);
  }
  page.AddOnly("eta_deadline_exceeded_wait_seconds", telemetry.server.deadline_wait);
  page.Begin("eta_default_profile_requests_total");
  for (int use = 0; use < kDefaultProfileUses; ++use) {
    page.Add({{"result", Name(static_cast<DefaultProfileUse>(use))}},
             telemetry.server.default_profile[static_cast<size_t>(use)]);
  }
}

void AddLatencies(const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  AddModes("eta_time_to_first_token_seconds", &ModeSeries::first_token, telemetry, page);
  AddModes("eta_inter_token_latency_seconds", &ModeSeries::inter_token, telemetry, page);
  AddModes("eta_request_time_per_output_token_seconds", &ModeSeries::per_output_token, telemetry,
           page);
  AddModes("eta_request_duration_seconds", &ModeSeries::duration, telemetry, page);
  page.AddOnly("eta_request_queue_duration_seconds", telemetry.server.queue);
  page.AddOnly("eta_request_prefill_duration_seconds", telemetry.server.prefill);
  page.AddOnly("eta_request_decode_duration_seconds", telemetry.server.decode);
}

void AddTokens(const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  // Over the modes.
  std::map<std::tuple<std::string_view, std::string_view, int64_t>, std::array<int64_t, 3>> sums;
  for (const AccountSeries& account : telemetry.accounts) {
    if (!account.shown()) continue;
    std::array<int64_t, 3>& sum =
        sums[{account.tenant.text(), account.profile.text(), account.version}];
    sum[0] += account.prompt_tokens;
    sum[1] += account.cached_tokens;
    sum[2] += account.output_tokens;
  }
  const auto add = [&](std::string_view name, size_t which) {
    page.Begin(name);
    for (const auto& [labels, sum] : sums) {
      const auto& [tenant, profile, version] = labels;
      page.Add({{"tenant", tenant}, {"profile", profile}, {"version", VersionLabel(version)}},
               sum[which]);
    }
  };
  add("eta_prompt_tokens_total", 0);
  add("eta_prompt_tokens_cached_total", 1);
  add("eta_generated_tokens_total", 2);
  page.AddOnly("eta_request_prompt_tokens", telemetry.server.prompt_tokens);
  page.AddOnly("eta_request_generated_tokens", telemetry.server.generated_tokens);
}

void AddAttention(const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  std::map<std::string_view, AttentionSums> tenants;
  for (const AccountSeries& account : telemetry.accounts) {
    if (account.tenant == Label::Gone()) continue;
    tenants[account.tenant.text()].Add(account.attention);
  }
  for (const AttentionMetric& metric : kAttentionMetrics) {
    AddAccounts(std::string("eta_").append(metric.name), telemetry, page,
                [&](const AccountSeries& account) { return account.attention.*metric.value; });
  }
  AddAccounts("eta_request_density_ratio", telemetry, page,
              [](const AccountSeries& account) -> const Histogram& { return account.density; });
  AddAccounts(
      "eta_request_union_density_ratio", telemetry, page,
      [](const AccountSeries& account) -> const Histogram& { return account.union_density; });
  AddAccounts("eta_attention_mass_kept_ratio", telemetry, page,
              [](const AccountSeries& account) -> const Histogram& { return account.mass_kept; });
  AddAccounts("eta_attention_output_error_total", telemetry, page,
              [](const AccountSeries& account) { return account.attention.output_error_sum; });
  AddAccounts("eta_attention_fallbacks_total", telemetry, page,
              [](const AccountSeries& account) { return account.fallbacks; });
  for (const AttentionMetric& metric : kAttentionMetrics) {
    if (!metric.of_tenants) continue;
    page.Begin(std::string("eta_tenant_").append(metric.name));
    for (const auto& [tenant, totals] : tenants) {
      page.Add({{"tenant", tenant}}, totals.*metric.value);
    }
  }
}

void AddFormats(const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  const ServerSeries& server = telemetry.server;
  const auto add = [&](std::string_view name, const auto& add_of) {
    page.Begin(name);
    for (int kind = 0; kind < kAnswerFormatKinds; ++kind) {
      add_of(Name(static_cast<AnswerFormatKind>(kind)), server.formats[static_cast<size_t>(kind)]);
    }
  };
  add("eta_format_requests_total", [&](std::string_view format, const FormatSeries& series) {
    page.Add({{"format", format}}, series.calls);
  });
  add("eta_format_answers_total", [&](std::string_view format, const FormatSeries& series) {
    page.Add({{"format", format}, {"result", "ended"}}, series.ended);
    page.Add({{"format", format}, {"result", "cut_off"}}, series.cut_off);
    page.Add({{"format", format}, {"result", "invalid"}}, series.invalid);
  });
  page.Begin("eta_format_lookups_total");
  page.Add({{"result", "hit"}}, server.formats_kept);
  page.Add({{"result", "miss"}}, server.format_compile.count());
  page.AddOnly("eta_format_compile_duration_seconds", server.format_compile);
  page.AddOnly("eta_step_mask_duration_seconds", server.step_masks);
  page.AddOnly("eta_step_mask_wait_seconds", server.step_mask_wait);
}

void AddSteps(const TelemetrySnapshot& telemetry, MetricFamilies& page) {
  constexpr std::string_view kPhases[kStepPhases] = {"prefill", "decode", "mixed", "pass"};
  page.Begin("eta_step_duration_seconds");
  for (size_t i = 0; i < kStepPhases; ++i) {
    page.Add({{"phase", kPhases[i]}}, telemetry.server.step_duration[i]);
  }
  page.AddOnly("eta_step_batch_size", telemetry.server.batch_size);
  page.AddOnly("eta_step_tokens", telemetry.server.step_tokens);
  page.AddOnly("eta_calibration_pass_rows_total", telemetry.server.pass_rows);
  page.AddOnly("eta_preemptions_total", telemetry.server.preemptions);
  page.AddOnly("eta_draft_tokens_total", telemetry.server.drafts.drafted);
  page.AddOnly("eta_draft_tokens_accepted_total", telemetry.server.drafts.accepted);
  page.AddOnly("eta_draft_steps_saved_total", telemetry.server.drafts.steps_saved);
  page.AddOnly("eta_draft_kv_bytes_rejected_total", telemetry.server.drafts.kv_bytes_rejected);
  page.AddOnly("eta_draft_rows_total", telemetry.server.drafts.made);
  page.AddOnly("eta_draft_kv_bytes_made_total", telemetry.server.drafts.kv_bytes_made);
}

}  // namespace eta
