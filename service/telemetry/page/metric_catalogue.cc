#include "service/telemetry/page/metric_catalogue.h"

#include <initializer_list>

namespace eta {
namespace {

constexpr auto kCounter = MetricType::kCounter;
constexpr auto kGauge = MetricType::kGauge;
constexpr auto kHistogram = MetricType::kHistogram;

constexpr Metric kCalls[] = {
    {"eta_requests_total", kCounter, "model,method,code,finish_reason,mode,profile,tenant", "calls",
     "Finished calls of every method, by gRPC status; mode and profile of Generate once they are "
     "known"},
    {"eta_requests_rejected_total", kCounter, "model,method,reason", "calls",
     "Calls refused before they ran, by reason (ErrorReason in lower case)"},
    {"eta_requests_failed_total", kCounter, "model,method,reason", "calls",
     "Calls that ran and ended with an error other than CANCELLED, by reason"},
    {"eta_requests_cancelled_total", kCounter, "model,stage", "calls",
     "Generate calls that ended CANCELLED, by how far they had come: queued, prefill, decode"},
};

constexpr Metric kQueue[] = {
    {"eta_requests_running", kGauge, "model", "requests", "Requests in the batch"},
    {"eta_requests_paused", kGauge, "model", "requests",
     "Those of them that pause until their clients have read"},
    {"eta_requests_waiting", kGauge, "model", "requests",
     "Requests that wait for a place in the batch"},
    {"eta_waiting_prompt_tokens", kGauge, "model", "tokens", "Prompt tokens of those that wait"},
    {"eta_probes_running", kGauge, "model", "probes",
     "Passes of calibrations that hold blocks of the KV cache"},
    {"eta_probes_waiting", kGauge, "model", "probes", "Passes of calibrations that wait"},
    {"eta_predicted_wait_seconds", kGauge, "model,device", "seconds",
     "How long a request that comes now waits if all that waits goes first: what "
     "DEADLINE_TOO_SHORT is decided by, as of the device's last step"},
    {"eta_prefill_tokens_per_second", kGauge, "model,device", "tokens per second",
     "How fast prompts go, which that is predicted from; absent before it is measured"},
    {"eta_seat_interval_seconds", kGauge, "model,device", "seconds",
     "Between two seats of a full batch that come free, likewise; absent while one is free"},
    {"eta_store_calls_waiting", kGauge, "model", "calls",
     "Calls of Calibrate and of profiles that wait for a thread that asks the profile store"},
    {"eta_store_calls_max_waiting", kGauge, "model", "calls",
     "As many may; the next get QUEUE_FULL, and a tenant's at half of what is free"},
    {"eta_profile_lookups_waiting", kGauge, "model", "calls",
     "Calls of Generate that wait for a profile which is not in memory"},
    {"eta_profile_lookups_max_waiting", kGauge, "model", "calls", "As many may, likewise"},
    {"eta_stats_watchers", kGauge, "model", "calls", "Calls of WatchStats"},
    {"eta_stats_watchers_max", kGauge, "model", "calls",
     "As many may be; the next get WATCHERS_FULL"},
};

constexpr Metric kKvCache[] = {
    {"eta_kv_cache_usage_ratio", kGauge, "model", "ratio",
     "Share of the KV cache's blocks that requests and probes hold, over all devices"},
    {"eta_kv_cache_blocks", kGauge, "model,state", "blocks",
     "Blocks that are used, cached (kept for their prefix only) or free"},
    {"eta_kv_cache_config_info", kGauge, "model,block_size,num_gpu_blocks,dtype,index_dtype",
     "always 1",
     "The KV cache: tokens of a block, blocks on all devices, formats of keys and records"},
};

constexpr Metric kLatency[] = {
    {"eta_time_to_first_token_seconds", kHistogram, "model,mode,profile", "seconds",
     "From submission to the first token"},
    {"eta_inter_token_latency_seconds", kHistogram, "model,mode,profile", "seconds",
     "From one token of a request to the next"},
    {"eta_request_time_per_output_token_seconds", kHistogram, "model,mode,profile", "seconds",
     "First token to last by tokens after the first, of requests that ended OK with two or more"},
    {"eta_request_duration_seconds", kHistogram, "model,mode,profile", "seconds",
     "From submission to the last token, of requests that ended OK"},
    {"eta_request_queue_duration_seconds", kHistogram, "model", "seconds",
     "From submission until the request was scheduled"},
    {"eta_request_prefill_duration_seconds", kHistogram, "model", "seconds",
     "From scheduling to the first token"},
    {"eta_request_decode_duration_seconds", kHistogram, "model", "seconds",
     "From the first token to the last"},
};

constexpr Metric kTokens[] = {
    {"eta_prompt_tokens_total", kCounter, "model,tenant,profile", "tokens",
     "Prompt tokens of requests that were scheduled, counted when they end"},
    {"eta_prompt_tokens_cached_total", kCounter, "model,tenant,profile", "tokens",
     "Those of them that came from shared blocks"},
    {"eta_generated_tokens_total", kCounter, "model,tenant,profile", "tokens", "Tokens drawn"},
    {"eta_request_prompt_tokens", kHistogram, "model", "tokens",
     "Prompt tokens of a request that was scheduled"},
    {"eta_request_generated_tokens", kHistogram, "model", "tokens",
     "Tokens drawn for a request that was scheduled"},
};

constexpr Metric kAttention[] = {
    {"eta_attention_decode_rows_total", kCounter, "model,mode,profile", "rows",
     "Decode rows that counted, each once"},
    {"eta_attention_keys_attended_total", kCounter, "model,mode,profile", "keys",
     "Keys admitted, over layers and query heads; by eligible keys: the head density"},
    {"eta_attention_keys_eligible_total", kCounter, "model,mode,profile", "keys",
     "Keys that full attention would have attended, over layers and query heads"},
    {"eta_attention_keys_read_total", kCounter, "model,mode,profile", "keys",
     "Keys read, over layers and KV heads; by cached keys: the union density"},
    {"eta_attention_keys_cached_total", kCounter, "model,mode,profile", "keys",
     "Keys that full attention would have read, over layers and KV heads"},
    {"eta_attention_kv_bytes_read_total", kCounter, "model,mode,profile", "bytes",
     "Keys and values that attention read"},
    {"eta_attention_kv_bytes_dense_total", kCounter, "model,mode,profile", "bytes",
     "Keys and values that full attention would have read"},
    {"eta_attention_index_bytes_read_total", kCounter, "model,mode,profile", "bytes",
     "Block records screened, beside the keys and values"},
    {"eta_request_density_ratio", kHistogram, "model,mode,profile", "ratio",
     "Head density of a request with decode rows"},
    {"eta_request_union_density_ratio", kHistogram, "model,mode,profile", "ratio",
     "Union density of a request with decode rows"},
    {"eta_tenant_attention_decode_rows_total", kCounter, "model,tenant", "rows",
     "eta_attention_decode_rows_total by tenant"},
    {"eta_tenant_attention_keys_attended_total", kCounter, "model,tenant", "keys",
     "eta_attention_keys_attended_total by tenant"},
    {"eta_tenant_attention_keys_eligible_total", kCounter, "model,tenant", "keys",
     "eta_attention_keys_eligible_total by tenant"},
    {"eta_tenant_attention_keys_read_total", kCounter, "model,tenant", "keys",
     "eta_attention_keys_read_total by tenant"},
    {"eta_tenant_attention_keys_cached_total", kCounter, "model,tenant", "keys",
     "eta_attention_keys_cached_total by tenant"},
    {"eta_tenant_attention_kv_bytes_read_total", kCounter, "model,tenant", "bytes",
     "eta_attention_kv_bytes_read_total by tenant"},
    {"eta_tenant_attention_kv_bytes_dense_total", kCounter, "model,tenant", "bytes",
     "eta_attention_kv_bytes_dense_total by tenant"},
};

constexpr Metric kTenants[] = {
    {"eta_tenant_calls", kGauge, "model,tenant", "calls",
     "Calls of the tenant that run, without those of Stats and Admin; present while it has any, "
     "owes "
     "tokens, or is named by --tenants"},
    {"eta_tenant_max_calls", kGauge, "model,tenant", "calls",
     "As many may; absent without a bound, as the other bounds, and of `other`"},
    {"eta_tenant_tokens_left", kGauge, "model,tenant", "tokens", "What its token budget holds"},
    {"eta_tenant_burst_tokens", kGauge, "model,tenant", "tokens", "As much as it may hold"},
    {"eta_tenant_tokens_per_second", kGauge, "model,tenant", "tokens per second",
     "What flows into it"},
    {"eta_tenant_weight", kGauge, "model,tenant", "weight",
     "Its share of the engine against other tenants' while requests wait"},
    {"eta_tenant_kv_tokens", kGauge, "model,tenant", "tokens",
     "Tokens of the KV cache reserved for its running requests (prompt and max_tokens)"},
    {"eta_tenant_max_kv_tokens", kGauge, "model,tenant", "tokens",
     "As many may be reserved, on each device"},
    {"eta_tenant_requests_running", kGauge, "model,tenant", "requests",
     "Its requests in the batch"},
    {"eta_tenant_requests_waiting", kGauge, "model,tenant", "requests",
     "Its requests that wait for a place in it"},
    {"eta_tenant_requests_paused", kGauge, "model,tenant", "requests",
     "Its requests in the batch that pause until their clients have read"},
    {"eta_tenant_calibrations", kGauge, "model,tenant", "calibrations",
     "Its calibrations that run"},
    {"eta_tenant_max_calibrations", kGauge, "model,tenant", "calibrations", "As many may"},
    {"eta_tenant_profile_versions", kGauge, "model,tenant", "versions",
     "Versions of profiles that it has stored, as of a second ago at most; absent, as their bytes "
     "and their number ever, without a profile store that takes profiles"},
    {"eta_tenant_max_profile_versions", kGauge, "model,tenant", "versions", "As many may be"},
    {"eta_tenant_profile_bytes", kGauge, "model,tenant", "bytes", "Bytes of them"},
    {"eta_tenant_max_profile_bytes", kGauge, "model,tenant", "bytes", "As many may be"},
    {"eta_tenant_profile_versions_ever", kGauge, "model,tenant", "versions",
     "Versions that it has stored, with those that were deleted"},
    {"eta_tenant_max_profile_versions_ever", kGauge, "model,tenant", "versions", "As many may be"},
    {"eta_tenant_refused_total", kCounter, "model,tenant,reason", "calls",
     "Calls refused for a limit of their tenant: tenant_calls, tenant_tokens, tenant_kv, "
     "tenant_calibrations, profile_quota, answers_unread"},
};

constexpr Metric kSteps[] = {
    {"eta_step_duration_seconds", kHistogram, "model,phase", "seconds",
     "Duration of a step, by what it computed: prefill, decode, mixed (both), probe"},
    {"eta_step_batch_size", kHistogram, "model", "sequences",
     "Sequences of a step, without those of probes"},
    {"eta_step_tokens", kHistogram, "model", "tokens", "Rows of a step, without those of probes"},
    {"eta_probe_rows_total", kCounter, "model", "rows", "Rows of steps that served probes"},
    {"eta_preemptions_total", kCounter, "model", "preemptions",
     "Requests that lost their blocks to others and start again"},
};

constexpr Metric kEngine[] = {
    {"eta_engine_state", kGauge, "state", "0 or 1",
     "1 for the state that holds: loading, serving, draining, stalled, device_lost"},
    {"eta_engine_last_step_timestamp_seconds", kGauge, "model", "seconds since 1970",
     "End of the newest step; absent before the first"},
    {"eta_devices", kGauge, "model,state", "devices", "Devices that work, and that are lost"},
    {"eta_model_info", kGauge, "model,fingerprint,backend,layers,query_heads,kv_heads", "always 1",
     "The model that is served, and what computes it"},
    {"eta_model_load_duration_seconds", kGauge, "model", "seconds", "What loading it took"},
    {"eta_uptime_seconds", kGauge, "", "seconds", "Since the process began to count"},
    {"eta_build_info", kGauge, "version", "always 1", "The program"},
};

constexpr Metric kProfiles[] = {
    {"eta_profile_info", kGauge, "model,tenant,profile,version,digest", "always 1",
     "Profiles in memory; only those whose name and tenant have labels of their own"},
    {"eta_profile_target_density_ratio", kGauge, "model,tenant,profile,version", "ratio",
     "Head density that the profile's calibration verified on held-out text"},
    {"eta_profile_target_union_density_ratio", kGauge, "model,tenant,profile,version", "ratio",
     "Union density likewise"},
    {"eta_profiles_loaded", kGauge, "model", "profiles", "Profile versions in memory"},
    {"eta_profile_cache_bytes", kGauge, "model", "bytes", "Bytes of the profiles that are cached"},
    {"eta_profile_reloads_total", kCounter, "model,result", "reads",
     "Reads of profiles from the store by the cache: success (also of what is not there), failure"},
    {"eta_profile_last_reload_success_timestamp_seconds", kGauge, "model", "seconds since 1970",
     "The newest of them that succeeded; absent before the first"},
    {"eta_profile_staleness_seconds", kGauge, "model", "seconds",
     "Since the store last confirmed the profile that was confirmed longest ago; 0 without any"},
    {"eta_profile_store_up", kGauge, "model", "0 or 1",
     "Whether the profile store is in order; absent without one"},
};

constexpr Metric kCalibrations[] = {
    {"eta_calibrations_total", kCounter, "model,result", "calls",
     "Finished Calibrate calls: success, cancelled, rejected (before they ran), failed"},
    {"eta_calibrations_in_progress", kGauge, "model", "calibrations", "Calibrations that run"},
    {"eta_calibration_duration_seconds", kHistogram, "model", "seconds",
     "Duration of calls that were not rejected"},
};

constexpr Metric kConnections[] = {
    {"eta_connections_open", kGauge, "model", "connections", "Connections that are open"},
    {"eta_connections_max", kGauge, "model", "connections",
     "As many may be; the next are closed at once"},
    {"eta_connections_accepted_total", kCounter, "model", "connections",
     "Connections that were served"},
    {"eta_connections_refused_total", kCounter, "model,reason", "connections",
     "Connections closed at once: full, peer (too many of that peer), no_files (the process has no "
     "file descriptor left)"},
    {"eta_connection_accept_errors_total", kCounter, "model", "errors",
     "Errors of the operating system when a connection was to be accepted"},
};

constexpr Metric kFiles[] = {
    {"eta_file_reloads_total", kCounter, "model,file,result", "reads",
     "Times that a file of the configuration (tls, identity, tenants) was taken: success (also at "
     "start), failure (what was read before stayed in effect)"},
    {"eta_file_current", kGauge, "model,file", "0 or 1",
     "0 while what such a file holds was refused, and something older is in effect"},
};

constexpr Metric kProcess[] = {
    {"eta_memory_pressure", kGauge, "model", "0 or 1",
     "Whether calls are refused because memory is short"},
    {"eta_memory_pressure_state", kGauge, "model,state", "0 or 1",
     "1 for what is done without: none, short_queue (fewer requests may wait), no_calibrate, "
     "no_generate (calls are refused), end_streams (the largest answers are given up)"},
    {"eta_memory_streams_ended_total", kCounter, "model", "calls",
     "Answers that were given up because memory was short"},
    {"eta_unread_answer_bytes", kGauge, "model", "bytes",
     "Answers of calls but streams that clients have not read yet, and 16 KiB for each"},
    {"eta_answers_cut_off_total", kCounter, "model", "calls",
     "Those that were not read in time, so that their calls were ended"},
    {"eta_memory_used_ratio", kGauge, "model", "ratio",
     "Share used of the process's memory limit; 0 without a limit"},
    {"process_cpu_seconds_total", kCounter, "", "seconds", "CPU time, user and system"},
    {"process_resident_memory_bytes", kGauge, "", "bytes", "Resident memory"},
    {"process_virtual_memory_bytes", kGauge, "", "bytes", "Virtual memory"},
    {"process_open_fds", kGauge, "", "files", "Open file descriptors"},
    {"process_max_fds", kGauge, "", "files", "File descriptors that may be open"},
    {"process_threads", kGauge, "", "threads", "Threads"},
    {"process_start_time_seconds", kGauge, "", "seconds since 1970", "When the process started"},
};

constexpr MetricGroup kGroups[] = {
    {"Calls", kCalls},
    {"Queue", kQueue},
    {"KV cache", kKvCache},
    {"Latency", kLatency},
    {"Tokens", kTokens},
    {"Attention", kAttention},
    {"Limits of tenants", kTenants},
    {"Steps", kSteps},
    {"Engine", kEngine},
    {"Profiles", kProfiles},
    {"Calibrations", kCalibrations},
    {"Connections", kConnections},
    {"Files of the configuration", kFiles},
    {"Process and memory", kProcess},
};

constexpr char kPreamble[] =
    R"(# Metrics

The whole page that `eta-server` serves at `/metrics` (`--metrics_listen`). This file is the output
of `eta-server --print_metrics`; a test keeps it so.

Sums over all devices. Counters and histograms start at 0 with the process; a call is counted before
its client sees the status, and an answer before its last message is sent. Densities are rates of two
counters, never averages of averages: head density is
`rate(eta_attention_keys_attended_total) / rate(eta_attention_keys_eligible_total)`, union density
`rate(eta_attention_keys_read_total) / rate(eta_attention_keys_cached_total)`.

Labels: `model` is the served model's name. `mode` is `full`, `dynamic`, `profile`, or `none` before
it is known. `profile` and `tenant` are names, `none` without one, and `other` for names without a
label of their own: those named by `--metrics_profiles` and `--metrics_tenants` have one or, without
these flags, the first `--metrics_label_limit` names whose requests ran.
`finish_reason` is `stop_token`, `end_of_text`, `stop_string`, `length`, or `none` without an answer.
)";

constexpr char kLeftOut[] =
    R"(
## Left out

What other servers show and nothing here stands behind: waiting requests by reason (there is one
queue), fallbacks to full attention (there are none), whether a step was replayed as a CUDA graph,
which profiles lie in a GPU's memory (`eta_profile_info` tells those in the host's), labels `layer`
and `head` (Stats has their figures: `etactl stats --layers`), and the GPU's own (NVIDIA's DCGM
exporter has them).
)";

}  // namespace

