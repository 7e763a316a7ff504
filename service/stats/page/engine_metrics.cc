// How the engine stands: its queue, its cache, its devices.
#include <algorithm>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "service/stats/page/metric_groups.h"

namespace eta {
namespace {

std::optional<double> NonZero(double value) {
  return value == 0.0 ? std::nullopt : std::optional(value);
}

}  // namespace

void AddQueue(const ServerStatus& status, MetricFamilies& page) {
  const auto gauge = [&](std::string_view name, int64_t value) {
    page.Begin(name);
    if (status.state) page.Add({}, value);
  };
  gauge("eta_requests_running", status.engine.running);
  gauge("eta_requests_paused", status.engine.paused);
  gauge("eta_requests_waiting",
        status.engine.waiting + status.tokenizer_calls.waiting + status.format_calls.waiting);
  gauge("eta_waiting_prompt_tokens", status.engine.waiting_tokens);
  gauge("eta_calibration_passes_running", status.engine.passes_running);
  gauge("eta_calibration_passes_waiting", status.engine.passes_waiting);
  const auto of_devices = [&](std::string_view name, const auto& value) {
    page.Begin(name);
    for (size_t i = 0; i < status.devices.size(); ++i) {
      const std::optional<double> number = value(status.devices[i]);
      if (number) page.Add({{"device", std::to_string(i)}}, *number);
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
  gauge("eta_store_calls_waiting", status.store_calls.waiting);
  gauge("eta_store_calls_max_waiting", status.store_calls.max_waiting);
  gauge("eta_tokenizer_calls_waiting", status.tokenizer_calls.waiting);
  gauge("eta_tokenizer_calls_max_waiting", status.tokenizer_calls.max_waiting);
  gauge("eta_format_calls_waiting", status.format_calls.waiting);
  gauge("eta_format_calls_max_waiting", status.format_calls.max_waiting);
  gauge("eta_profile_lookups_waiting", status.profile_lookups.waiting);
  gauge("eta_profile_lookups_max_waiting", status.profile_lookups.max_waiting);
  gauge("eta_stats_watchers", status.watchers);
  gauge("eta_stats_watchers_max", status.max_watchers);
}

void AddKvCache(const ServerStatus& status, MetricFamilies& page) {
  const EngineSnapshot& engine = status.engine;
  page.Begin("eta_kv_cache_usage_ratio");
  if (status.state) {
    const int32_t blocks = engine.blocks_used + engine.blocks_cached + engine.blocks_free;
    page.Add({}, static_cast<double>(engine.blocks_used) / std::max(blocks, 1));
  }
  page.Begin("eta_kv_cache_blocks");
  if (status.state) {
    page.Add({{"state", "used"}}, engine.blocks_used);
    page.Add({{"state", "cached"}}, engine.blocks_cached);
    page.Add({{"state", "free"}}, engine.blocks_free);
  }
  page.Begin("eta_kv_cache_config_info");
  if (status.state) {
    page.Add({{"block_size", std::to_string(status.info.block_size)},
              {"num_gpu_blocks", std::to_string(status.info.num_blocks)},
              {"dtype", Name(status.info.kv_dtype)},
              {"index", Name(status.info.index)},
              {"index_dtype", Name(status.info.index_dtype)}},
             1);
  }
}

void AddEngine(const ServerStatus& status, MetricFamilies& page) {
  constexpr std::pair<std::string_view, ServerState> kStates[] = {
      {"serving", ServerState::kServing},
      {"draining", ServerState::kDraining},
      {"stalled", ServerState::kStalled},
      {"device_lost", ServerState::kDeviceLost}};
  page.Begin("eta_engine_state");
  page.Add({{"state", "loading"}}, status.state ? 0 : 1);
  for (const auto& [name, state] : kStates) {
    page.Add({{"state", name}}, status.state == state ? 1 : 0);
  }
  page.Begin("eta_engine_last_step_timestamp_seconds");
  if (status.engine.last_step != Clock::time_point{}) {
    page.Add({}, Seconds(status.time.time_since_epoch() - (status.now - status.engine.last_step)));
  }
  page.Begin("eta_devices");
  if (status.state) {
    const auto lost =
        std::count_if(status.devices.begin(), status.devices.end(),
                      [](const EngineSnapshot& device) { return device.device_lost; });
    page.Add({{"state", "working"}}, std::ssize(status.devices) - lost);
    page.Add({{"state", "lost"}}, lost);
  }
  page.Begin("eta_model_info");
  if (status.state) {
    page.Add({{"fingerprint", status.info.model_fingerprint},
              {"backend", status.info.backend},
              {"layers", std::to_string(status.info.config.num_layers)},
              {"query_heads", std::to_string(status.info.config.num_query_heads)},
              {"kv_heads", std::to_string(status.info.config.num_kv_heads)}},
             1);
  }
  page.AddOnly("eta_model_load_duration_seconds", Seconds(status.telemetry.load_duration));
  page.AddOnly("eta_uptime_seconds", Seconds(status.now - status.telemetry.started));
  page.Begin("eta_build_info");
  page.Add({{"version", status.version}}, 1);
}

}  // namespace eta
