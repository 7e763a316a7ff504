// lint: untrusted-input
#include "service/stats/convert_stats.h"

#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <tuple>

#include "engine/base/error.h"
#include "service/calibrate/convert_calibrate.h"

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

v1::AttentionMode ToMessage(AttentionMode mode) {
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

void FillServer(const StatsFacts& facts, const EngineInfo& info, v1::ServerInfo& out) {
  out.set_state(ToMessage(facts.state));
  out.set_version(facts.version);
  out.set_model(info.model_name);
  out.set_model_fingerprint(info.model_fingerprint);
  out.set_tokenizer_fingerprint(info.tokenizer_fingerprint);
  out.set_backend(info.backend);
  v1::KvGeometry& kv = *out.mutable_kv();
  kv.set_layers(info.config.num_layers);
  kv.set_query_heads(info.config.num_query_heads);
  kv.set_kv_heads(info.config.num_kv_heads);
  kv.set_head_dim(info.config.head_dim);
  kv.set_block_size(info.block_size);
  kv.set_sub_block(info.sub_block);
  kv.set_kv_dtype(std::string(Name(info.kv_dtype)));
  kv.set_index_dtype(std::string(Name(info.index_dtype)));
  kv.set_blocks(info.num_blocks);
  kv.set_weight_bytes(static_cast<int64_t>(info.weight_bytes));
  kv.set_kv_bytes(static_cast<int64_t>(info.kv_bytes));
}

void FillLoad(const StatsFacts& facts, v1::EngineLoad& out) {
  const EngineSnapshot& engine = facts.engine;
  const TelemetrySnapshot& counted = facts.telemetry;
  out.set_running(engine.running);
  out.set_paused(engine.paused);
  out.set_waiting(engine.waiting);
  out.set_waiting_tokens(engine.waiting_tokens);
  out.set_passes_running(engine.passes_running);
  out.set_passes_waiting(engine.passes_waiting);
  out.set_steps(counted.steps);
  out.set_preemptions(counted.preemptions);
  out.set_prompt_tokens(counted.prompt_tokens);
  out.set_cached_tokens(counted.cached_tokens);
  out.set_output_tokens(counted.output_tokens);
  out.set_steps_per_second(counted.steps_per_second);
  out.set_tokens_per_second(counted.tokens_per_second);
  if (engine.last_step != Clock::time_point{}) {
    *out.mutable_last_step_age() = ToMessage(facts.now - engine.last_step);
  }
  for (const EngineSnapshot& device : facts.devices) {
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

void Fill(const ConnectionFigures& figures, v1::ConnectionStats& out) {
  out.set_open(figures.open);
  out.set_max(figures.max);
  out.set_accepted(figures.accepted);
  out.set_refused_full(figures.refused_full);
  out.set_refused_peer(figures.refused_peer);
  out.set_refused_no_files(figures.refused_no_files);
  out.set_accept_errors(figures.accept_errors);
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
  return v1::PRESSURE_NONE;
}

void Fill(const PressureFigures& figures, v1::PressureStats& out) {
  out.set_pressure(ToMessage(figures.level));
  out.set_memory_used(figures.memory_used);
  out.set_streams_ended(figures.streams_ended);
  out.set_answers_cut_off(figures.answers_cut_off);
}

void FillUses(const std::vector<TenantHolding>& holdings, v1::Stats& out) {
  for (const TenantHolding& holding : holdings) {
    if (out.uses_size() == kMaxStatsUses) break;
    const TenantLimit& limit = holding.use.limit;
    v1::TenantUse& use = *out.add_uses();
    use.set_tenant(holding.use.tenant);
    use.set_max_calls(limit.max_calls);
    use.set_calls(holding.use.calls);
    use.set_tokens_per_second(limit.tokens_per_second);
    use.set_burst_tokens(limit.burst_tokens);
    if (holding.use.tokens_left) use.set_tokens_left(*holding.use.tokens_left);
    use.set_weight(limit.weight);
    use.set_max_kv_tokens(limit.max_kv_tokens);
    use.set_kv_tokens(holding.queue.kv_tokens);
    use.set_running(holding.queue.running);
    use.set_waiting(holding.queue.waiting);
    use.set_paused(holding.queue.paused);
    use.set_max_calibrations(limit.max_calibrations);
    use.set_calibrations(holding.calibrations);
    use.set_profile_versions(limit.profiles.versions);
    use.set_profile_bytes(limit.profiles.bytes);
    use.set_max_versions_ever(limit.profiles.versions_ever);
    if (!holding.stored) continue;
    use.set_stored_versions(holding.stored->versions);
    use.set_stored_bytes(holding.stored->bytes);
    use.set_stored_versions_ever(holding.stored->versions_ever);
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

void Fill(const AttentionTotals& totals, v1::AttentionStats& out) {
  out.set_decode_steps(totals.decode_rows);
  if (totals.decode_rows > 0) {
    const auto rows = static_cast<double>(totals.decode_rows);
    out.set_head_density(totals.head_density / rows);
    out.set_union_density(totals.union_density / rows);
  }
  out.set_kv_bytes_read(totals.kv_bytes_read);
  out.set_kv_bytes_dense(totals.kv_bytes_dense);
  out.set_index_bytes_read(totals.index_bytes_read);
  out.set_keys_attended(totals.keys_attended);
  out.set_keys_eligible(totals.keys_eligible);
  out.set_keys_read(totals.keys_read);
  out.set_keys_cached(totals.keys_cached);
}

// The newest version of a name; null if none is in memory, or several tenants have one.
const LoadedProfile* OnlyProfile(const std::vector<LoadedProfile>& profiles,
                                 const std::string& name) {
  const LoadedProfile* newest = nullptr;
  for (const LoadedProfile& profile : profiles) {
    if (profile.name != name) continue;
    if (newest != nullptr && newest->tenant != profile.tenant) return nullptr;
    newest = &profile;
  }
  return newest;
}

void FillDrift(const LoadedProfile& profile, v1::AttentionSeries& out) {
  if (profile.head_density) {
    out.set_calibrated_head_density(*profile.head_density);
    if (*profile.head_density > 0.0) {
      out.set_head_density_drift(out.totals().head_density() / *profile.head_density - 1.0);
    }
  }
  if (profile.union_density) {
    out.set_calibrated_union_density(*profile.union_density);
    if (*profile.union_density > 0.0) {
      out.set_union_density_drift(out.totals().union_density() / *profile.union_density - 1.0);
    }
  }
}

void FillLayers(const AttentionSeries& series, v1::AttentionSeries& out) {
  for (const LayerTotals& layer : series.layers) {
    v1::LayerAttention& message = *out.add_layers();
    message.mutable_keys_attended()->Add(layer.keys_attended.begin(), layer.keys_attended.end());
    message.mutable_keys_read()->Add(layer.keys_read.begin(), layer.keys_read.end());
    message.set_keys_eligible(layer.keys_eligible);
  }
}

int64_t LayerNumbers(const AttentionSeries& series) {
  int64_t numbers = 0;
  for (const LayerTotals& layer : series.layers) {
    numbers += static_cast<int64_t>(layer.keys_attended.size() + layer.keys_read.size()) + 1;
  }
  return numbers;
}

void FillAttention(const StatsFacts& facts, v1::Stats& out) {
  std::vector<const AttentionSeries*> all;
  for (const AttentionSeries& series : facts.telemetry.attention) {
    if (series.totals.decode_rows > 0) all.push_back(&series);
  }
  std::sort(all.begin(), all.end(), [](const AttentionSeries* a, const AttentionSeries* b) {
    return a->totals.decode_rows > b->totals.decode_rows;
  });
  std::vector<std::pair<const AttentionSeries*, bool>> chosen;  // whether its layers have room
  int64_t room = kMaxStatsLayerNumbers;
  for (const AttentionSeries* series : all) {
    const int64_t numbers = LayerNumbers(*series);
    chosen.emplace_back(series, numbers <= room);
    room = std::max<int64_t>(0, room - numbers);
  }
  std::sort(chosen.begin(), chosen.end(), [](const auto& a, const auto& b) {
    return std::tie(a.first->mode, a.first->profile) < std::tie(b.first->mode, b.first->profile);
  });
  for (const auto& [series, with_layers] : chosen) {
    v1::AttentionSeries& message = *out.add_attention();
    message.set_mode(ToMessage(series->mode));
    message.set_profile(series->profile);
    Fill(series->totals, *message.mutable_totals());
    if (with_layers) FillLayers(*series, message);
    if (series->mode != AttentionMode::kProfile) continue;
    if (const LoadedProfile* profile = OnlyProfile(facts.profiles, series->profile)) {
      FillDrift(*profile, message);
    }
  }
}

void FillTenants(const TelemetrySnapshot& counted, v1::Stats& out) {
  for (const TenantTotals& tenant : counted.tenants) {
    v1::TenantStats& message = *out.add_tenants();
    message.set_tenant(tenant.tenant);
    for (const CallCount& count : tenant.calls) {
      v1::CallCount& calls = *message.add_calls();
      calls.set_method(count.method);
      calls.set_code(count.code);
      calls.set_calls(count.calls);
    }
    std::sort(message.mutable_calls()->begin(), message.mutable_calls()->end(),
              [](const v1::CallCount& a, const v1::CallCount& b) {
                return std::tie(a.method(), a.code()) < std::tie(b.method(), b.code());
              });
    for (const ReasonCount& count : tenant.reasons) {
      v1::ReasonCount& reason = *message.add_reasons();
      reason.set_method(count.method);
      reason.set_reason(count.reason);
      reason.set_calls(count.calls);
    }
    message.set_prompt_tokens(tenant.prompt_tokens);
    message.set_cached_tokens(tenant.cached_tokens);
    message.set_output_tokens(tenant.output_tokens);
    Fill(tenant.attention, *message.mutable_attention());
  }
  std::sort(
      out.mutable_tenants()->begin(), out.mutable_tenants()->end(),
      [](const v1::TenantStats& a, const v1::TenantStats& b) { return a.tenant() < b.tenant(); });
}

void FillProfiles(const StatsFacts& facts, v1::Stats& out) {
  out.set_profiles_loaded(static_cast<int32_t>(facts.profiles.size()));
  for (const LoadedProfile& profile : facts.profiles) {
    if (out.profiles_size() == kMaxStatsProfiles) break;
    v1::LoadedProfile& message = *out.add_profiles();
    message.set_tenant(profile.tenant.id());
    message.set_name(profile.name);
    message.set_version(profile.version);
    message.set_checksum(profile.checksum);
    if (profile.head_density) message.set_head_density(*profile.head_density);
    if (profile.union_density) message.set_union_density(*profile.union_density);
  }
  for (const RunningCalibration& calibration : facts.calibrations) {
    v1::RunningCalibration& message = *out.add_calibrations();
    message.set_tenant(calibration.tenant.id());
    message.set_profile(calibration.profile);
    message.set_request_id(calibration.request_id);
    *message.mutable_elapsed() = ToMessage(facts.now - calibration.started);
    if (calibration.progress) {
      *message.mutable_progress() = eta::ToMessage(*calibration.progress).progress();
    }
  }
}

}  // namespace

v1::Stats ToMessage(const StatsFacts& facts, const EngineInfo& info) {
  v1::Stats stats;
  *stats.mutable_time() = TimeUtil::NanosecondsToTimestamp(
      std::chrono::duration_cast<nanoseconds>(facts.time.time_since_epoch()).count());
  *stats.mutable_uptime() = ToMessage(facts.now - facts.telemetry.started);
  FillServer(facts, info, *stats.mutable_server());
  if (facts.tenant) {
    stats.set_tenant(facts.tenant->id());
  } else {
    FillLoad(facts, *stats.mutable_load());
    Fill(facts.connections, *stats.mutable_connections());
    Fill(facts.pressure, *stats.mutable_pressure());
    v1::StoreCallStats& store_calls = *stats.mutable_store_calls();
    store_calls.set_waiting(facts.store_calls_waiting);
    store_calls.set_max_waiting(facts.max_store_calls_waiting);
    store_calls.set_lookups_waiting(facts.profile_lookups_waiting);
    store_calls.set_max_lookups_waiting(facts.max_profile_lookups_waiting);
    FillLatencies(facts.telemetry, stats);
  }
  FillAttention(facts, stats);
  FillTenants(facts.telemetry, stats);
  FillProfiles(facts, stats);
  FillUses(facts.holdings, stats);
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