std::string_view Name(MetricType type) {
  switch (type) {
    case MetricType::kCounter:
      return "counter";
    case MetricType::kGauge:
      return "gauge";
    case MetricType::kHistogram:
      return "histogram";
  }
  return "untyped";
}

std::span<const MetricGroup> MetricCatalogue() {
  return kGroups;
}

const Metric* FindMetric(std::string_view name) {
  for (const MetricGroup& group : kGroups) {
    for (const Metric& metric : group.metrics) {
      if (metric.name == name) return &metric;
    }
  }
  return nullptr;
}

std::string MetricCatalogueMarkdown() {
  std::string text = kPreamble;
  const auto append = [&text](std::initializer_list<std::string_view> parts) {
    for (const std::string_view part : parts) text += part;
  };
  for (const MetricGroup& group : kGroups) {
    append({"\n## ", group.title,
            "\n\n| Metric | Type | Labels | Unit | Meaning |\n|---|---|---|---|---|\n"});
    for (const Metric& metric : group.metrics) {
      std::string labels;
      for (const char c : metric.labels)
        labels += c == ',' ? std::string("`, `") : std::string(1, c);
      const std::string_view tick = labels.empty() ? "" : "`";
      append({"| `", metric.name, "` | ", Name(metric.type), " | ", tick, labels, tick, " | ",
              metric.unit, " | ", metric.help, " |\n"});
    }
  }
  return text + kLeftOut;
}

}  // namespace eta
