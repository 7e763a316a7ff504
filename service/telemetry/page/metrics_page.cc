#include "service/telemetry/page/metrics_page.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <tuple>
#include <utility>

#include "kernels/failpoint.h"
#include "service/telemetry/label_names.h"
#include "service/telemetry/page/page_writer.h"
#include "service/telemetry/page/tenant_metrics.h"

namespace eta {
namespace {

using std::chrono::nanoseconds;

double Seconds(nanoseconds duration) {
  return std::chrono::duration<double>(duration).count();
}

// The time on the wall, `age` ago.
double Timestamp(nanoseconds age) {
  return Seconds(std::chrono::system_clock::now().time_since_epoch() - age);
}

std::optional<double> NonZero(double value) {
  return value == 0.0 ? std::nullopt : std::optional(value);
}

void WriteCalls(const TelemetryFigures& figures, PageWriter& page) {
  page.Family("eta_requests_total");
  for (const auto& [series, count] : figures.calls) {
    page.Sample(LabelText()
                    .Add("method", series.method)
                    .Add("code", absl::StatusCodeToString(series.code))
                    .Add("finish_reason", series.finish_reason)
                    .Add("mode", series.mode)
                    .Add("profile", series.profile)
                    .Add("tenant", series.tenant),
                count);
  }
  const auto write = [&](std::string_view name, const auto& counts) {
    page.Family(name);
    for (const auto& [series, count] : counts) {
      page.Sample(LabelText().Add("method", series.method).Add("reason", series.reason), count);
    }
  };
  write("eta_requests_rejected_total", figures.rejected);
  write("eta_requests_failed_total", figures.failed);
  page.Family("eta_requests_cancelled_total");
  for (int stage = 0; stage < kStages; ++stage) {
    page.Sample(LabelText().Add("stage", Name(static_cast<Stage>(stage))),
                figures.server.cancelled[static_cast<size_t>(stage)]);
  }
}

void WriteQueue(const ServerFigures* server, PageWriter& page) {
  const auto gauge = [&](std::string_view name, auto EngineSnapshot::*value) {
    page.Family(name);
    if (server != nullptr) page.Sample(server->engine.*value);
  };
  gauge("eta_requests_running", &EngineSnapshot::running);
  gauge("eta_requests_paused", &EngineSnapshot::paused);
  gauge("eta_requests_waiting", &EngineSnapshot::waiting);
  gauge("eta_waiting_prompt_tokens", &EngineSnapshot::waiting_tokens);
  gauge("eta_calibration_passes_running", &EngineSnapshot::passes_running);
  gauge("eta_calibration_passes_waiting", &EngineSnapshot::passes_waiting);
  const auto of_devices = [&](std::string_view name, const auto& value) {
    page.Family(name);
    for (size_t i = 0; server != nullptr && i < server->devices.size(); ++i) {
      const std::optional<double> number = value(server->devices[i]);
      if (number) page.Sample(LabelText().Add("device", static_cast<int64_t>(i)), *number);
    }
  };
  of_devices("eta_predicted_wait_seconds", [](const EngineSnapshot& device) {
    return std::optional(Seconds(device.predicted_wait));
  });
  of_devices("eta_prefill_tokens_per_second", [](const EngineSnapshot& device) {
    return NonZero(device.wait_estimate.prefill_throughput);
  });
  of_devices("eta_slot_interval_seconds", [](const EngineSnapshot& device) {
    return NonZero(device.wait_estimate.slot_interval.count());
  });
  const auto of_server = [&](std::string_view name, int64_t ServerFigures::*value) {
    page.Family(name);
    if (server != nullptr) page.Sample(server->*value);
  };
  of_server("eta_store_calls_waiting", &ServerFigures::store_calls_waiting);
  of_server("eta_store_calls_max_waiting", &ServerFigures::max_store_calls_waiting);
  of_server("eta_profile_lookups_waiting", &ServerFigures::profile_lookups_waiting);
  of_server("eta_profile_lookups_max_waiting", &ServerFigures::max_profile_lookups_waiting);
  of_server("eta_stats_watchers", &ServerFigures::watchers);
  of_server("eta_stats_watchers_max", &ServerFigures::max_watchers);
}

void WriteKvCache(const ServerFigures* server, PageWriter& page) {
  page.Family("eta_kv_cache_usage_ratio");
  if (server != nullptr) {
    const EngineSnapshot& engine = server->engine;
    const int32_t blocks = engine.blocks_used + engine.blocks_cached + engine.blocks_free;
    page.Sample(static_cast<double>(engine.blocks_used) / std::max(blocks, 1));
  }
  page.Family("eta_kv_cache_blocks");
  if (server != nullptr) {
    page.Sample(LabelText().Add("state", "used"), server->engine.blocks_used);
    page.Sample(LabelText().Add("state", "cached"), server->engine.blocks_cached);
    page.Sample(LabelText().Add("state", "free"), server->engine.blocks_free);
  }
  page.Family("eta_kv_cache_config_info");
  if (server != nullptr) {
    page.Sample(LabelText()
                    .Add("block_size", server->info.block_size)
                    .Add("num_gpu_blocks", server->info.num_blocks)
                    .Add("dtype", Name(server->info.kv_dtype))
                    .Add("index_dtype", Name(server->info.index_dtype)),
                1);
  }
}

void WriteModes(std::string_view name, Histogram ModeSeries::*histogram,
                const TelemetryFigures& figures, PageWriter& page) {
  page.Family(name);
  for (const ModeSeries& series : figures.modes) {
    page.Sample(LabelText().Add("mode", Name(series.mode)).Add("profile", series.profile),
                series.*histogram);
  }
}

void WriteLatencies(const TelemetryFigures& figures, PageWriter& page) {
  WriteModes("eta_time_to_first_token_seconds", &ModeSeries::first_token, figures, page);
  WriteModes("eta_inter_token_latency_seconds", &ModeSeries::inter_token, figures, page);
  WriteModes("eta_request_time_per_output_token_seconds", &ModeSeries::per_output_token, figures,
             page);
  WriteModes("eta_request_duration_seconds", &ModeSeries::duration, figures, page);
  page.Family("eta_request_queue_duration_seconds");
  page.Sample({}, figures.server.queue);
  page.Family("eta_request_prefill_duration_seconds");
  page.Sample({}, figures.server.prefill);
  page.Family("eta_request_decode_duration_seconds");
  page.Sample({}, figures.server.decode);
}

void WriteTokens(const TelemetryFigures& figures, PageWriter& page) {
  // Over the modes.
  std::map<std::pair<std::string_view, std::string_view>, std::array<int64_t, 3>> sums;
  for (const AccountFigures& account : figures.accounts) {
    std::array<int64_t, 3>& sum = sums[{account.tenant, account.profile}];
    sum[0] += account.prompt_tokens;
    sum[1] += account.cached_tokens;
    sum[2] += account.output_tokens;
  }
  const auto write = [&](std::string_view name, size_t which) {
    page.Family(name);
    for (const auto& [labels, sum] : sums) {
      page.Sample(LabelText().Add("tenant", labels.first).Add("profile", labels.second),
                  sum[which]);
    }
  };
  write("eta_prompt_tokens_total", 0);
  write("eta_prompt_tokens_cached_total", 1);
  write("eta_generated_tokens_total", 2);
  page.Family("eta_request_prompt_tokens");
  page.Sample({}, figures.server.prompt_tokens);
  page.Family("eta_request_generated_tokens");
  page.Sample({}, figures.server.generated_tokens);
}

struct AttentionMetric {
  std::string_view name;  // after "eta_" or "eta_tenant_"
  int64_t AttentionTotals::*value;
  bool of_tenants;
};

constexpr AttentionMetric kAttentionMetrics[] = {
    {"attention_decode_rows_total", &AttentionTotals::decode_rows, true},
    {"attention_keys_attended_total", &AttentionTotals::keys_attended, true},
    {"attention_keys_eligible_total", &AttentionTotals::keys_eligible, true},
    {"attention_keys_read_total", &AttentionTotals::keys_read, true},
    {"attention_keys_cached_total", &AttentionTotals::keys_cached, true},
    {"attention_kv_bytes_read_total", &AttentionTotals::kv_bytes_read, true},
    {"attention_kv_bytes_dense_total", &AttentionTotals::kv_bytes_dense, true},
    {"attention_index_bytes_read_total", &AttentionTotals::index_bytes_read, false},
};

void WriteAttention(const TelemetryFigures& figures, PageWriter& page) {
  using Integers = std::array<int64_t, std::size(kAttentionMetrics)>;
  std::map<std::pair<AttentionMode, std::string_view>, Integers> modes;
  std::map<std::string_view, Integers> tenants;
  for (const ModeSeries& series : figures.modes) modes[{series.mode, series.profile}] = {};
  for (const AccountFigures& account : figures.accounts) {
    Integers& mode = modes[{account.mode, account.profile}];
    Integers& tenant = tenants[account.tenant];
    for (size_t i = 0; i < mode.size(); ++i) {
      const int64_t value = account.attention.*kAttentionMetrics[i].value;
      mode[i] += value;
      tenant[i] += value;
    }
  }
  for (size_t i = 0; i < std::size(kAttentionMetrics); ++i) {
    page.Family(std::string("eta_").append(kAttentionMetrics[i].name));
    for (const auto& [series, integers] : modes) {
      page.Sample(LabelText().Add("mode", Name(series.first)).Add("profile", series.second),
                  integers[i]);
    }
  }
  WriteModes("eta_request_density_ratio", &ModeSeries::density, figures, page);
  WriteModes("eta_request_union_density_ratio", &ModeSeries::union_density, figures, page);
  for (size_t i = 0; i < std::size(kAttentionMetrics); ++i) {
    if (!kAttentionMetrics[i].of_tenants) continue;
    page.Family(std::string("eta_tenant_").append(kAttentionMetrics[i].name));
    for (const auto& [tenant, integers] : tenants) {
      page.Sample(LabelText().Add("tenant", tenant), integers[i]);
    }
  }
}

void WriteSteps(const TelemetryFigures& figures, PageWriter& page) {
  constexpr std::string_view kPhases[kStepPhases] = {"prefill", "decode", "mixed", "pass"};
  page.Family("eta_step_duration_seconds");
  for (size_t i = 0; i < kStepPhases; ++i) {
    page.Sample(LabelText().Add("phase", kPhases[i]), figures.server.step_duration[i]);
  }
  page.Family("eta_step_batch_size");
  page.Sample({}, figures.server.batch_size);
  page.Family("eta_step_tokens");
  page.Sample({}, figures.server.step_tokens);
  page.Family("eta_calibration_pass_rows_total");
  page.Sample(figures.server.pass_rows);
  page.Family("eta_preemptions_total");
  page.Sample(figures.server.preemptions);
}

void WriteEngine(const TelemetryFigures& figures, const ServerFigures* server, PageWriter& page) {
  constexpr std::pair<std::string_view, ServerState> kStates[] = {
      {"serving", ServerState::kServing},
      {"draining", ServerState::kDraining},
      {"stalled", ServerState::kStalled},
      {"device_lost", ServerState::kDeviceLost}};
  page.Family("eta_engine_state");
  page.Sample(LabelText().Add("state", "loading"), server == nullptr ? 1 : 0);
  for (const auto& [name, state] : kStates) {
    page.Sample(LabelText().Add("state", name),
                server != nullptr && server->state == state ? 1 : 0);
  }
  page.Family("eta_engine_last_step_timestamp_seconds");
  if (server != nullptr && server->engine.last_step != Clock::time_point{}) {
    page.Sample(Timestamp(Clock::now() - server->engine.last_step));
  }
  page.Family("eta_devices");
  if (server != nullptr) {
    const auto lost =
        std::count_if(server->devices.begin(), server->devices.end(),
                      [](const EngineSnapshot& device) { return device.device_lost; });
    page.Sample(LabelText().Add("state", "working"), std::ssize(server->devices) - lost);
    page.Sample(LabelText().Add("state", "lost"), lost);
  }
  page.Family("eta_model_info");
  if (server != nullptr) {
    page.Sample(LabelText()
                    .Add("fingerprint", server->info.model_fingerprint)
                    .Add("backend", server->info.backend)
                    .Add("layers", server->info.config.num_layers)
                    .Add("query_heads", server->info.config.num_query_heads)
                    .Add("kv_heads", server->info.config.num_kv_heads),
                1);
  }
  page.Family("eta_model_load_duration_seconds");
  page.Sample(Seconds(figures.load_duration));
  page.Family("eta_uptime_seconds");
  page.Sample(Seconds(figures.uptime));
  page.Family("eta_build_info");
  page.Sample(LabelText().Add("version", ETA_VERSION), 1);
}

// Those that have labels of their own, and no two with the same: a version may have been deleted
// and made anew while the old one is in use.
std::vector<const ProfileFigures*> Labelled(const StoreFigures& store) {
  std::vector<const ProfileFigures*> profiles;
  std::set<std::tuple<std::string_view, std::string_view, int64_t>> seen;
  for (const ProfileFigures& profile : store.profiles) {
    if (profile.name != LabelNames::kOther && profile.tenant != LabelNames::kOther &&
        seen.emplace(profile.tenant, profile.name, profile.version).second) {
      profiles.push_back(&profile);
    }
  }
  return profiles;
}

void WriteProfiles(const ServerFigures* server, PageWriter& page) {
  const StoreFigures* const store = server != nullptr && server->store ? &*server->store : nullptr;
  std::vector<const ProfileFigures*> profiles;
  if (store != nullptr) profiles = Labelled(*store);
  const auto labels = [](const ProfileFigures& profile) {
    LabelText text;
    text.Add("tenant", profile.tenant).Add("profile", profile.name).Add("version", profile.version);
    return text;
  };
  page.Family("eta_profile_info");
  for (const ProfileFigures* profile : profiles) {
    page.Sample(labels(*profile).Add("digest", profile->digest), 1);
  }
  const auto target = [&](std::string_view name, std::optional<double> ProfileFigures::*value) {
    page.Family(name);
    for (const ProfileFigures* profile : profiles) {
      if (profile->*value) page.Sample(labels(*profile), *(profile->*value));
    }
  };
  target("eta_profile_target_density_ratio", &ProfileFigures::head_density);
  target("eta_profile_target_union_density_ratio", &ProfileFigures::union_density);
  page.Family("eta_profiles_loaded");
  if (store != nullptr) page.Sample(store->profiles.size());
  page.Family("eta_profile_cache_bytes");
  if (store != nullptr) page.Sample(store->cache_bytes);
  page.Family("eta_profile_reloads_total");
  if (store != nullptr) {
    page.Sample(LabelText().Add("result", "success"), store->reloads_succeeded);
    page.Sample(LabelText().Add("result", "failure"), store->reloads_failed);
  }
  page.Family("eta_profile_last_reload_success_timestamp_seconds");
  if (store != nullptr && store->last_reload_age) page.Sample(Timestamp(*store->last_reload_age));
  page.Family("eta_profile_staleness_seconds");
  if (store != nullptr) page.Sample(Seconds(store->staleness));
  page.Family("eta_profile_store_up");
  if (store != nullptr) page.Sample(store->up ? 1 : 0);
}

void WriteCalibrations(const TelemetryFigures& figures, const ServerFigures* server,
                       PageWriter& page) {
  constexpr std::pair<std::string_view, CallEnd> kResults[] = {{"success", CallEnd::kOk},
                                                               {"cancelled", CallEnd::kCancelled},
                                                               {"rejected", CallEnd::kRejected},
                                                               {"failed", CallEnd::kFailed}};
  page.Family("eta_calibrations_total");
  for (const auto& [name, end] : kResults) {
    page.Sample(LabelText().Add("result", name),
                figures.server.calibrations[static_cast<size_t>(end)]);
  }
  page.Family("eta_calibrations_in_progress");
  if (server != nullptr) page.Sample(server->calibrations);
  page.Family("eta_calibration_duration_seconds");
  page.Sample({}, figures.server.calibration);
}

void WriteConnections(const ServerFigures* server, PageWriter& page) {
  const auto single = [&](std::string_view name, auto ConnectionFigures::*value) {
    page.Family(name);
    if (server != nullptr) page.Sample(server->connections.*value);
  };
  single("eta_connections_open", &ConnectionFigures::open);
  single("eta_connections_max", &ConnectionFigures::max);
  single("eta_connections_accepted_total", &ConnectionFigures::accepted);
  page.Family("eta_connections_refused_total");
  if (server != nullptr) {
    const ConnectionFigures& figures = server->connections;
    page.Sample(LabelText().Add("reason", "full"), figures.refused_full);
    page.Sample(LabelText().Add("reason", "peer"), figures.refused_peer);
    page.Sample(LabelText().Add("reason", "no_files"), figures.refused_no_files);
  }
  single("eta_connection_accept_errors_total", &ConnectionFigures::accept_errors);
}

void WriteFiles(const ServerFigures* server, PageWriter& page) {
  static const std::vector<FileFigures> kNone;
  const std::vector<FileFigures>& files = server != nullptr ? server->files : kNone;
  page.Family("eta_file_reloads_total");
  for (const FileFigures& file : files) {
    page.Sample(LabelText().Add("file", file.file).Add("result", "success"),
                file.reloads.succeeded);
    page.Sample(LabelText().Add("file", file.file).Add("result", "failure"), file.reloads.failed);
  }
  page.Family("eta_file_current");
  for (const FileFigures& file : files) {
    page.Sample(LabelText().Add("file", file.file), file.reloads.current ? 1 : 0);
  }
}

void WriteProcess(const ServerFigures* server, const ProcessFigures& process, PageWriter& page) {
  page.Family("eta_memory_pressure_state");
  for (int level = 0; server != nullptr && level < kPressures; ++level) {
    const auto state = static_cast<Pressure>(level);
    page.Sample(LabelText().Add("state", Name(state)), server->pressure.level == state ? 1 : 0);
  }
  page.Family("eta_memory_streams_ended_total");
  if (server != nullptr) page.Sample(server->pressure.streams_ended);
  page.Family("eta_answers_cut_off_total");
  if (server != nullptr) page.Sample(server->pressure.answers_cut_off);
  page.Family("eta_memory_used_ratio");
  if (server != nullptr) page.Sample(server->pressure.memory_used);
  const auto gauge = [&](std::string_view name, auto value) {
    page.Family(name);
    page.Sample(value);
  };
  gauge("process_cpu_seconds_total", process.cpu_seconds);
  gauge("process_resident_memory_bytes", process.resident_bytes);
  gauge("process_virtual_memory_bytes", process.virtual_bytes);
  gauge("process_open_fds", process.open_fds);
  gauge("process_max_fds", process.max_fds);
  gauge("process_threads", process.threads);
  gauge("process_start_time_seconds", process.start_time);
}

}  // namespace

void WritePage(const TelemetryFigures& figures, const ServerFigures* server,
               const ProcessFigures& process, std::string& page) {
  PageWriter writer(page, figures.model);
  WriteCalls(figures, writer);
  WriteQueue(server, writer);
  WriteKvCache(server, writer);
  WriteLatencies(figures, writer);
  WriteTokens(figures, writer);
  WriteAttention(figures, writer);
  WriteTenants(figures, server, writer);
  WriteSteps(figures, writer);
  WriteEngine(figures, server, writer);
  WriteProfiles(server, writer);
  WriteCalibrations(figures, server, writer);
  WriteConnections(server, writer);
  WriteFiles(server, writer);
  WriteProcess(server, process, writer);
}

void MetricsPage::SetServer(std::function<ServerFigures()> server) {
  const std::lock_guard lock(mutex_);
  server_ = std::move(server);
}

std::string MetricsPage::Write() {
  (void)ETA_FAILPOINT(kMetricsPage);
  const std::lock_guard lock(mutex_);
  std::optional<ServerFigures> server;
  if (server_) server = server_();
  if (server) {
    for (TenantFigures& tenant : server->tenants) {
      tenant.tenant = tenant.named ? telemetry_.TenantLabel(tenant.tenant)
                                   : telemetry_.FindTenantLabel(tenant.tenant);
    }
  }
  if (server && server->store) {
    for (ProfileFigures& profile : server->store->profiles) {
      profile.tenant = telemetry_.TenantLabel(profile.tenant);
      profile.name = telemetry_.ProfileLabel(profile.name);
    }
  }
  std::string page;
  page.reserve(bytes_ + bytes_ / 8);
  WritePage(telemetry_.Figures(), server ? &*server : nullptr, ReadProcessFigures(), page);
  bytes_ = page.size();
  return page;
}

}  // namespace eta
