// Real traffic through the built server: its metrics, its statistics and what a Prometheus stored
// of them, against what the clients counted.
#include <google/protobuf/util/time_util.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "engine/format/library/grammar_library.h"
#include "gmock/gmock.h"
#include "tests/testing/monitoring/monitoring_fixture.h"

namespace eta::testing {
namespace {

using google::protobuf::util::TimeUtil;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::Ge;
using ::testing::Gt;
using ::testing::IsEmpty;
using ::testing::Le;
using ::testing::Lt;
using ::testing::Not;
using ::testing::SizeIs;

struct AttentionMetric {
  std::string name;  // after eta_ or eta_tenant_
  int64_t AttentionCounts::*value;
  bool of_tenants = true;
};
const std::vector<AttentionMetric>& AttentionMetrics() {
  static const auto* const metrics = new std::vector<AttentionMetric>{
      {"attention_decode_rows_total", &AttentionCounts::decode_rows},
      {"attention_keys_attended_total", &AttentionCounts::keys_attended},
      {"attention_keys_eligible_total", &AttentionCounts::keys_eligible},
      {"attention_keys_read_total", &AttentionCounts::keys_read},
      {"attention_keys_cached_total", &AttentionCounts::keys_cached},
      {"attention_values_read_total", &AttentionCounts::values_read, false},
      {"attention_prefill_rows_total", &AttentionCounts::prefill_steps, false},
      {"attention_prefill_keys_attended_total", &AttentionCounts::prefill_keys_attended, false},
      {"attention_prefill_keys_eligible_total", &AttentionCounts::prefill_keys_eligible, false},
      {"attention_kv_bytes_read_total", &AttentionCounts::kv_bytes_read},
      {"attention_kv_bytes_dense_total", &AttentionCounts::kv_bytes_dense},
      {"attention_index_bytes_read_total", &AttentionCounts::index_bytes_read, false}};
  return *metrics;
}

AttentionCounts CountsOf(const v1::AttentionStats& stats) {
  v1::Finished finished;
  *finished.mutable_attention() = stats;
  AttentionCounts counts;
  counts.Add(finished);
  return counts;
}

void ExpectSame(const v1::AttentionStats& stats, const AttentionCounts& sums,
                const MetricLabels& labels) {
  const AttentionCounts counts = CountsOf(stats);
  for (const AttentionMetric& metric : AttentionMetrics()) {
    EXPECT_EQ(counts.*metric.value, sums.*metric.value)
        << metric.name << ::testing::PrintToString(labels);
  }
  EXPECT_NEAR(counts.head_density, sums.head_density, 1e-6) << ::testing::PrintToString(labels);
  EXPECT_NEAR(counts.union_density, sums.union_density, 1e-6) << ::testing::PrintToString(labels);
}

TEST_F(MonitoringTest, CallsAreWhatTheClientsCounted) {
  const ClientCounts& counts = system().counts;
  double all = 0.0;
  for (const auto& [labels, calls] : counts.calls) {
    EXPECT_EQ(page().Sum("eta_requests_total", labels), calls) << ::testing::PrintToString(labels);
    all += static_cast<double>(calls);
  }
  const MetricLabels aside = {{"tenant", "aside"}};
  const double rounds = system().busy.rounds;
  for (const auto& [code, calls] : {std::pair("CANCELLED", 4), std::pair("DEADLINE_EXCEEDED", 1)}) {
    EXPECT_EQ(page().Sum("eta_requests_total", {{"code", code}, {"tenant", "aside"}}),
              calls * rounds);
    EXPECT_EQ(page().Sum("eta_requests_total", {{"code", code}}), calls * rounds);
    all += calls * rounds;
  }
  EXPECT_EQ(page().Sum("eta_requests_total"), all) << "nothing else was counted";
  EXPECT_EQ(page().Sum("eta_calls_total"), all);

  for (const auto& [labels, calls] : counts.refusals) {
    EXPECT_EQ(page().Sum("eta_requests_rejected_total", labels), calls)
        << ::testing::PrintToString(labels);
  }
  EXPECT_EQ(page().Sum("eta_requests_failed_total", {{"method", "Generate"}}), rounds);
  EXPECT_EQ(page().Sum("eta_requests_failed_total", {{"reason", "deadline_decoding"}}), rounds);
  EXPECT_EQ(page().Sum("eta_requests_cancelled_total", {{"stage", "decode"}}), 2 * rounds);
  EXPECT_EQ(page().Sum("eta_requests_cancelled_total", {{"stage", "queued"}}), 2 * rounds);
  EXPECT_EQ(page().Sum("eta_requests_cancelled_total"), 4 * rounds);
  // Their answers were under way, and the deadline is the server's of 2 s.
  EXPECT_EQ(page().Sum("eta_deadline_exceeded_wait_seconds_count"), rounds);
  EXPECT_THAT(page().Sum("eta_deadline_exceeded_wait_seconds_sum"), AllOf(Gt(0), Lt(5 * rounds)));
  EXPECT_EQ(page().Sum("eta_deadline_exceeded_wait_seconds_bucket", {{"le", "5"}}), rounds);
  EXPECT_EQ(page().Sum("eta_default_profile_requests_total"), 0) << "there is none";
  EXPECT_THAT(page().Find("eta_default_profile_tenants"), IsEmpty());
}

TEST_F(MonitoringTest, LimitsOfTenantsAreThere) {
  const double rounds = system().busy.rounds;
  const MetricLabels bob = {{"tenant", "bob"}};
  EXPECT_EQ(
      page().Sum("eta_tenant_refused_total", {{"tenant", "bob"}, {"reason", "tenant_tokens"}}),
      rounds);
  EXPECT_EQ(page().Sum("eta_tenant_refused_total"), rounds);
  EXPECT_EQ(page().Sum("eta_tenant_max_calls", bob), 64);
  EXPECT_EQ(page().Sum("eta_tenant_burst_tokens", bob), 3900);
  EXPECT_EQ(page().Sum("eta_tenant_tokens_left", bob), 3900) << "all of it has flowed in again";
  EXPECT_EQ(page().Sum("eta_tenant_max_kv_tokens", bob), 100'000);
  EXPECT_EQ(page().Sum("eta_tenant_tokens_per_second", bob), 1'000'000);
  EXPECT_EQ(page().Sum("eta_tenant_weight", bob), 1);
  for (const char* bound : {"eta_tenant_max_profile_versions", "eta_tenant_max_profile_bytes",
                            "eta_tenant_max_profile_versions_ever"}) {
    EXPECT_THAT(page().Sum(bound, bob), Gt(0)) << bound << ", of the flags";
  }
  EXPECT_EQ(page().Sum("eta_tenant_max_calibrations"), 0) << "nobody has such a bound";
  const double versions = page().Sum("eta_tenant_profile_versions");
  EXPECT_THAT(versions, Gt(0));
  EXPECT_THAT(page().Sum("eta_tenant_profile_versions_ever"), Ge(versions));
  EXPECT_THAT(page().Sum("eta_tenant_profile_bytes"), Gt(100 * versions));
  EXPECT_EQ(page().Sum("eta_tenant_calibrations"), 0);
  EXPECT_EQ(page().Sum("eta_tenant_requests_paused"), 0);
  EXPECT_EQ(page().Sum("eta_tenant_calls"), 0);
  EXPECT_EQ(page().Sum("eta_tenant_kv_tokens"), 0) << "leaked";
  EXPECT_EQ(page().Sum("eta_tenant_requests_running"), 0);
  EXPECT_EQ(page().Sum("eta_tenant_requests_waiting"), 0);
  EXPECT_EQ(page().Sum("eta_memory_pressure_state", {{"state", "none"}}), 1);
  EXPECT_EQ(page().Sum("eta_memory_streams_ended_total"), 0);
  EXPECT_EQ(page().Sum("eta_answers_cut_off_total"), 0);
}

TEST_F(MonitoringTest, TheScrapeIsCounted) {
  EXPECT_THAT(page().Sum("exposer_scrapes_total"), Gt(0));
  EXPECT_THAT(page().Sum("exposer_transferred_bytes_total"), Gt(1000));
  EXPECT_THAT(page().Sum("exposer_request_latencies_count"), Gt(0));
}

TEST_F(MonitoringTest, ConnectionsAndFilesAreThere) {
  const double open = page().Sum("eta_connections_open");
  EXPECT_THAT(open, Ge(1));
  EXPECT_THAT(page().Sum("eta_connections_max"), Gt(open));
  EXPECT_THAT(page().Sum("eta_connections_accepted_total"), Ge(open));
  EXPECT_EQ(page().Sum("eta_connections_refused_total"), 0);
  EXPECT_EQ(page().Sum("eta_connection_accept_errors_total"), 0);
  EXPECT_EQ(page().Sum("eta_file_reloads_total", {{"result", "failure"}}), 0);
  for (const char* spans : {"eta_trace_spans_exported_total", "eta_trace_spans_dropped_total"}) {
    EXPECT_THAT(page().Find(spans), IsEmpty()) << "they are sent nowhere";
  }
  EXPECT_EQ(page().Sum("eta_file_current"),
            static_cast<double>(page().Find("eta_file_current").size()));
}

TEST_F(MonitoringTest, TokensAreTheSumsOfTheAnswers) {
  for (const auto& [labels, tokens] : system().counts.tokens) {
    const std::string text = ::testing::PrintToString(labels);
    EXPECT_EQ(page().Sum("eta_prompt_tokens_total", labels), tokens.prompt) << text;
    EXPECT_EQ(page().Sum("eta_prompt_tokens_cached_total", labels), tokens.cached) << text;
    EXPECT_EQ(page().Sum("eta_generated_tokens_total", labels), tokens.output) << text;
  }
  EXPECT_THAT(page().Sum("eta_prompt_tokens_cached_total", {{"tenant", "alice"}}), Gt(0));
  EXPECT_EQ(page().Sum("eta_request_prompt_tokens_sum"), page().Sum("eta_prompt_tokens_total"));
  EXPECT_EQ(page().Sum("eta_request_generated_tokens_sum"),
            page().Sum("eta_generated_tokens_total"));
}

TEST_F(MonitoringTest, AttentionIsTheSumOfTheAnswers) {
  for (const AttentionMetric& metric : AttentionMetrics()) {
    for (const auto& [labels, sums] : system().counts.attention) {
      EXPECT_EQ(page().Sum("eta_" + metric.name, labels), sums.*metric.value)
          << metric.name << ::testing::PrintToString(labels);
    }
    if (!metric.of_tenants) continue;
    for (const auto& [labels, sums] : system().counts.tenants) {
      EXPECT_EQ(page().Sum("eta_tenant_" + metric.name, labels), sums.*metric.value)
          << metric.name << ::testing::PrintToString(labels);
    }
  }
  const MetricLabels full = {{"mode", "full"}};
  EXPECT_EQ(page().Sum("eta_attention_keys_read_total", full),
            page().Sum("eta_attention_keys_cached_total", full));
  EXPECT_EQ(page().Sum("eta_attention_keys_attended_total", full),
            page().Sum("eta_attention_keys_eligible_total", full));
  EXPECT_EQ(page().Sum("eta_attention_kv_bytes_read_total", full),
            page().Sum("eta_attention_kv_bytes_dense_total", full));
  for (const char* mode : {"dynamic", "profile"}) {
    EXPECT_THAT(page().Sum("eta_attention_keys_read_total", {{"mode", mode}}),
                Lt(page().Sum("eta_attention_keys_cached_total", {{"mode", mode}})))
        << mode;
  }
}

TEST_F(MonitoringTest, HistogramsHoldOneObservationPerEvent) {
  std::map<std::string, std::pair<double, double>> by_mode;  // answers and tokens
  for (const auto& [labels, sums] : system().counts.attention) {
    const std::string text = ::testing::PrintToString(labels);
    by_mode[labels.at("mode")].first += static_cast<double>(sums.answers);
    by_mode[labels.at("mode")].second += static_cast<double>(sums.output_tokens);
    EXPECT_EQ(page().Sum("eta_request_density_ratio_count", labels), sums.answers_with_decode)
        << text;
    EXPECT_EQ(page().Sum("eta_request_union_density_ratio_count", labels), sums.answers_with_decode)
        << text;
    EXPECT_THAT(page().Sum("eta_request_union_density_ratio_sum", labels),
                AllOf(Gt(0.0), Le(static_cast<double>(sums.answers))))
        << text;
  }
  // Requests that were cancelled or cut off ran with a profile.
  for (const char* mode : {"full", "dynamic"}) {
    const MetricLabels labels = {{"mode", mode}};
    const auto count = [&](const std::string& name) { return page().Sum(name + "_count", labels); };
    const auto [answers, tokens] = by_mode.at(mode);
    EXPECT_EQ(count("eta_time_to_first_token_seconds"), answers) << mode;
    EXPECT_EQ(count("eta_inter_token_latency_seconds"), tokens - answers) << mode;
    EXPECT_EQ(count("eta_request_time_per_output_token_seconds"), answers) << mode;
    EXPECT_EQ(count("eta_request_duration_seconds"), answers) << mode;
    EXPECT_THAT(page().Sum("eta_time_to_first_token_seconds_sum", labels),
                AllOf(Gt(0.0), Lt(page().Sum("eta_request_duration_seconds_sum", labels))));
  }
  double answered = 0.0;
  for (const auto& [mode, of] : by_mode) answered += of.first;
  EXPECT_EQ(page().Sum("eta_request_duration_seconds_count"), answered);
  const double submitted = static_cast<double>(AllAnswers()) + 5.0 * system().busy.rounds;
  const double waited = 2.0 * system().busy.rounds;  // and left again
  EXPECT_EQ(page().Sum("eta_request_queue_duration_seconds_count"), submitted - waited);
  EXPECT_EQ(page().Sum("eta_request_prefill_duration_seconds_count"), submitted - waited);
  EXPECT_THAT(page().Sum("eta_request_decode_duration_seconds_count"),
              AllOf(Ge(static_cast<double>(AllAnswers())), Le(submitted - waited)));
  EXPECT_EQ(page().Sum("eta_request_prompt_tokens_count"), submitted - waited);
  EXPECT_EQ(page().Sum("eta_request_generated_tokens_count"), submitted - waited);
}

TEST_F(MonitoringTest, FormatsAreWhatTheClientsAskedFor) {
  if (!HasGrammarLibrary()) GTEST_SKIP() << "built without formats of answers";
  double asked = 0.0;  // by whoever asked for full attention
  for (const auto& [labels, sums] : system().counts.attention) {
    if (labels.at("mode") == "full") asked += static_cast<double>(sums.answers);
  }
  const MetricLabels regex = {{"format", "regex"}};
  EXPECT_EQ(page().Sum("eta_format_requests_total", regex), asked);
  EXPECT_EQ(page().Sum("eta_format_requests_total"), asked);
  EXPECT_EQ(page().Sum("eta_format_answers_total", regex), asked);
  EXPECT_EQ(page().Sum("eta_format_answers_total", {{"result", "invalid"}}), 0);
  EXPECT_EQ(page().Sum("eta_format_lookups_total"), asked);
  EXPECT_EQ(page().Sum("eta_format_compile_duration_seconds_count"),
            page().Sum("eta_format_lookups_total", {{"result", "miss"}}));
  EXPECT_THAT(page().Sum("eta_step_mask_duration_seconds_count"), Ge(asked));
  EXPECT_EQ(page().Sum("eta_step_mask_wait_seconds_count"),
            page().Sum("eta_step_mask_duration_seconds_count"));
}

TEST_F(MonitoringTest, StepsAddUp) {
  const auto steps = [](const std::string& phase) {
    return page().Sum("eta_step_duration_seconds_count", {{"phase", phase}});
  };
  EXPECT_THAT(steps("prefill"), Gt(0));
  EXPECT_THAT(steps("decode"), Gt(0));
  EXPECT_THAT(steps("pass"), Gt(0)) << "a calibration ran";
  const double with_requests = steps("prefill") + steps("decode") + steps("mixed");
  EXPECT_EQ(page().Sum("eta_step_batch_size_count"), with_requests);
  EXPECT_EQ(page().Sum("eta_step_tokens_count"), with_requests);
  EXPECT_THAT(page().Sum("eta_step_batch_size_sum"),
              AllOf(Ge(with_requests), Le(2 * with_requests)));
  // Every prompt token that was not cached, every generated one but an answer's last; preempted
  // requests would have more.
  EXPECT_THAT(page().Sum("eta_step_tokens_sum"), Ge(page().Sum("eta_prompt_tokens_total") -
                                                    page().Sum("eta_prompt_tokens_cached_total")));
  EXPECT_THAT(page().Sum("eta_calibration_pass_rows_total"), Ge(2 * 256));
  EXPECT_EQ(page().Sum("eta_preemptions_total"), system().counts.preemptions);
  const v1::DraftStats& drafts = system().counts.drafts;
  EXPECT_EQ(page().Sum("eta_draft_tokens_total"), drafts.drafted());
  EXPECT_EQ(page().Sum("eta_draft_tokens_accepted_total"), drafts.accepted());
  EXPECT_EQ(page().Sum("eta_draft_steps_saved_total"), drafts.steps_saved());
  EXPECT_EQ(page().Sum("eta_draft_kv_bytes_rejected_total"), drafts.kv_bytes_rejected());
  EXPECT_EQ(page().Sum("eta_draft_rows_total"), drafts.made());
  EXPECT_EQ(page().Sum("eta_draft_kv_bytes_made_total"), drafts.kv_bytes_made());
  for (const char* of_experts :
       {"eta_expert_rows_total", "eta_experts_read_total", "eta_expert_load_ratio"}) {
    EXPECT_THAT(page().Find(of_experts), IsEmpty()) << "the model has none";
  }
}

TEST_F(MonitoringTest, GaugesSayWhatGoesOn) {
  const MetricSamples& busy = system().busy.page;
  EXPECT_EQ(busy.Sum("eta_requests_running"), 2);
  EXPECT_EQ(busy.Sum("eta_requests_waiting"), 2);
  EXPECT_THAT(busy.Sum("eta_waiting_prompt_tokens"), AllOf(Gt(0), Lt(10)));
  EXPECT_THAT(busy.Sum("eta_kv_cache_usage_ratio"), AllOf(Gt(0.0), Lt(1.0)));
  EXPECT_THAT(busy.Sum("eta_kv_cache_blocks", {{"state", "used"}}), Ge(2));
  for (const char* idle :
       {"eta_requests_running", "eta_requests_waiting", "eta_waiting_prompt_tokens",
        "eta_calibration_passes_running", "eta_calibration_passes_waiting",
        "eta_kv_cache_usage_ratio", "eta_calibrations_in_progress", "eta_requests_paused",
        "eta_store_calls_waiting", "eta_tokenizer_calls_waiting", "eta_format_calls_waiting",
        "eta_profile_lookups_waiting", "eta_stats_watchers"}) {
    EXPECT_THAT(page().Find(idle), SizeIs(1)) << idle;
    EXPECT_EQ(page().Sum(idle), 0) << idle;
  }
  for (const char* bound : {"eta_store_calls_max_waiting", "eta_tokenizer_calls_max_waiting",
                            "eta_format_calls_max_waiting", "eta_profile_lookups_max_waiting",
                            "eta_stats_watchers_max", "eta_prefill_tokens_per_second"}) {
    EXPECT_THAT(page().Sum(bound), Gt(0)) << bound;
  }
  EXPECT_EQ(page().Sum("eta_predicted_wait_seconds"), 0) << "nothing waits";
  EXPECT_EQ(page().Sum("eta_slot_interval_seconds"), 0) << "slots are free";
  EXPECT_EQ(page().Sum("eta_kv_cache_blocks", {{"state", "used"}}), 0) << "leaked";
  EXPECT_THAT(page().Sum("eta_kv_cache_blocks", {{"state", "cached"}}), Gt(0));
  EXPECT_EQ(std::to_string(static_cast<int>(page().Sum("eta_kv_cache_blocks"))),
            page().Find("eta_kv_cache_config_info").at(0).labels.at("num_gpu_blocks"));
  EXPECT_THAT(page().Sum("eta_memory_used_ratio"), AllOf(Ge(0.0), Le(1.0)));
  EXPECT_EQ(page().Sum("eta_engine_state", {{"state", "serving"}}), 1);
  EXPECT_EQ(page().Sum("eta_engine_state"), 1);
  EXPECT_EQ(page().Sum("eta_devices", {{"state", "working"}}), 1);
  EXPECT_EQ(page().Sum("eta_devices", {{"state", "lost"}}), 0);
}

TEST_F(MonitoringTest, TimesAndTheProcessAreReal) {
  const double now = static_cast<double>(time(nullptr));
  const double started = page().Sum("process_start_time_seconds");
  EXPECT_THAT(started, AllOf(Gt(now - 600), Le(now)));
  EXPECT_THAT(page().Sum("eta_engine_last_step_timestamp_seconds"),
              AllOf(Ge(started), Le(now + 1)));
  EXPECT_THAT(page().Sum("eta_uptime_seconds"), AllOf(Gt(0.0), Le(now - started + 2)));
  EXPECT_THAT(page().Sum("eta_model_load_duration_seconds"), AllOf(Gt(0.0), Lt(600.0)));
  EXPECT_THAT(page().Sum("process_cpu_seconds_total"), Gt(0.1));
  const double resident = page().Sum("process_resident_memory_bytes");
  EXPECT_THAT(resident, Gt(50e6)) << "the model alone has as much";
  EXPECT_THAT(page().Sum("process_virtual_memory_bytes"), Gt(resident));
  const double files = page().Sum("process_open_fds");
  EXPECT_THAT(files, Gt(5));
  EXPECT_THAT(page().Sum("process_max_fds"), Ge(files));
  EXPECT_THAT(page().Sum("process_threads"), Gt(2));
}

TEST_F(MonitoringTest, ProfilesAndCalibrationsAreThere) {
  const double rounds = system().busy.rounds;
  EXPECT_EQ(page().Sum("eta_calibrations_total", {{"result", "success"}}), rounds + 1);
  EXPECT_EQ(page().Sum("eta_calibrations_total", {{"result", "failed"}}), rounds);
  EXPECT_EQ(page().Sum("eta_calibrations_total"), 2 * rounds + 1);
  EXPECT_EQ(page().Sum("eta_calibration_duration_seconds_count"), 2 * rounds + 1);
  for (const auto& [tenant, profile] :
       {std::pair("alice", system().legal), std::pair("bob", system().books)}) {
    const MetricLabels labels = {{"tenant", tenant}, {"profile", profile.name()}, {"version", "1"}};
    MetricLabels with_digest = labels;
    with_digest["digest"] = profile.checksum();
    EXPECT_EQ(page().Sum("eta_profile_info", with_digest), 1) << profile.name();
    EXPECT_EQ(page().Sum("eta_profile_target_density_ratio", labels),
              profile.evidence().head_density());
    EXPECT_EQ(page().Sum("eta_profile_target_union_density_ratio", labels),
              profile.evidence().union_density());
    const v1::ProfileEvidence& evidence = profile.evidence();
    EXPECT_EQ(page().Sum("eta_profile_target_mass_ratio", labels), evidence.retained_mass());
    EXPECT_EQ(page().Sum("eta_profile_target_cached_keys", labels),
              0.75 * static_cast<double>(evidence.held_out_tokens()) /
                  static_cast<double>(evidence.held_out_sequences()) *
                  stats().server().kv().layers() * stats().server().kv().kv_heads());
  }
  EXPECT_THAT(page().Find("eta_profile_info", {{"profile", "hidden"}}), IsEmpty());
  EXPECT_THAT(page().Sum("eta_profiles_loaded"), Ge(4));
  EXPECT_THAT(page().Sum("eta_profile_cache_bytes"), Gt(0));
  EXPECT_EQ(page().Sum("eta_profile_store_up"), 1);
  EXPECT_THAT(page().Sum("eta_profile_reloads_total", {{"result", "success"}}), Gt(0));
  EXPECT_EQ(page().Sum("eta_profile_reloads_total", {{"result", "failure"}}), 0);
  // A profile in use is verified again once a quarter of --profile_staleness (1 min) has passed.
  // The first was made more than half a minute ago: who verifies nothing again is found out.
  EXPECT_THAT(page().Sum("eta_profile_staleness_seconds"), AllOf(Ge(0.0), Lt(30.0)));
  EXPECT_THAT(page().Sum("eta_profile_last_reload_success_timestamp_seconds"),
              Gt(page().Sum("process_start_time_seconds")));
}

TEST_F(MonitoringTest, StatsSaysTheSame) {
  const v1::Stats& stats = MonitoringTest::stats();
  const auto model = page().Find("eta_model_info").at(0).labels;
  EXPECT_EQ(model.at("model"), stats.server().model());
  EXPECT_EQ(model.at("fingerprint"), stats.server().model_fingerprint());
  EXPECT_EQ(model.at("backend"), stats.server().backend());
  EXPECT_EQ(model.at("layers"), std::to_string(stats.server().kv().layers()));
  EXPECT_EQ(page().Find("eta_build_info").at(0).labels.at("version"), stats.server().version());
  const auto cache = page().Find("eta_kv_cache_config_info").at(0).labels;
  EXPECT_EQ(cache.at("block_size"), std::to_string(stats.server().kv().block_size()));
  EXPECT_EQ(cache.at("dtype"), stats.server().kv().kv_dtype());

  EXPECT_EQ(stats.load().prompt_tokens(), page().Sum("eta_prompt_tokens_total"));
  EXPECT_EQ(stats.load().cached_tokens(), page().Sum("eta_prompt_tokens_cached_total"));
  EXPECT_EQ(stats.load().output_tokens(), page().Sum("eta_generated_tokens_total"));
  EXPECT_EQ(stats.load().preemptions(), page().Sum("eta_preemptions_total"));
  EXPECT_EQ(stats.load().drafts().drafted(), page().Sum("eta_draft_tokens_total"));
  EXPECT_EQ(stats.load().steps(), page().Sum("eta_step_duration_seconds_count"));
  EXPECT_EQ(stats.profiles_loaded(), page().Sum("eta_profiles_loaded"));
  const std::map<v1::LatencyKind, std::string> histograms = {
      {v1::LATENCY_KIND_FIRST_TOKEN, "eta_time_to_first_token_seconds_count"},
      {v1::LATENCY_KIND_INTER_TOKEN, "eta_inter_token_latency_seconds_count"},
      {v1::LATENCY_KIND_QUEUE, "eta_request_queue_duration_seconds_count"},
      {v1::LATENCY_KIND_REQUEST, "eta_request_duration_seconds_count"}};
  size_t compared = 0;
  for (const v1::LatencyStats& latency : stats.latencies()) {
    if (latency.window() != v1::LATENCY_WINDOW_TEN_MINUTES) continue;
    ++compared;
    const std::string& histogram = histograms.at(latency.kind());
    EXPECT_EQ(latency.count(), page().Sum(histogram)) << histogram;
    EXPECT_LE(TimeUtil::DurationToNanoseconds(latency.p50()),
              TimeUtil::DurationToNanoseconds(latency.p99()));
  }
  EXPECT_EQ(compared, histograms.size());

  const auto accounts = page().Find("eta_attention_decode_rows_total");
  EXPECT_EQ(stats.attention_size(), std::count_if(accounts.begin(), accounts.end(),
                                                  [](const auto& of) { return of.value > 0; }));
  for (const v1::AttentionSeries& series : stats.attention()) {
    const MetricLabels labels = LabelsOf(series);
    EXPECT_THAT(page().Find("eta_attention_decode_rows_total", labels), SizeIs(1))
        << ::testing::PrintToString(labels);
    const AttentionCounts sums = CountsOf(series.totals());
    for (const AttentionMetric& metric : AttentionMetrics()) {
      EXPECT_EQ(page().Sum("eta_" + metric.name, labels), sums.*metric.value)
          << metric.name << ::testing::PrintToString(labels);
    }
    const v1::AttentionStats& attention = series.totals();
    const auto measured = static_cast<double>(attention.shadow_row_layers());
    EXPECT_EQ(page().Sum("eta_attention_mass_kept_ratio_count", labels), measured);
    EXPECT_NEAR(page().Sum("eta_attention_output_error_total", labels),
                measured * attention.output_error(), 1e-6 * measured);
    EXPECT_EQ(page().Sum("eta_attention_fallbacks_total", labels), series.fallbacks());
    EXPECT_EQ(page().Sum("eta_attention_fallback_rows_total", labels), attention.fallback_steps());
    EXPECT_EQ(page().Sum("eta_attention_fallback_kv_bytes_read_total", labels),
              attention.fallback_kv_bytes_read());
  }
  EXPECT_THAT(stats.tenants(), Not(IsEmpty()));
  for (const v1::TenantStats& tenant : stats.tenants()) {
    const MetricLabels labels = {{"tenant", tenant.tenant()}};
    EXPECT_EQ(page().Sum("eta_prompt_tokens_total", labels), tenant.prompt_tokens());
    EXPECT_EQ(page().Sum("eta_prompt_tokens_cached_total", labels), tenant.cached_tokens());
    EXPECT_EQ(page().Sum("eta_generated_tokens_total", labels), tenant.output_tokens());
    EXPECT_EQ(page().Sum("eta_tenant_attention_keys_read_total", labels),
              tenant.attention().keys_read());
    EXPECT_THAT(tenant.calls(), Not(IsEmpty())) << tenant.tenant();
    for (const v1::CallCount& calls : tenant.calls()) {
      if (calls.method() == "Stats") continue;  // this one is counted after it was answered
      EXPECT_EQ(page().Sum("eta_requests_total", {{"tenant", tenant.tenant()},
                                                  {"method", calls.method()},
                                                  {"code", calls.code()}}),
                calls.calls())
          << tenant.tenant() << " " << calls.method() << " " << calls.code();
    }
  }
}

TEST_F(MonitoringTest, DriftIsEachVersionsOwnAndSaysThatContextsAreLonger) {
  int compared = 0;
  for (const v1::AttentionSeries& series : stats().attention()) {
    if (series.profile() != "legal" && series.profile() != "books") continue;
    const v1::Profile& profile = series.profile() == "legal" ? system().legal : system().books;
    EXPECT_EQ(series.version(), profile.version());
    EXPECT_EQ(series.calibrated_union_density(), profile.evidence().union_density());
    EXPECT_EQ(series.calibrated_context(), 256);
    EXPECT_EQ(series.drift_context(), v1::DRIFT_CONTEXT_OTHER);
    EXPECT_THAT(series.recent().context(), Gt(256.0)) << "prompts of 2400 bytes";
    EXPECT_EQ(series.recent().decode_steps(), series.totals().decode_steps()) << "all are recent";
    EXPECT_DOUBLE_EQ(series.union_density_drift(),
                     series.recent().union_density() / profile.evidence().union_density() - 1.0);
    ++compared;
  }
  EXPECT_EQ(compared, 2);
}

TEST_F(MonitoringTest, LayersOfStatsAddUpToTheAnswers) {
  const auto& kv = stats().server().kv();
  for (const v1::AttentionSeries& series : stats().attention()) {
    const bool known = series.mode() == v1::ATTENTION_MODE_PROFILE && series.has_version();
    EXPECT_EQ(series.has_calibrated_head_density(), known) << series.profile();
    EXPECT_EQ(series.has_union_density_drift(), known) << series.profile();
    EXPECT_EQ(series.recent().decode_steps(), series.totals().decode_steps()) << "all is recent";
    EXPECT_NEAR(series.recent().union_density(), series.totals().union_density(), 1e-9);
    ASSERT_THAT(series.layers(), SizeIs(kv.layers())) << series.profile();
    const auto counted = system().counts.attention.find(LabelsOf(series));
    if (counted == system().counts.attention.end()) continue;  // of the cancelled streams
    ExpectSame(series.totals(), counted->second, counted->first);
    int64_t attended = 0, read = 0, eligible = 0, cached = 0;
    for (const v1::LayerAttention& layer : series.layers()) {
      ASSERT_THAT(layer.keys_attended(), SizeIs(kv.query_heads())) << series.profile();
      ASSERT_THAT(layer.keys_read(), SizeIs(kv.kv_heads())) << series.profile();
      for (const int64_t keys : layer.keys_attended()) {
        EXPECT_LE(keys, layer.keys_eligible()) << series.profile();
        attended += keys;
      }
      for (const int64_t keys : layer.keys_read()) read += keys;
      eligible += layer.keys_eligible() * layer.keys_attended_size();
      cached += layer.keys_eligible() * layer.keys_read_size();
    }
    EXPECT_EQ(cached, counted->second.keys_cached) << series.profile();
    EXPECT_EQ(attended, counted->second.keys_attended) << series.profile();
    EXPECT_EQ(read, counted->second.keys_read) << series.profile();
    EXPECT_EQ(eligible, counted->second.keys_eligible) << series.profile();
  }
}

TEST_F(MonitoringTest, StatsOfATenantAreItsOwn) {
  const v1::Stats& own = stats_of_bob();
  ASSERT_THAT(own.tenants(), SizeIs(1));
  const MetricLabels bob = {{"tenant", "bob"}};
  const AttentionCounts& sums = system().counts.tenants.at(bob);
  EXPECT_EQ(own.tenants(0).tenant(), "bob");
  EXPECT_EQ(own.tenants(0).output_tokens(), sums.output_tokens);
  EXPECT_EQ(own.tenants(0).prompt_tokens(), page().Sum("eta_prompt_tokens_total", bob));
  int64_t prompt_tokens = 0;
  for (const auto& [labels, tokens] : system().counts.tokens) {
    if (labels.at("tenant") == "bob") prompt_tokens += tokens.prompt;
  }
  EXPECT_EQ(own.tenants(0).prompt_tokens(), prompt_tokens);
  ExpectSame(own.tenants(0).attention(), sums, bob);
  std::map<MetricLabels, int64_t> counted, told;
  for (const auto& [of, calls] : system().counts.calls) {
    // Stats was counted after it had been answered.
    if (of.at("tenant") != "bob" || of.at("method") == "Stats") continue;
    counted[{{"method", of.at("method")}, {"code", of.at("code")}}] += calls;
  }
  for (const v1::CallCount& calls : own.tenants(0).calls()) {
    MetricLabels labels = {{"method", calls.method()}, {"code", calls.code()}};
    told[labels] += calls.calls();
    labels.merge(MetricLabels(bob));
    EXPECT_EQ(page().Sum("eta_requests_total", labels), calls.calls());
  }
  EXPECT_THAT(counted, SizeIs(4)) << "answers, an import, two kinds of refusals";
  EXPECT_EQ(told, counted);
  EXPECT_THAT(own.attention(), SizeIs(2)) << "its profile and dynamic";
  for (const v1::AttentionSeries& series : own.attention()) {
    const MetricLabels labels = LabelsOf(series);
    ExpectSame(series.totals(), system().counts.attention.at(labels), labels);
  }
  EXPECT_THAT(own.profiles(), SizeIs(1));
  EXPECT_THAT(own.latencies(), IsEmpty());
  EXPECT_FALSE(own.has_load());

  const v1::Stats& none = stats_of_nobody();
  EXPECT_EQ(none.tenant(), "nobody");
  EXPECT_THAT(none.tenants(), IsEmpty()) << "what others without a label do is not its own";
  EXPECT_THAT(none.attention(), IsEmpty());
  EXPECT_THAT(none.profiles(), IsEmpty());
  EXPECT_THAT(none.latencies(), IsEmpty());
  EXPECT_FALSE(none.has_load());
}

TEST_F(MonitoringTest, PrometheusStoredThePage) {
  const nlohmann::json stored =
      system().prometheus().Query("{__name__=~\"eta_.+\",job=\"eta-server\"}");
  ASSERT_TRUE(stored.is_array()) << stored;
  EXPECT_EQ(stored.size(), CountSamples("eta_"));
  const MetricSamples now(page_text());
  size_t compared = 0;
  for (const auto& series : stored) {
    MetricLabels labels = series["metric"];
    const std::string name = labels["__name__"];
    for (const char* added : {"__name__", "job", "instance"}) labels.erase(added);
    // What moves by itself.
    if (name == "eta_uptime_seconds" || name == "eta_memory_used_ratio" ||
        name.rfind("eta_profile_", 0) == 0 || name.rfind("eta_connections_", 0) == 0 ||
        name == "eta_engine_last_step_timestamp_seconds") {
      continue;
    }
    ++compared;
    EXPECT_EQ(std::stod(series["value"][1].get<std::string>()), now.Sum(name, labels))
        << name << ::testing::PrintToString(labels);
  }
  EXPECT_THAT(compared, Gt(500));
}

// Comes after those that ask for them.
TEST_F(MonitoringTest, NoMetricWasForgottenAbove) {
  if (!::testing::GTEST_FLAG(filter).empty() && ::testing::GTEST_FLAG(filter) != "*") {
    GTEST_SKIP() << "only some tests run";
  }
  EXPECT_THAT(page().Unread(), IsEmpty());
}

TEST_F(MonitoringTest, PromtoolFindsNothingToComplainAbout) {
  const TempFolder folder;
  const std::string path = folder.Write("page.txt", page_text());
  const std::string log = folder.path() + "/log.txt";
  const int status =
      std::system(("promtool check metrics <" + path + " >" + log + " 2>&1").c_str());
  EXPECT_EQ(status, 0) << ReadFile(log);
  EXPECT_EQ(ReadFile(log), "");
}

}  // namespace
}  // namespace eta::testing
