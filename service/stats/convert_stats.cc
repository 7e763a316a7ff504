// lint: untrusted-input
#include "service/stats/convert_stats.h"

#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <map>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

#include "engine/base/error.h"
#include "service/calibrate/convert_calibrate.h"
#include "service/stats/convert_attention.h"
#include "service/wire/attention_message.h"
#include "service/wire/draft_message.h"

namespace eta {
namespace {

using google::protobuf::util::TimeUtil;
using std::chrono::nanoseconds;

constexpr std::chrono::milliseconds kDefaultInterval{1000};
constexpr std::chrono::milliseconds kMinInterval{100};
constexpr std::chrono::milliseconds kMaxInterval{60'000};

google::protobuf::Duration ToMessage(nanoseconds duration) {
  return TimeUtil::NanosecondsToDuration(std::max(duration, nanoseconds(0)).count());
}

v1::ServerState ToMessage(ServerState state) {
  switch (state) {
    case ServerState::kServing:
      return v1::SERVER_STATE_SERVING;
    case ServerState::kDraining:
      return v1::SERVER_STATE_DRAINING;
    case ServerState::kStalled:
      return v1::SERVER_STATE_STALLED;
    case ServerState::kDeviceLost:
      return v1::SERVER_STATE_DEVICE_LOST;
  }
  return v1::SERVER_STATE_UNSPECIFIED;
}

v1::LatencyKind ToMessage(Latency kind) {
  switch (kind) {
    case Latency::kFirstToken:
      return v1::LATENCY_KIND_FIRST_TOKEN;
    case Latency::kInterToken:
      return v1::LATENCY_KIND_INTER_TOKEN;
    case Latency::kQueue:
      return v1::LATENCY_KIND_QUEUE;
    case Latency::kRequest:
      return v1::LATENCY_KIND_REQUEST;
  }
  return v1::LATENCY_KIND_UNSPECIFIED;
}

v1::LatencyWindow ToMessage(Window window) {
  return window == Window::kOneMinute ? v1::LATENCY_WINDOW_ONE_MINUTE
                                      : v1::LATENCY_WINDOW_TEN_MINUTES;
}

void FillServer(const ServerStatus& status, v1::ServerInfo& out) {
  const EngineInfo& info = status.info;
  if (status.state) out.set_state(ToMessage(*status.state));
  out.set_version(status.version);
  out.set_model(info.model_name);
  out.set_model_fingerprint(info.model_fingerprint);
  out.set_tokenizer_fingerprint(info.tokenizer_fingerprint);
  out.set_backend(info.backend);
  out.set_chat(info.chat_refusal.empty());
  v1::KvGeometry& kv = *out.mutable_kv();
  kv.set_layers(info.config.num_layers);
  kv.set_query_heads(info.config.num_query_heads);
  kv.set_kv_heads(info.config.num_kv_heads);
  kv.set_head_dim(info.config.head_dim);
  kv.set_block_size(info.block_size);
  kv.set_sub_block(info.sub_block);
  kv.set_kv_dtype(std::string(Name(info.kv_dtype)));
  kv.set_index(std::string(Name(info.index)));
  kv.set_index_dtype(std::string(Name(info.index_dtype)));
  kv.set_blocks(info.num_blocks);
  kv.set_weight_bytes(static_cast<int64_t>(info.weight_bytes));
  kv.set_kv_bytes(static_cast<int64_t>(info.kv_bytes));
  const int32_t full_layers = info.config.num_full_layers();
  if (full_layers == info.config.num_layers) return;
  kv.set_full_layers(full_layers);
  kv.set_window(info.config.sliding_window);
}

void FillLoad(const ServerStatus& status, v1::EngineLoad& out) {
  const EngineSnapshot& engine = status.engine;
  const TelemetrySnapshot& counted = status.telemetry;
  for (const AccountSeries& account : counted.accounts) {
    out.set_prompt_tokens(out.prompt_tokens() + account.prompt_tokens);
    out.set_cached_tokens(out.cached_tokens() + account.cached_tokens);
    out.set_output_tokens(out.output_tokens() + account.output_tokens);
  }
  out.set_running(engine.running);
  out.set_paused(engine.paused);
  out.set_waiting(engine.waiting);
  out.set_waiting_tokens(engine.waiting_tokens);
  out.set_passes_running(engine.passes_running);
  out.set_passes_waiting(engine.passes_waiting);
  out.set_steps(counted.server.steps);
  out.set_preemptions(counted.server.preemptions);
  *out.mutable_drafts() = eta::ToMessage(counted.server.drafts);
  out.set_steps_per_second(counted.steps_per_second);
  out.set_tokens_per_second(counted.tokens_per_second);
  if (engine.last_step != Clock::time_point{}) {
    *out.mutable_last_step_age() = ToMessage(status.now - engine.last_step);
  }
  for (const EngineSnapshot& device : status.devices) {
    v1::DeviceLoad& message = *out.add_devices();
    message.set_lost(device.device_lost);
    message.set_running(device.running);
    message.set_paused(device.paused);
    message.set_waiting(device.waiting);
    message.set_blocks_used(device.blocks_used);
    message.set_blocks_cached(device.blocks_cached);
    message.set_blocks_free(device.blocks_free);
    message.set_steps(device.steps);
    *message.mutable_predicted_wait() = ToMessage(device.predicted_wait);
    message.set_prefill_tokens_per_second(device.wait_estimate.prefill_throughput);
    if (device.wait_estimate.slot_interval.count() > 0.0) {
      *message.mutable_slot_interval() =
          ToMessage(std::chrono::duration_cast<nanoseconds>(device.wait_estimate.slot_interval));
    }
  }
}

void FillConnections(const ConnectionUsage& usage, v1::ConnectionStats& out) {
  out.set_open(usage.open);
  out.set_max(usage.max);
  out.set_accepted(usage.accepted);
  out.set_refused_full(usage.refused_full);
  out.set_refused_peer(usage.refused_peer);
  out.set_refused_no_files(usage.refused_no_files);
  out.set_accept_errors(usage.accept_errors);
}

v1::Pressure ToMessage(Pressure pressure) {
  switch (pressure) {
    case Pressure::kNone:
      return v1::PRESSURE_NONE;
    case Pressure::kShort:
      return v1::PRESSURE_SHORT;
    case Pressure::kCritical:
      return v1::PRESSURE_CRITICAL;
  }
  return v1::PRESSURE_UNSPECIFIED;
}

void FillPressure(const ServerStatus& status, v1::PressureStats& out) {
  out.set_pressure(ToMessage(status.memory.pressure));
  out.set_memory_used(status.memory.used);
  out.set_streams_ended(status.memory.streams_ended);
  out.set_answers_cut_off(status.answers_cut_off);
}

void FillStoreCalls(const ServerStatus& status, v1::StoreCallStats& out) {
  out.set_waiting(static_cast<int32_t>(status.store_calls.waiting));
  out.set_max_waiting(static_cast<int32_t>(status.store_calls.max_waiting));
  out.set_lookups_waiting(static_cast<int32_t>(status.profile_lookups.waiting));
  out.set_max_lookups_waiting(static_cast<int32_t>(status.profile_lookups.max_waiting));
}

void FillTokenizerCalls(const ServerStatus& status, v1::TokenizerCallStats& out) {
  out.set_waiting(static_cast<int32_t>(status.tokenizer_calls.waiting));
  out.set_max_waiting(static_cast<int32_t>(status.tokenizer_calls.max_waiting));
}

void FillDefaultProfile(const ServerStatus& status, v1::DefaultProfileStats& out) {
  const auto count = [&](DefaultProfileUse use) {
    return status.telemetry.server.default_profile[static_cast<size_t>(use)];
  };
  out.set_used(count(DefaultProfileUse::kUsed));
  out.set_absent(count(DefaultProfileUse::kAbsent));
  out.set_unfit(count(DefaultProfileUse::kUnfit));
  out.set_unavailable(count(DefaultProfileUse::kUnavailable));
  out.set_tenants(*status.default_profile_tenants);
}

void FillUses(const std::vector<TenantStatus>& tenants, v1::Stats& out) {
  for (const TenantStatus& tenant : tenants) {
    if (out.uses_size() == kMaxStatsUses) break;
    const TenantLimit& limit = tenant.use.limit;
    v1::TenantUse& use = *out.add_uses();
    use.set_tenant(tenant.use.tenant);
    use.set_max_calls(limit.max_calls);
    use.set_calls(tenant.use.calls);
    use.set_tokens_per_second(limit.tokens_per_second);
    use.set_burst_tokens(limit.burst_tokens);
    if (tenant.use.tokens_left) use.set_tokens_left(*tenant.use.tokens_left);
    use.set_weight(limit.weight);
    use.set_max_kv_tokens(limit.max_kv_tokens);
    use.set_kv_tokens(tenant.queue.kv_tokens);
    use.set_running(tenant.queue.running);
    use.set_waiting(tenant.queue.waiting);
    use.set_paused(tenant.queue.paused);
    use.set_max_calibrations(limit.max_calibrations);
    use.set_calibrations(tenant.calibrations);
    use.set_profile_versions(limit.profiles.versions);
    use.set_profile_bytes(limit.profiles.bytes);
    use.set_max_versions_ever(limit.profiles.versions_ever);
    if (!tenant.stored) continue;
    use.set_stored_versions(tenant.stored->versions);
    use.set_stored_bytes(tenant.stored->bytes);
    use.set_stored_versions_ever(tenant.stored->versions_ever);
  }
}

void FillLatencies(const TelemetrySnapshot& counted, v1::Stats& out) {
  for (int kind = 0; kind < kLatencies; ++kind) {
    for (int window = 0; window < kWindows; ++window) {
      const LatencyQuantiles& quantiles = counted.latencies[kind][window];
      v1::LatencyStats& message = *out.add_latencies();
      message.set_kind(ToMessage(static_cast<Latency>(kind)));
      message.set_window(ToMessage(static_cast<Window>(window)));
      message.set_count(quantiles.count);
      if (quantiles.count == 0) continue;
      *message.mutable_p50() = ToMessage(quantiles.p50);
      *message.mutable_p95() = ToMessage(quantiles.p95);
      *message.mutable_p99() = ToMessage(quantiles.p99);
    }
  }
}

void FillTenants(const TelemetrySnapshot& counted, v1::Stats& out) {
  std::map<std::string_view, std::pair<v1::TenantStats, AttentionSums>> tenants;
  for (const AccountSeries& account : counted.accounts) {
    if (account.tenant == Label::Gone()) continue;
    auto& [message, attention] = tenants[account.tenant.text()];
    message.set_prompt_tokens(message.prompt_tokens() + account.prompt_tokens);
    message.set_cached_tokens(message.cached_tokens() + account.cached_tokens);
    message.set_output_tokens(message.output_tokens() + account.output_tokens);
    attention.Add(account.attention);
  }
  std::map<std::tuple<std::string_view, std::string_view, std::string>, int64_t> calls;
  for (const auto& [series, count] : counted.calls) {
    if (series.tenant == Label::Gone()) continue;
    calls[{series.tenant.text(), series.method, absl::StatusCodeToString(series.code)}] += count;
  }
  for (const auto& [key, count] : calls) {
    const auto& [tenant, method, code] = key;
    v1::CallCount& message = *tenants[tenant].first.add_calls();
    message.set_method(std::string(method));
    message.set_code(code);
    message.set_calls(count);
  }
  for (const auto& [series, count] : counted.reasons) {
    if (series.tenant == Label::Gone()) continue;
    v1::ReasonCount& message = *tenants[series.tenant.text()].first.add_reasons();
    message.set_method(std::string(series.method));
    message.set_reason(series.reason);
    message.set_calls(count);
  }
  for (auto& [name, totals] : tenants) {
    v1::TenantStats& message = *out.add_tenants();
    message = std::move(totals.first);
    message.set_tenant(std::string(name));
    *message.mutable_attention() = eta::ToMessage(totals.second);
  }
}

void FillProfiles(const ServerStatus& status, v1::Stats& out) {
  out.set_profiles_loaded(static_cast<int32_t>(status.profiles.size()));
  for (const LoadedProfile& profile : status.profiles) {
    if (out.profiles_size() == kMaxStatsProfiles) break;
    v1::LoadedProfile& message = *out.add_profiles();
    message.set_tenant(profile.tenant.id());
    message.set_name(profile.name);
    message.set_version(profile.version);
    message.set_checksum(profile.checksum);
    if (profile.head_density) message.set_head_density(*profile.head_density);
    if (profile.union_density) message.set_union_density(*profile.union_density);
  }
  for (const RunningCalibration& calibration : status.calibrations) {
    v1::RunningCalibration& message = *out.add_calibrations();
    message.set_tenant(calibration.tenant.id());
    message.set_profile(calibration.profile);
    message.set_request_id(calibration.request_id);
    *message.mutable_elapsed() = ToMessage(status.now - calibration.started);
    if (calibration.progress) {
      *message.mutable_progress() = eta::ToMessage(*calibration.progress).progress();
    }
  }
}

}  // namespace

v1::Stats ToMessage(const ServerStatus& status) {
  v1::Stats stats;
  *stats.mutable_time() = TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<nanoseconds>(status.time.time_since_epoch()).count());
  *stats.mutable_uptime() = ToMessage(status.now - status.telemetry.started);
  FillServer(status, *stats.mutable_server());
  if (status.tenant) {
    stats.set_tenant(status.tenant->id());
  } else {
    FillLoad(status, *stats.mutable_load());
    FillConnections(status.connections, *stats.mutable_connections());
    FillPressure(status, *stats.mutable_pressure());
    FillStoreCalls(status, *stats.mutable_store_calls());
    FillTokenizerCalls(status, *stats.mutable_tokenizer_calls());
    if (status.default_profile_tenants) {
      FillDefaultProfile(status, *stats.mutable_default_profile());
    }
    FillLatencies(status.telemetry, stats);
  }
  FillAttention(status, stats);
  FillTenants(status.telemetry, stats);
  FillProfiles(status, stats);
  FillUses(status.tenants, stats);
  return stats;
}

absl::StatusOr<nanoseconds> ToInterval(const v1::WatchStatsRequest& request) {
  if (!request.has_interval()) return kDefaultInterval;
  const google::protobuf::Duration& in = request.interval();
  // Before any arithmetic: the fields hold whatever the client sent.
  const bool sane =
      in.seconds() >= 0 && in.seconds() <= 60 && in.nanos() >= 0 && in.nanos() <= 999'999'999;
  const nanoseconds interval =
      sane ? std::chrono::seconds(in.seconds()) + nanoseconds(in.nanos()) : nanoseconds(0);
  if (interval >= kMinInterval && interval <= kMaxInterval) return interval;
  return InvalidField("interval", "must be 100 ms to 60 s");
}

}  // namespace eta
