// The Prometheus page against its catalogue, and the catalogue against deploy/metrics.md.
#include "service/stats/page/metrics_page.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <set>
#include <sstream>

#include "engine/base/error.h"
#include "service/stats/page/metric_families.h"
#include "service/telemetry/metric_catalogue.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/process/page_reader.h"
#include "tests/testing/process/page_text.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

Tenant TenantNamed(const std::string& id) {
  return Tenant::Parse(id).value();
}

// A server on which everything has a value.
ServerStatus Everything(const EngineInfo& info) {
  ServerStatus status;
  status.now = Clock::now();
  status.time = std::chrono::system_clock::now();
  status.process = ReadProcessUsage();
  status.files = {{.file = "tls", .reloads = {.succeeded = 1}}};
  status.info = info;
  status.state = ServerState::kDraining;
  status.engine.running = 3;
  status.engine.waiting = 2;
  status.engine.blocks_used = 25;
  status.engine.blocks_cached = 25;
  status.engine.blocks_free = 50;
  status.engine.last_step = Clock::now() - std::chrono::seconds(5);
  status.engine.paused = 1;
  status.devices = {{.predicted_wait = std::chrono::milliseconds(1500),
                     .wait_estimate = {.prefill_throughput = 250.0,
                                       .slot_interval = std::chrono::duration<double>(0.5)}},
                    {.device_lost = true}};
  status.store_calls = {.waiting = 7, .max_waiting = 128};
  status.tokenizer_calls = {.waiting = 8, .max_waiting = 512};
  status.format_calls = {.waiting = 6, .max_waiting = 256};
  status.profile_lookups = {.waiting = 9, .max_waiting = 1024};
  status.spans = SpanCounts{.sent = 40, .lost = {7, 6, 5, 4}};
  status.watchers = 2;
  status.max_watchers = 32;
  status.calibrations.push_back({.tenant = TenantNamed("acme")});
  status.memory = {.pressure = Pressure::kShort, .used = 0.25, .streams_ended = 2};
  status.answers_cut_off = 3;
  TenantStatus acme{.use = {.tenant = "acme", .calls = 3, .tokens_left = 400}, .named = true};
  acme.use.limit.max_calls = 8;
  acme.use.limit.burst_tokens = 1000;
  acme.use.limit.max_kv_tokens = 5000;
  acme.use.limit.tokens_per_second = 0.5;
  acme.use.limit.weight = 4.0;
  acme.use.limit.max_calibrations = 3;
  acme.use.limit.profiles = {.versions = 10, .bytes = 5000, .versions_ever = 20};
  acme.queue = {.tenant = "acme", .running = 2, .waiting = 1, .kv_tokens = 70, .paused = 1};
  acme.calibrations = 2;
  acme.stored = ProfileUse{.versions = 9, .bytes = 4000, .versions_ever = 12};
  status.tenants = {acme};
  status.profiles = {{.tenant = TenantNamed("acme"),
                      .name = "legal",
                      .version = 7,
                      .checksum = "abc",
                      .head_density = 0.125,
                      .union_density = 0.25,
                      .retained_mass = 0.97,
                      .measured_context = 2048},
                     {.tenant = TenantNamed("acme"), .name = "code", .version = 1}};
  status.default_profile_tenants = 2;
  status.store = StoreStatus{.up = true,
                             .cache = {.bytes = 1000,
                                       .reads = 4,
                                       .failed_reads = 1,
                                       .last_read = status.now - std::chrono::seconds(9),
                                       .oldest = status.now - std::chrono::seconds(11)}};
  return status;
}

class MetricsPageTest : public ::testing::Test {
 protected:
  MetricsPageTest() {
    telemetry_.SetModel(engine_->info(), std::chrono::seconds(3));
    Request request = Greedy(Prompt(100, 1), 10);
    request.tenant = "acme";
    Ask(*engine_, std::move(request));
    CallRecord record{.method = "Generate", .tenant = "acme"};
    record.submitted = true;
    telemetry_.OnCallEnd(record);
    CallRecord refused{.method = "Generate", .tenant = "acme"};
    refused.status = absl::ResourceExhaustedError("too many");
    refused.reason = "TENANT_CALLS";
    telemetry_.OnCallEnd(refused);
  }
  PageReader Page() {
    status_.telemetry = telemetry_.Snapshot();
    status_.telemetry.server.experts = {{.layer = 4, .rows = {8, 1, 3}, .read = 5}};
    return PageReader(PageText(MetricsPage(status_, telemetry_)));
  }

