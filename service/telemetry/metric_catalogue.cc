#include "service/telemetry/metric_catalogue.h"

namespace eta {
namespace {

constexpr auto kCounter = prometheus::MetricType::Counter;
constexpr auto kGauge = prometheus::MetricType::Gauge;
constexpr auto kHistogram = prometheus::MetricType::Histogram;
constexpr auto kSummary = prometheus::MetricType::Summary;

constexpr Metric kCalls[] = {
    {"eta_calls_total", kCounter, "model,method,code", "calls",
     "Calls that ended, by method and gRPC status: of all callers, whatever labels come and go"},
    {"eta_requests_total", kCounter, "model,method,code,finish_reason,mode,profile,version,tenant",
     "calls",
     "Calls that ended, by method and gRPC status; mode, profile and version are set for "
     "Generate calls once they are known"},
    {"eta_requests_rejected_total", kCounter, "model,method,reason", "calls",
     "Calls that were refused before they ran, by reason (ErrorReason in lower case)"},
    {"eta_requests_failed_total", kCounter, "model,method,reason", "calls",
     "Calls that ran and ended with an error other than CANCELLED, by reason (ErrorReason in lower "
     "case)"},
    {"eta_requests_cancelled_total", kCounter, "model,stage", "calls",
     "Generate calls that ended with CANCELLED, by the stage they had reached: queued, prefill or "
     "decode"},
    {"eta_deadline_exceeded_wait_seconds", kHistogram, "model", "seconds",
     "Seconds that a Generate call which ended with DEADLINE_EXCEEDED had waited for a token: for "
     "its first, or at its end for the next one, whichever was longer"},
    {"eta_default_profile_requests_total", kCounter, "model,result", "calls",
     "Generate calls that named no attention mode where the server has a default profile, by what "
     "they got of it: used, absent (the tenant has none), unfit (it belongs to another model) or "
     "unavailable (the store could not give it)"},
};

constexpr Metric kQueue[] = {
    {"eta_requests_running", kGauge, "model", "requests",
     "Requests that are running, paused ones included"},
    {"eta_requests_paused", kGauge, "model", "requests",
     "Running requests that have given up their slot until their clients have read"},
    {"eta_requests_waiting", kGauge, "model", "requests",
     "Requests that wait for a slot in the batch, preempted ones included, and calls whose text or "
     "format waits for a thread"},
    {"eta_waiting_prompt_tokens", kGauge, "model", "tokens",
     "Prompt tokens of waiting requests that have not run yet"},
    {"eta_calibration_passes_running", kGauge, "model", "passes",
     "Calibration passes that hold blocks of the KV cache"},
    {"eta_calibration_passes_waiting", kGauge, "model", "passes",
     "Calibration passes that wait to run"},
    {"eta_predicted_wait_seconds", kGauge, "model,device", "seconds",
     "Seconds that a new request would wait if all waiting requests went first, as of the device's "
     "last step: the wait estimate behind DEADLINE_TOO_SHORT"},
    {"eta_prefill_tokens_per_second", kGauge, "model,device", "tokens per second",
     "Prompt tokens per second that the device computes, an input of the wait estimate; absent "
     "before the first measurement"},
    {"eta_slot_interval_seconds", kGauge, "model,device", "seconds",
     "Seconds between two slots of a full batch that become free, an input of the wait estimate; "
     "absent while a slot is free"},
    {"eta_store_calls_waiting", kGauge, "model", "calls",
     "Calibrate and ProfileService calls that wait for a thread of the profile store"},
    {"eta_store_calls_max_waiting", kGauge, "model", "calls",
     "Calls that may wait for a thread of the profile store before others get QUEUE_FULL; one "
     "tenant may hold no more places than are free"},
    {"eta_tokenizer_calls_waiting", kGauge, "model", "calls",
     "Calls that wait for a thread that makes tokens of their text or chat"},
    {"eta_tokenizer_calls_max_waiting", kGauge, "model", "calls",
     "Calls that may wait for such a thread before others get QUEUE_FULL; one tenant may "
     "hold no more places than are free"},
    {"eta_format_calls_waiting", kGauge, "model", "calls",
     "Calls that wait for a thread that has the format of their answer compiled"},
    {"eta_format_calls_max_waiting", kGauge, "model", "calls",
     "Calls that may wait for such a thread before others get QUEUE_FULL; one tenant may hold no "
     "more places than are free"},
    {"eta_profile_lookups_waiting", kGauge, "model", "calls",
     "Generate calls that wait for a profile that is not in memory"},
    {"eta_profile_lookups_max_waiting", kGauge, "model", "calls",
     "Generate calls that may wait for a profile before others get QUEUE_FULL; one tenant may hold "
     "no more places than are free"},
    {"eta_stats_watchers", kGauge, "model", "calls", "WatchStats calls that are open"},
    {"eta_stats_watchers_max", kGauge, "model", "calls",
     "WatchStats calls that may be open before others get WATCHERS_FULL"},
};

constexpr Metric kKvCache[] = {
    {"eta_kv_cache_usage_ratio", kGauge, "model", "ratio",
     "Ratio of the KV cache's blocks held by requests and calibration passes to all its blocks, "
     "over all devices"},
    {"eta_kv_cache_blocks", kGauge, "model,state", "blocks",
     "Blocks of the KV cache by state: used, cached (kept only for their prefix) or free"},
    {"eta_kv_cache_config_info", kGauge, "model,block_size,num_gpu_blocks,dtype,index,index_dtype",
     "always 1",
     "Settings of the KV cache as labels: tokens per block, blocks on all devices, format of keys "
     "and values, kind and format of block records"},
};

constexpr Metric kLatency[] = {
    {"eta_time_to_first_token_seconds", kHistogram, "model,mode", "seconds",
     "Seconds from the submission of a request to its first token"},
    {"eta_inter_token_latency_seconds", kHistogram, "model,mode", "seconds",
     "Seconds from one token of a request to the next"},
    {"eta_request_time_per_output_token_seconds", kHistogram, "model,mode", "seconds",
     "Seconds from the first token to the last, divided by the tokens after the first, of requests "
     "that ended OK with at least two tokens"},
    {"eta_request_duration_seconds", kHistogram, "model,mode", "seconds",
     "Seconds from submission to the last token, of requests that ended OK"},
    {"eta_request_queue_duration_seconds", kHistogram, "model", "seconds",
     "Seconds from submission until the request was scheduled"},
    {"eta_request_prefill_duration_seconds", kHistogram, "model", "seconds",
     "Seconds from scheduling to the first token"},
    {"eta_request_decode_duration_seconds", kHistogram, "model", "seconds",
     "Seconds from the first token to the last"},
};

constexpr Metric kTokens[] = {
    {"eta_prompt_tokens_total", kCounter, "model,tenant,profile,version", "tokens",
     "Prompt tokens of requests that were scheduled, counted when the request ends"},
    {"eta_prompt_tokens_cached_total", kCounter, "model,tenant,profile,version", "tokens",
     "Prompt tokens that came from the prefix cache, of requests that were scheduled, counted when "
     "the request ends"},
    {"eta_generated_tokens_total", kCounter, "model,tenant,profile,version", "tokens",
     "Tokens that the sampler drew"},
    {"eta_request_prompt_tokens", kHistogram, "model", "tokens",
     "Prompt tokens of a request that was scheduled"},
    {"eta_request_generated_tokens", kHistogram, "model", "tokens",
     "Tokens that the sampler drew for a request that was scheduled"},
};

constexpr Metric kAttention[] = {
    {"eta_attention_decode_rows_total", kCounter, "model,mode,profile,version,tenant", "rows",
     "Decode rows whose attention was counted, each row once"},
    {"eta_attention_keys_attended_total", kCounter, "model,mode,profile,version,tenant", "keys",
     "Keys that heads attended to, summed over layers and query heads; divided by eligible keys "
     "they give the head density"},
    {"eta_attention_keys_eligible_total", kCounter, "model,mode,profile,version,tenant", "keys",
     "Keys that full attention would have attended to, summed over layers and query heads"},
    {"eta_attention_keys_read_total", kCounter, "model,mode,profile,version,tenant", "keys",
     "Keys that attention read, summed over layers and KV heads; divided by cached keys they give "
     "the union density"},
    {"eta_attention_keys_cached_total", kCounter, "model,mode,profile,version,tenant", "keys",
     "Keys that full attention would have read, summed over layers and KV heads"},
    {"eta_attention_values_read_total", kCounter, "model,mode,profile,version,tenant", "values",
     "Values that attention read, summed over layers and KV heads: as many as keys, or fewer where "
     "reads are confirmed"},
    {"eta_attention_kv_bytes_read_total", kCounter, "model,mode,profile,version,tenant", "bytes",
     "Bytes of keys and values that attention read"},
    {"eta_attention_kv_bytes_dense_total", kCounter, "model,mode,profile,version,tenant", "bytes",
     "Bytes of keys and values that full attention would have read"},
    {"eta_attention_index_bytes_read_total", kCounter, "model,mode,profile,version,tenant", "bytes",
     "Bytes of block records that block selection read, in addition to keys and values"},
    {"eta_attention_prefill_rows_total", kCounter, "model,mode,profile,version,tenant", "rows",
     "Prompt rows that attended to what they admitted (sparse prefill), each row once"},
    {"eta_attention_prefill_keys_attended_total", kCounter, "model,mode,profile,version,tenant",
     "keys",
     "Keys that heads attended to in sparse prefill, summed over layers and query heads; divided "
     "by "
     "eligible keys they give its density"},
    {"eta_attention_prefill_keys_eligible_total", kCounter, "model,mode,profile,version,tenant",
     "keys",
     "Keys that full prefill would have attended to for the same rows, summed over layers and "
     "query "
     "heads"},
    {"eta_request_density_ratio", kHistogram, "model,mode,profile,version,tenant", "ratio",
     "Head density of a request as a ratio, averaged over its decode rows"},
    {"eta_request_union_density_ratio", kHistogram, "model,mode,profile,version,tenant", "ratio",
     "Union density of a request as a ratio, averaged over its decode rows"},
    {"eta_attention_mass_kept_ratio", kHistogram, "model,mode,profile,version,tenant", "ratio",
     "Of decode rows and layers that were also computed with full attention (--shadow_rate): share "
     "of its softmax that lay on the keys which were attended to, averaged over query heads"},
    {"eta_attention_output_error_total", kCounter, "model,mode,profile,version,tenant", "1",
     "Distances from full attention's output, relative to its norm and averaged over query heads, "
     "summed over the same rows and layers; divide by eta_attention_mass_kept_ratio_count"},
    {"eta_attention_fallbacks_total", kCounter, "model,mode,profile,version,tenant", "requests",
     "Requests that began or went on with full attention for want of mass (min_mass, begin); not "
     "those that asked for BEGIN_FULL"},
    {"eta_attention_fallback_rows_total", kCounter, "model,mode,profile,version,tenant", "rows",
     "Decode rows with full attention of these and of those that asked for BEGIN_FULL; no other "
     "metric of attention counts them"},
    {"eta_attention_fallback_kv_bytes_read_total", kCounter, "model,mode,profile,version,tenant",
     "bytes", "Bytes of keys and values that these rows read"},
    {"eta_tenant_attention_decode_rows_total", kCounter, "model,tenant", "rows",
     "Decode rows of the tenant whose attention was counted, each row once"},
    {"eta_tenant_attention_keys_attended_total", kCounter, "model,tenant", "keys",
     "Keys that heads attended to for the tenant, summed over layers and query heads"},
    {"eta_tenant_attention_keys_eligible_total", kCounter, "model,tenant", "keys",
     "Keys that full attention would have attended to for the tenant, summed over layers and query "
     "heads"},
    {"eta_tenant_attention_keys_read_total", kCounter, "model,tenant", "keys",
     "Keys that attention read for the tenant, summed over layers and KV heads"},
    {"eta_tenant_attention_keys_cached_total", kCounter, "model,tenant", "keys",
     "Keys that full attention would have read for the tenant, summed over layers and KV heads"},
    {"eta_tenant_attention_kv_bytes_read_total", kCounter, "model,tenant", "bytes",
     "Bytes of keys and values that attention read for the tenant"},
    {"eta_tenant_attention_kv_bytes_dense_total", kCounter, "model,tenant", "bytes",
     "Bytes of keys and values that full attention would have read for the tenant"},
};

constexpr Metric kFormats[] = {
    {"eta_format_requests_total", kCounter, "model,format", "calls",
     "Generate calls that ended and asked for a format of their answer, by its kind, whatever "
     "became of them"},
    {"eta_format_answers_total", kCounter, "model,format,result", "answers",
     "Answers with a format by what became of them: ended (whole, or by a stop that the request "
     "names), cut_off (max_tokens came before they were whole) or invalid (the last check found "
     "one "
     "that is not what was asked for); not those that failed otherwise"},
    {"eta_format_lookups_total", kCounter, "model,result", "calls",
     "Calls that looked for their format among those that are kept compiled, by result: hit or "
     "miss"},
    {"eta_format_compile_duration_seconds", kHistogram, "model", "seconds",
     "Seconds that a call which missed waited until its format was compiled or refused, or until "
     "the call ended; the wait for a thread is a part of them"},
    {"eta_step_mask_duration_seconds", kHistogram, "model", "seconds",
     "Seconds that the CPUs took in a step, of all threads together, to tell which tokens the "
     "formats of its answers allow; steps without such answers are not observed"},
    {"eta_step_mask_wait_seconds", kHistogram, "model", "seconds",
     "Seconds of them that the step waited, since the device was done; of the same steps"},
};

constexpr Metric kTenants[] = {
    {"eta_tenant_calls", kGauge, "model,tenant", "calls",
     "Calls of the tenant that are running, without Stats and Admin calls; present while the "
     "tenant has calls, owes tokens or is named in --tenants"},
    {"eta_tenant_max_calls", kGauge, "model,tenant", "calls",
     "Calls that the tenant may run at a time; absent without a limit and for `other`"},
    {"eta_tenant_tokens_left", kGauge, "model,tenant", "tokens",
     "Tokens that are left in the tenant's token budget; absent without one and for `other`"},
    {"eta_tenant_burst_tokens", kGauge, "model,tenant", "tokens",
     "Tokens that the tenant's token budget can hold; absent without one and for `other`"},
    {"eta_tenant_tokens_per_second", kGauge, "model,tenant", "tokens per second",
     "Tokens per second that flow into the tenant's token budget; absent without one and for "
     "`other`"},
    {"eta_tenant_weight", kGauge, "model,tenant", "weight",
     "Weight of the tenant against other tenants while requests wait; absent for `other`"},
    {"eta_tenant_kv_tokens", kGauge, "model,tenant", "tokens",
     "Tokens of the KV cache that are reserved for the tenant's running requests (prompt and "
     "max_tokens)"},
    {"eta_tenant_max_kv_tokens", kGauge, "model,tenant", "tokens",
     "Tokens of the KV cache that may be reserved for the tenant on each device; absent without a "
     "limit and for `other`"},
    {"eta_tenant_requests_running", kGauge, "model,tenant", "requests",
     "Requests of the tenant that are running, paused ones included"},
    {"eta_tenant_requests_waiting", kGauge, "model,tenant", "requests",
     "Requests of the tenant that wait for a slot in the batch, preempted ones included"},
    {"eta_tenant_requests_paused", kGauge, "model,tenant", "requests",
     "Running requests of the tenant that have given up their slot until their clients have read"},
    {"eta_tenant_calibrations", kGauge, "model,tenant", "calibrations",
     "Calibrations of the tenant that are running"},
    {"eta_tenant_max_calibrations", kGauge, "model,tenant", "calibrations",
     "Calibrations that the tenant may run at a time; absent without a limit and for `other`"},
    {"eta_tenant_profile_versions", kGauge, "model,tenant", "versions",
     "Profile versions that the tenant has stored, at most a second old; absent without a writable "
     "profile store"},
    {"eta_tenant_max_profile_versions", kGauge, "model,tenant", "versions",
     "Profile versions that the tenant may store; absent for `other`"},
    {"eta_tenant_profile_bytes", kGauge, "model,tenant", "bytes",
     "Bytes of the profiles that the tenant has stored; absent without a writable profile store"},
    {"eta_tenant_max_profile_bytes", kGauge, "model,tenant", "bytes",
     "Bytes of profiles that the tenant may store; absent for `other`"},
    {"eta_tenant_profile_versions_ever", kGauge, "model,tenant", "versions",
     "Profile versions that the tenant has ever stored, deleted ones included; absent without a "
     "writable profile store"},
    {"eta_tenant_max_profile_versions_ever", kGauge, "model,tenant", "versions",
     "Profile versions that the tenant may ever store, deleted ones included; absent for `other`"},
    {"eta_tenant_refused_total", kCounter, "model,tenant,reason", "calls",
     "Calls that were refused by a limit of their tenant, by reason: tenant_calls, tenant_tokens, "
     "tenant_kv, tenant_calibrations or profile_quota"},
};

constexpr Metric kSteps[] = {
    {"eta_step_duration_seconds", kHistogram, "model,phase", "seconds",
     "Seconds that a step took, by what it computed: prefill, decode, mixed (both) or pass "
     "(calibration passes)"},
    {"eta_step_batch_size", kHistogram, "model", "sequences",
     "Sequences of requests in a step, without calibration passes"},
    {"eta_step_tokens", kHistogram, "model", "tokens",
     "Tokens of requests that a step computed, without calibration passes"},
    {"eta_calibration_pass_rows_total", kCounter, "model", "rows",
     "Rows that steps computed for calibration passes"},
    {"eta_preemptions_total", kCounter, "model", "preemptions",
     "Preemptions of requests, which lose their KV blocks to others and are computed again"},
    {"eta_draft_tokens_total", kCounter, "model", "tokens",
     "Tokens of answers that were guessed ahead and verified (--speculation)"},
    {"eta_draft_tokens_accepted_total", kCounter, "model", "tokens",
     "Those of the drafted tokens that are in answers"},
    {"eta_draft_steps_saved_total", kCounter, "model", "steps",
     "Steps that answers took less than they would have taken one token at a time"},
    {"eta_draft_kv_bytes_rejected_total", kCounter, "model", "bytes",
     "Bytes of keys and values that were read behind drafted tokens that were not right; "
     "eta_attention_kv_bytes_read_total does not have them"},
    {"eta_draft_rows_total", kCounter, "model", "rows",
     "Rows with sparser reads that drafted a token each (--speculation=self)"},
    {"eta_draft_kv_bytes_made_total", kCounter, "model", "bytes",
     "Bytes of keys and values that these rows read; eta_attention_kv_bytes_read_total does not "
     "have them"},
};

// Of models with experts alone.
constexpr Metric kExperts[] = {
    {"eta_expert_rows_total", kCounter, "model,layer", "rows",
     "Rows of requests that the experts of a layer computed, a row once for each of its experts; "
     "absent where the model has no experts"},
    {"eta_experts_read_total", kCounter, "model,layer", "experts",
     "Experts of a layer that had rows, summed over steps of requests: those whose weights the "
     "steps read. Divided by the steps and by the layer's experts it is the share of the experts' "
     "weights that a step reads"},
    {"eta_expert_load_ratio", kGauge, "model,layer,expert", "ratio",
     "Rows of one expert as a ratio to the mean of its layer's experts, since the server started: "
     "of the busiest expert, the median and the idlest; all 1 where choices are even"},
};

constexpr Metric kEngine[] = {
    {"eta_engine_state", kGauge, "state", "0 or 1",
     "State of the engine: 1 for the current state, 0 for the others (loading, serving, draining, "
     "stalled, device_lost)"},
    {"eta_engine_last_step_timestamp_seconds", kGauge, "model", "seconds since 1970",
     "Time at which the newest step ended, in seconds since 1970; absent before the first step"},
    {"eta_devices", kGauge, "model,state", "devices", "Devices by state: working or lost"},
    {"eta_model_info", kGauge, "model,fingerprint,backend,layers,query_heads,kv_heads", "always 1",
     "Model that is served and backend that computes it, as labels"},
    {"eta_model_load_duration_seconds", kGauge, "model", "seconds",
     "Seconds that loading the model took"},
    {"eta_uptime_seconds", kGauge, "", "seconds", "Seconds since the process began to count"},
    {"eta_build_info", kGauge, "version", "always 1", "Version of the program, as a label"},
};

constexpr Metric kProfiles[] = {
    {"eta_profile_info", kGauge, "model,tenant,profile,version,digest", "always 1",
     "Profile versions in memory whose name and tenant have labels of their own"},
    {"eta_profile_target_density_ratio", kGauge, "model,tenant,profile,version", "ratio",
     "Head density as a ratio that the profile's calibration measured on held-out text"},
    {"eta_profile_target_union_density_ratio", kGauge, "model,tenant,profile,version", "ratio",
     "Union density as a ratio that the profile's calibration measured on held-out text"},
    {"eta_profile_target_mass_ratio", kGauge, "model,tenant,profile,version", "ratio",
     "Share of full attention's softmax that the profile's calibration measured its keys to hold "
     "on "
     "held-out text, as a ratio"},
    {"eta_profile_target_cached_keys", kGauge, "model,tenant,profile,version", "keys",
     "Keys that full attention would have read for a decode row of the held-out text, summed over "
     "layers and KV heads; where eta_attention_keys_cached_total grows by as much for each decode "
     "row, contexts are as long as those of the calibration"},
    {"eta_default_profile_tenants", kGauge, "model", "tenants",
     "Tenants whose default profile is in memory; absent without --default_profile"},
    {"eta_profiles_loaded", kGauge, "model", "profiles", "Profile versions that are in memory"},
    {"eta_profile_cache_bytes", kGauge, "model", "bytes", "Bytes of the profiles in the cache"},
    {"eta_profile_reloads_total", kCounter, "model,result", "reads",
     "Reads of the profile store by the profile cache, by result: success (also where the store "
     "has no such profile) or failure"},
    {"eta_profile_last_reload_success_timestamp_seconds", kGauge, "model", "seconds since 1970",
     "Time of the newest successful read of the profile store, in seconds since 1970; absent "
     "before the first"},
    {"eta_profile_staleness_seconds", kGauge, "model", "seconds",
     "Seconds since the store last confirmed the profile whose confirmation is oldest; 0 without "
     "profiles"},
    {"eta_profile_store_up", kGauge, "model", "0 or 1",
     "State of the profile store: 1 if it works, 0 if not; absent without a store"},
};

constexpr Metric kCalibrations[] = {
    {"eta_calibrations_total", kCounter, "model,result", "calibrations",
     "Calibrations that ended, however many calls waited for them, by result: success, cancelled "
     "(by a client, its deadline or a drain), rejected (before they ran) or failed"},
    {"eta_calibrations_in_progress", kGauge, "model", "calibrations",
     "Calibrations that are running"},
    {"eta_calibration_duration_seconds", kHistogram, "model", "seconds",
     "Seconds that a calibration took, without rejected ones"},
};

constexpr Metric kConnections[] = {
    {"eta_connections_open", kGauge, "model", "connections", "Connections that are open"},
    {"eta_connections_max", kGauge, "model", "connections",
     "Connections that may be open; further ones are closed at once"},
    {"eta_connections_accepted_total", kCounter, "model", "connections",
     "Connections that were accepted and served"},
    {"eta_connections_refused_total", kCounter, "model,reason", "connections",
     "Connections that were closed at once, by reason: full, peer (too many of one peer) or "
     "no_files (the process has no file descriptor left)"},
    {"eta_connection_accept_errors_total", kCounter, "model", "errors",
     "Errors of the operating system while accepting a connection"},
};

constexpr Metric kFiles[] = {
    {"eta_file_reloads_total", kCounter, "model,file,result", "reads",
     "Reads of a configuration file (tls, identity or tenants), by result: success (also at start) "
     "or failure (the earlier contents stay in effect)"},
    {"eta_file_current", kGauge, "model,file", "0 or 1",
     "State of a configuration file: 0 while its contents are refused and older ones are in "
     "effect, else 1"},
};

constexpr Metric kTraces[] = {
    {"eta_trace_spans_exported_total", kCounter, "model", "spans",
     "Spans of calls that the collector has taken (--otlp_endpoint)"},
    {"eta_trace_spans_dropped_total", kCounter, "model,reason", "spans",
     "Spans of calls that were lost, by reason: queue_full (as many calls waited to be sent as "
     "may), unanswered (the collector was away or busy at every try), refused (the collector does "
     "not want them) or shutdown (they waited when the server ended)"},
};

constexpr Metric kProcess[] = {
    {"eta_memory_pressure_state", kGauge, "model,state", "0 or 1",
     "State of memory pressure: 1 for the current state, 0 for the others (none; short: calls are "
     "refused; critical: the largest answers are ended too)"},
    {"eta_memory_streams_ended_total", kCounter, "model", "calls",
     "Calls whose answers were ended because memory was short"},
    {"eta_answers_cut_off_total", kCounter, "model", "calls",
     "Calls that were ended because their unary answers were not read in time"},
    {"eta_memory_used_ratio", kGauge, "model", "ratio",
     "Ratio of memory in use to the process's memory limit; 0 without a limit"},
    {"process_cpu_seconds_total", kCounter, "", "seconds",
     "Seconds of CPU time that the process has used, user and system"},
    {"process_resident_memory_bytes", kGauge, "", "bytes", "Bytes of resident memory"},
    {"process_virtual_memory_bytes", kGauge, "", "bytes", "Bytes of virtual memory"},
    {"process_open_fds", kGauge, "", "files", "File descriptors that are open"},
    {"process_max_fds", kGauge, "", "files", "File descriptors that may be open"},
    {"process_threads", kGauge, "", "threads", "Threads of the process"},
    {"process_start_time_seconds", kGauge, "", "seconds since 1970",
     "Time at which the process started, in seconds since 1970"},
};

// The exposer's own.
constexpr Metric kScrapes[] = {
    {"exposer_scrapes_total", kCounter, "", "scrapes", "Number of times metrics were scraped"},
    {"exposer_transferred_bytes_total", kCounter, "", "bytes",
     "Transferred bytes to metrics services"},
    {"exposer_request_latencies", kSummary, "", "microseconds",
     "Latencies of serving scrape requests, in microseconds"},
};

constexpr MetricGroup kGroups[] = {
    {"Calls", kCalls},
    {"Queue", kQueue},
    {"KV cache", kKvCache},
    {"Latency", kLatency},
    {"Tokens", kTokens},
    {"Attention", kAttention},
    {"Formats of answers", kFormats},
    {"Limits of tenants", kTenants},
    {"Steps", kSteps},
    {"Experts", kExperts},
    {"Engine", kEngine},
    {"Profiles", kProfiles},
    {"Calibrations", kCalibrations},
    {"Connections", kConnections},
    {"Files of the configuration", kFiles},
    {"Traces", kTraces},
    {"Process and memory", kProcess},
    {"Scrapes", kScrapes},
};

constexpr MetricAlias kVllmNames[] = {
    {"vllm:num_requests_running", "eta_requests_running"},
    {"vllm:num_requests_waiting", "eta_requests_waiting"},
    {"vllm:kv_cache_usage_perc", "eta_kv_cache_usage_ratio"},
    {"vllm:cache_config_info", "eta_kv_cache_config_info"},
};

}  // namespace

std::string_view Name(prometheus::MetricType type) {
  switch (type) {
    case prometheus::MetricType::Counter:
      return "counter";
    case prometheus::MetricType::Gauge:
      return "gauge";
    case prometheus::MetricType::Histogram:
      return "histogram";
    case prometheus::MetricType::Summary:
      return "summary";
    case prometheus::MetricType::Untyped:
      break;
  }
  return "untyped";
}

std::span<const MetricGroup> MetricCatalogue() {
  return kGroups;
}

std::span<const MetricAlias> VllmNames() {
  return kVllmNames;
}

const Metric* FindMetric(std::string_view name) {
  for (const MetricGroup& group : kGroups) {
    for (const Metric& metric : group.metrics) {
      if (metric.name == name) return &metric;
    }
  }
  return nullptr;
}

}  // namespace eta