  TinyModel model_;
  Telemetry telemetry_;
  std::unique_ptr<Engine> engine_ = Start(OptionsFor(model_), &telemetry_);
  ServerStatus status_ = Everything(engine_->info());
};

std::set<std::string> LabelsOf(const Metric& metric) {
  std::set<std::string> labels;
  std::istringstream names{std::string(metric.labels)};
  for (std::string name; std::getline(names, name, ',');) labels.insert(name);
  return labels;
}

template <typename Series>
void ExpectLabels(const Series& series, const std::set<std::string>& want, std::string_view name) {
  for (const auto& [labels, value] : series) {
    std::set<std::string> got;
    for (const auto& [label, text] : labels) got.insert(label);
    EXPECT_EQ(got, want) << name;
  }
}

TEST_F(MetricsPageTest, HasTheCatalogueAndNothingElse) {
  const PageReader page = Page();
  std::set<std::string> catalogue;
  for (const MetricGroup& group : MetricCatalogue()) {
    for (const Metric& metric : group.metrics) {
      EXPECT_TRUE(catalogue.emplace(metric.name).second) << metric.name << " stands twice";
      if (metric.name.starts_with("exposer_")) continue;  // added on the way out
      const auto found = page.families().find(std::string(metric.name));
      ASSERT_NE(found, page.families().end()) << metric.name << " is not on the page";
      const PageFamily& family = found->second;
      EXPECT_EQ(family.type, Name(metric.type)) << metric.name;
      EXPECT_EQ(family.help, metric.help) << metric.name;
      EXPECT_TRUE(!family.samples.empty() || !family.counts.empty())
          << metric.name << " has no series";
      ExpectLabels(family.samples, LabelsOf(metric), metric.name);
      ExpectLabels(family.counts, LabelsOf(metric), metric.name);
    }
  }
  for (const auto& [name, family] : page.families()) {
    EXPECT_TRUE(catalogue.contains(name)) << name << " is not in the catalogue";
  }
}

TEST_F(MetricsPageTest, NamesFollowTheRulesOfPrometheus) {
  for (const MetricGroup& group : MetricCatalogue()) {
    for (const Metric& metric : group.metrics) {
      EXPECT_EQ(metric.name.ends_with("_total"), metric.type == prometheus::MetricType::Counter)
          << metric.name;
      EXPECT_EQ(metric.name.find(':'), std::string_view::npos) << metric.name;
      EXPECT_TRUE(metric.name.starts_with("eta_") || metric.name.starts_with("process_") ||
                  metric.name.starts_with("exposer_"));
      if (metric.unit == "seconds") {
        EXPECT_NE(metric.name.find("_seconds"), std::string_view::npos) << metric.name;
      }
      if (metric.unit == "bytes") {
        EXPECT_NE(metric.name.find("_bytes"), std::string_view::npos) << metric.name;
      }
      if (metric.unit == "ratio") {
        EXPECT_TRUE(metric.name.ends_with("_ratio")) << metric.name;
      }
    }
  }
}

TEST_F(MetricsPageTest, HistogramsAreCumulativeAndEndAtTheirCount) {
  const PageReader page = Page();
  int histograms = 0;
  for (const auto& [name, family] : page.families()) {
    for (const auto& [labels, buckets] : family.buckets) {
      ++histograms;
      EXPECT_EQ(buckets.back().first, "+Inf") << name;
      EXPECT_EQ(buckets.back().second, family.counts.at(labels)) << name;
      EXPECT_TRUE(family.sums.contains(labels)) << name;
      for (size_t i = 1; i < buckets.size(); ++i) {
        EXPECT_LE(buckets[i - 1].second, buckets[i].second) << name;
      }
    }
  }
  EXPECT_GT(histograms, 15);
  EXPECT_EQ(page.Count("eta_request_generated_tokens", {{"model", "tiny"}}), 1.0);
}

TEST_F(MetricsPageTest, ShowsHowTheServerStands) {
  const PageReader page = Page();
  const Labels model = {{"model", "tiny"}};
  EXPECT_EQ(page.Value("eta_requests_running", model), 3.0);
  EXPECT_EQ(page.Value("eta_kv_cache_usage_ratio", model), 0.25);
  EXPECT_EQ(page.Value("eta_kv_cache_blocks", {{"model", "tiny"}, {"state", "free"}}), 50.0);
  EXPECT_EQ(page.Value("eta_engine_state", {{"state", "draining"}}), 1.0);
  EXPECT_EQ(page.Sum("eta_engine_state"), 1.0);
  EXPECT_EQ(page.Value("eta_devices", {{"model", "tiny"}, {"state", "lost"}}), 1.0);
  EXPECT_EQ(page.Value("eta_model_load_duration_seconds", model), 3.0);
  const Labels legal = {
      {"model", "tiny"}, {"tenant", "acme"}, {"profile", "legal"}, {"version", "7"}};
  EXPECT_EQ(page.Value("eta_profile_target_density_ratio", legal), 0.125);
  EXPECT_EQ(page.Value("eta_profile_target_union_density_ratio", legal), 0.25);
  EXPECT_EQ(page.Value("eta_profile_target_mass_ratio", legal), 0.97);
  const ModelConfig& config = status_.info.config;
  EXPECT_EQ(page.Value("eta_profile_target_cached_keys", legal),
            1536.0 * config.num_layers * config.num_kv_heads);
  EXPECT_EQ(page.Value("eta_default_profile_tenants", model), 2.0);
  // One that was never verified has no target.
  EXPECT_EQ(page.families().at("eta_profile_target_density_ratio").samples.size(), 1u);
  EXPECT_EQ(page.families().at("eta_profile_info").samples.size(), 2u);
  EXPECT_EQ(page.Value("eta_profile_store_up", model), 1.0);
  EXPECT_EQ(page.Value("eta_profile_staleness_seconds", model), 11.0);
  EXPECT_GT(page.Value("process_resident_memory_bytes", {}), 1e6);
  EXPECT_GT(page.Value("process_cpu_seconds_total", {}), 0.0);
  EXPECT_GT(page.Value("process_open_fds", {}), 2.0);
  EXPECT_GE(page.Value("process_threads", {}), 2.0);
  EXPECT_GT(page.Value("process_start_time_seconds", {}), 1.5e9);
  EXPECT_GT(page.Value("eta_engine_last_step_timestamp_seconds", model),
            page.Value("process_start_time_seconds", {}) - 60.0);
}

TEST_F(MetricsPageTest, ShowsWhatTenantsMayUseAndUse) {
  status_.tenants.push_back(
      {.use = {.tenant = "made-up-1", .calls = 2}, .queue = {.kv_tokens = 5}});
  status_.tenants.push_back(
      {.use = {.tenant = "made-up-2", .calls = 4}, .queue = {.kv_tokens = 6}});
  for (size_t i = 1; i < 3; ++i) status_.tenants[i].use.limit.max_calls = 8;
  const PageReader page = Page();
  const auto of = [](const std::string& tenant) {
    return Labels{{"model", "tiny"}, {"tenant", tenant}};
  };
  EXPECT_EQ(page.Value("eta_tenant_calls", of("acme")), 3.0);
  EXPECT_EQ(page.Value("eta_tenant_max_calls", of("acme")), 8.0);
  EXPECT_EQ(page.Value("eta_tenant_tokens_left", of("acme")), 400.0);
  EXPECT_EQ(page.Value("eta_tenant_burst_tokens", of("acme")), 1000.0);
  EXPECT_EQ(page.Value("eta_tenant_kv_tokens", of("acme")), 70.0);
  EXPECT_EQ(page.Value("eta_tenant_max_kv_tokens", of("acme")), 5000.0);
  EXPECT_EQ(page.Value("eta_tenant_refused_total",
                       {{"model", "tiny"}, {"tenant", "acme"}, {"reason", "tenant_calls"}}),
            1.0);
  const std::pair<const char*, double> values[] = {
      {"eta_tenant_requests_running", 2.0},       {"eta_tenant_requests_paused", 1.0},
      {"eta_tenant_tokens_per_second", 0.5},      {"eta_tenant_weight", 4.0},
      {"eta_tenant_calibrations", 2.0},           {"eta_tenant_max_calibrations", 3.0},
      {"eta_tenant_profile_versions", 9.0},       {"eta_tenant_max_profile_versions", 10.0},
      {"eta_tenant_profile_bytes", 4000.0},       {"eta_tenant_max_profile_bytes", 5000.0},
      {"eta_tenant_profile_versions_ever", 12.0}, {"eta_tenant_max_profile_versions_ever", 20.0}};
  for (const auto& [name, value] : values) EXPECT_EQ(page.Value(name, of("acme")), value) << name;
  // Names that anybody may make up get no labels, and no bounds that would not be theirs together.
  EXPECT_EQ(page.Value("eta_tenant_calls", of("other")), 6.0);
  EXPECT_EQ(page.Value("eta_tenant_kv_tokens", of("other")), 11.0);
  EXPECT_EQ(page.families().at("eta_tenant_max_calls").samples.size(), 1u);
  EXPECT_EQ(page.Value("eta_memory_pressure_state", {{"model", "tiny"}, {"state", "short"}}), 1.0);
  EXPECT_EQ(page.Sum("eta_memory_pressure_state"), 1.0);
  EXPECT_EQ(page.Value("eta_memory_streams_ended_total", {{"model", "tiny"}}), 2.0);
  EXPECT_EQ(page.Value("eta_answers_cut_off_total", {{"model", "tiny"}}), 3.0);
}

TEST_F(MetricsPageTest, ShowsWhatWaitsArePredictedFromAndWhatIsShared) {
  const PageReader page = Page();
  const Labels model = {{"model", "tiny"}};
  const auto of = [](const std::string& device) {
    return Labels{{"model", "tiny"}, {"device", device}};
  };
  EXPECT_EQ(page.Value("eta_requests_paused", model), 1.0);
  EXPECT_EQ(page.Value("eta_requests_waiting", model), 16.0)
      << "for a slot, to be made tokens, or for a format";
  EXPECT_EQ(page.Value("eta_predicted_wait_seconds", of("0")), 1.5);
  EXPECT_EQ(page.Value("eta_predicted_wait_seconds", of("1")), 0.0);
  EXPECT_EQ(page.Value("eta_prefill_tokens_per_second", of("0")), 250.0);
  EXPECT_EQ(page.families().at("eta_prefill_tokens_per_second").samples.size(), 1u);
  EXPECT_EQ(page.Value("eta_slot_interval_seconds", of("0")), 0.5);
  EXPECT_EQ(page.Value("eta_store_calls_waiting", model), 7.0);
  EXPECT_EQ(page.Value("eta_store_calls_max_waiting", model), 128.0);
  EXPECT_EQ(page.Value("eta_tokenizer_calls_waiting", model), 8.0);
  EXPECT_EQ(page.Value("eta_tokenizer_calls_max_waiting", model), 512.0);
  EXPECT_EQ(page.Value("eta_format_calls_waiting", model), 6.0);
  EXPECT_EQ(page.Value("eta_format_calls_max_waiting", model), 256.0);
  EXPECT_EQ(page.Value("eta_profile_lookups_waiting", model), 9.0);
  EXPECT_EQ(page.Value("eta_profile_lookups_max_waiting", model), 1024.0);
  EXPECT_EQ(page.Value("eta_stats_watchers", model), 2.0);
  EXPECT_EQ(page.Value("eta_stats_watchers_max", model), 32.0);
}

TEST_F(MetricsPageTest, PickersFindTheSeriesThatTheyKnow) {
  status_.telemetry = telemetry_.Snapshot();
  auto families = MetricsPage(status_, telemetry_);
  const size_t own = families.size();
  AddVllmNames(families);
  EXPECT_EQ(families.size(), own + VllmNames().size());
  const PageReader page(PageText(families));
  const Labels model = {{"model_name", "tiny"}};
  EXPECT_EQ(page.Value("vllm:num_requests_running", model), 3.0);
  EXPECT_EQ(page.Value("vllm:num_requests_waiting", model), 16.0);
  EXPECT_EQ(page.Value("vllm:kv_cache_usage_perc", model), 0.25);
  const PageFamily& config = page.families().at("vllm:cache_config_info");
  ASSERT_EQ(config.samples.size(), 1u);
  const Labels& labels = config.samples.begin()->first;
  EXPECT_EQ(labels.at("block_size"), std::to_string(status_.info.block_size));
  EXPECT_EQ(labels.at("num_gpu_blocks"), std::to_string(status_.info.num_blocks));
}

TEST_F(MetricsPageTest, OtherNamesAreThereWhereTheyAreAskedFor) {
  Telemetry telemetry;
  const auto has = [](const StatusCollector& collector) {
    return PageReader(PageText(collector.Collect()))
        .families()
        .contains("vllm:num_requests_waiting");
  };
  EXPECT_FALSE(has(StatusCollector(telemetry)));
  EXPECT_TRUE(has(StatusCollector(telemetry, /*vllm_names=*/true)));
}

TEST_F(MetricsPageTest, SpansAreCountedByWhatBecameOfThem) {
  const PageReader page = Page();
  EXPECT_EQ(page.Value("eta_trace_spans_exported_total", {{"model", "tiny"}}), 40.0);
  const auto lost = [&page](const std::string& reason) {
    return page.Value("eta_trace_spans_dropped_total", {{"model", "tiny"}, {"reason", reason}});
  };
  EXPECT_EQ(lost("queue_full"), 7.0);
  EXPECT_EQ(lost("unanswered"), 6.0);
  EXPECT_EQ(lost("refused"), 5.0);
  EXPECT_EQ(lost("shutdown"), 4.0);
  status_.spans.reset();
  EXPECT_TRUE(Page().families().at("eta_trace_spans_dropped_total").samples.empty());
}

TEST_F(MetricsPageTest, TwoVersionsUnderOneLabelAreOneSeries) {
  status_.profiles.push_back(status_.profiles.front());
  status_.profiles.back().checksum = "another";
  const PageReader page = Page();  // fails on a series that stands twice
  EXPECT_EQ(page.families().at("eta_profile_info").samples.size(), 2u);
}

TEST_F(MetricsPageTest, WhileTheModelLoadsThereIsAStateAndNoModel) {
  Telemetry telemetry;
  const PageReader page(PageText(telemetry));
  EXPECT_EQ(page.Value("eta_engine_state", {{"state", "loading"}}), 1.0);
  EXPECT_EQ(page.Sum("eta_engine_state"), 1.0);
  EXPECT_TRUE(page.families().at("eta_requests_running").samples.empty());
  EXPECT_TRUE(page.families().at("eta_requests_total").samples.empty());
}

TEST_F(MetricsPageTest, WithoutAStoreNothingIsSaidOfOne) {
  status_.store.reset();
  status_.profiles.clear();
  const PageReader page = Page();
  EXPECT_TRUE(page.families().at("eta_profile_store_up").samples.empty());
  EXPECT_TRUE(page.families().at("eta_profile_info").samples.empty());
}

TEST_F(MetricsPageTest, VersionsBeyondTheLimitOfLabelsAreNotListed) {
  Telemetry labels({.label_limit = 3});
  for (int version = 8; version < 20; ++version) {
    status_.profiles.push_back(
        {.tenant = TenantNamed("acme"), .name = "legal", .version = version});
  }
  status_.telemetry = telemetry_.Snapshot();
  const PageReader page(PageText(MetricsPage(status_, labels)));
  EXPECT_EQ(page.families().at("eta_profile_info").samples.size(), 3u);
  EXPECT_EQ(page.Value("eta_profiles_loaded", {{"model", "tiny"}}), 14.0);
}

TEST(MetricFamilies, LabelsReadBackAsTheyWere) {
  MetricFamilies page("a\"b\\c\nd");
  page.AddOnly("eta_requests_running", 5);
  const PageReader read(PageText(page.Release()));
  EXPECT_EQ(read.Value("eta_requests_running", {{"model", "a\"b\\c\nd"}}), 5.0);
}

TEST_F(MetricsPageTest, ExpertsOfALayerAreSumsAndThreeLoads) {
  const PageReader page = Page();
  EXPECT_EQ(page.Sum("eta_expert_rows_total", {{"layer", "4"}}), 12.0);
  EXPECT_EQ(page.Sum("eta_experts_read_total", {{"layer", "4"}}), 5.0);
  for (const auto& [expert, load] :
       {std::pair("busiest", 2.0), std::pair("median", 0.75), std::pair("idlest", 0.25)}) {
    EXPECT_EQ(page.Sum("eta_expert_load_ratio", {{"expert", expert}}), load) << expert;
  }
  EXPECT_EQ(page.Sum("eta_expert_load_ratio"), 3.0);
}

TEST(MetricFamilies, IntegersReadBackExactly) {
  for (const int64_t value : {int64_t{0}, int64_t{1} << 31, (int64_t{1} << 53) - 1}) {
    MetricFamilies page("m");
    page.AddOnly("eta_attention_keys_read_total", value);
    EXPECT_EQ(PageReader(PageText(page.Release())).Sum("eta_attention_keys_read_total"),
              static_cast<double>(value));
  }
}

TEST(MetricFamilies, BoundsOfBucketsAreShort) {
  MetricFamilies page("m");
  page.AddOnly("eta_step_tokens", Histogram(BatchBuckets()));
  page.AddOnly("eta_inter_token_latency_seconds", Histogram(InterTokenBuckets()));
  page.AddOnly("eta_request_density_ratio", Histogram(RatioBuckets()));
  const std::string text = PageText(page.Release());
  for (const char* bound : {"16384", "0.001", "0.015", "0.8", "10", "0.075", "+Inf"}) {
    EXPECT_THAT(text, HasSubstr(std::string("le=\"") + bound + "\"")) << bound;
  }
}

TEST(MetricCatalogue, IsWhatTheDocumentSays) {
  std::ifstream file(ETA_SOURCE_DIR "/deploy/metrics.md");
  std::ostringstream text;
  text << file.rdbuf();
  EXPECT_EQ(text.str(), MetricCatalogueMarkdown())
      << "write it anew: eta-server --print_metrics > deploy/metrics.md";
}

}  // namespace
}  // namespace eta::testing
