// What Stats says, from given numbers: quantities, drift, bounds, and who sees what.
#include "service/stats/convert_stats.h"

#include <google/protobuf/util/time_util.h>

#include <string>

#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "service/options/server_options.h"
#include "service/stats/stats_query.h"
#include "tests/testing/base/text_proto.h"

namespace eta {
namespace {

using google::protobuf::util::TimeUtil;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

Tenant TenantNamed(const std::string& id) {
  return Tenant::Parse(id).value();
}

EngineInfo Info() {
  EngineInfo info{};
  info.model_name = "tiny";
  info.config.num_layers = 2;
  info.config.num_query_heads = 4;
  info.config.num_kv_heads = 2;
  info.block_size = 16;
  info.num_blocks = 64;
  info.kv_dtype = DType::kFloat16;
  info.index = IndexKind::kOutlier;
  info.index_dtype = DType::kInt8;
  return info;
}

Label LabelOf(const std::string& name) {
  LabelNames names({}, 1);
  return names.Use(name, Clock::now());
}

AccountSeries SeriesOf(AttentionMode mode, const std::string& profile, int64_t rows) {
  AccountSeries series;
  series.mode = mode;
  series.profile = LabelOf(profile);
  series.attention = {.decode_rows = rows,
                      .keys_attended = 11 * rows,
                      .keys_eligible = 40 * rows,
                      .keys_read = 9 * rows,
                      .values_read = 8 * rows,
                      .keys_cached = 20 * rows,
                      .head_density_sum = 0.25 * static_cast<double>(rows),
                      .union_density_sum = 0.5 * static_cast<double>(rows),
                      .kv_bytes_read = 900 * rows,
                      .kv_bytes_dense = 2000 * rows,
                      .index_bytes_read = 7 * rows};
  return series;
}

LoadedProfile Loaded(const std::string& tenant, const std::string& name, int64_t version,
                     std::optional<double> head, std::optional<double> read) {
  return {.tenant = TenantNamed(tenant),
          .name = name,
          .version = version,
          .checksum = "c",
          .head_density = head,
          .union_density = read,
          .measured_context = 2048};
}

ServerStatus Status() {
  ServerStatus status;
  status.info = Info();
  status.state = ServerState::kServing;
  status.now = Clock::time_point(seconds(1000));
  status.time = std::chrono::system_clock::time_point(seconds(1'700'000'000));
  status.telemetry.started = status.now - seconds(90);
  return status;
}

TEST(ConvertStats, SaysWhatTheServerIsAndHowLong) {
  ServerStatus status = Status();
  status.state = ServerState::kDraining;
  status.version = "9.9";
  status.info.model_fingerprint = "abc";
  status.info.tokenizer_fingerprint = "def";
  status.info.backend = "cpu";
  status.info.config.head_dim = 32;
  status.info.sub_block = 8;
  status.info.weight_bytes = 1000;
  status.info.kv_bytes = 2000;
  const v1::Stats stats = ToMessage(status);
  EXPECT_THAT(stats.server(), ReadsAs(R"(
    state: SERVER_STATE_DRAINING version: "9.9" model: "tiny" model_fingerprint: "abc"
    tokenizer_fingerprint: "def" backend: "cpu" chat: true
    kv {
      layers: 2 query_heads: 4 kv_heads: 2 head_dim: 32 block_size: 16 sub_block: 8
      kv_dtype: "float16" index: "outlier" index_dtype: "int8" blocks: 64
      weight_bytes: 1000 kv_bytes: 2000
    })"));
  EXPECT_EQ(stats.time().seconds(), 1'700'000'000);
  EXPECT_EQ(stats.uptime().seconds(), 90);
  EXPECT_FALSE(stats.load().has_last_step_age());
  EXPECT_FALSE(stats.has_tenant());
}

TEST(ConvertStats, SaysWhichLayersSeeAWindow) {
  ServerStatus status = Status();
  EXPECT_FALSE(ToMessage(status).server().kv().has_full_layers());
  status.info.config.sliding_window = 512;
  status.info.config.layers = {{.window = 512}, {}};
  EXPECT_EQ(ToMessage(status).server().kv().full_layers(), 1);
  EXPECT_EQ(ToMessage(status).server().kv().window(), 512);
  status.info.config.layers[1].window = 512;
  EXPECT_TRUE(ToMessage(status).server().kv().has_full_layers());
  EXPECT_EQ(ToMessage(status).server().kv().full_layers(), 0);
}

TEST(ConvertStats, StatesOfTheServer) {
  ServerStateFlags flags;
  EngineSnapshot engine;
  EXPECT_EQ(flags.Of(engine), ServerState::kServing);
  flags.SetDraining();
  EXPECT_EQ(flags.Of(engine), ServerState::kDraining);
  EXPECT_FALSE(flags.closed());
  flags.SetStalled(true);
  EXPECT_EQ(flags.Of(engine), ServerState::kStalled);
  engine.device_lost = true;
  EXPECT_EQ(flags.Of(engine), ServerState::kDeviceLost);
  engine.device_lost = false;
  flags.SetStalled(false);
  EXPECT_EQ(flags.Of(engine), ServerState::kDraining);
}

TEST(ConvertStats, LoadIsTheEnginesAndTheCounters) {
  ServerStatus status = Status();
  status.engine = {.running = 3,
                   .waiting = 2,
                   .waiting_tokens = 99,
                   .passes_running = 4,
                   .passes_waiting = 5,
                   .last_step = status.now - milliseconds(25),
                   .paused = 1};
  status.devices = {{.running = 6,
                     .waiting = 7,
                     .blocks_used = 8,
                     .blocks_cached = 9,
                     .blocks_free = 10,
                     .steps = 11,
                     .paused = 12,
                     .predicted_wait = milliseconds(1500),
                     .wait_estimate = {.prefill_throughput = 250.0,
                                       .slot_interval = std::chrono::duration<double>(0.5)}},
                    {.running = 2, .blocks_cached = 4, .device_lost = true}};
  status.telemetry.server.steps = 1000;
  status.telemetry.server.preemptions = 13;
  status.telemetry.server.drafts = {.drafted = 60, .accepted = 40, .steps_saved = 39};
  status.telemetry.accounts = {{.prompt_tokens = 40, .cached_tokens = 20, .output_tokens = 700},
                               {.prompt_tokens = 4, .cached_tokens = 2, .output_tokens = 77}};
  status.telemetry.steps_per_second = 7.5;
  status.telemetry.tokens_per_second = 12.5;
  EXPECT_THAT(ToMessage(status).load(), ReadsAs(R"(
    running: 3 waiting: 2 waiting_tokens: 99 passes_running: 4 passes_waiting: 5 paused: 1
    drafts { drafted: 60 accepted: 40 steps_saved: 39 }
    steps: 1000 preemptions: 13 prompt_tokens: 44 cached_tokens: 22 output_tokens: 777
    steps_per_second: 7.5 tokens_per_second: 12.5 last_step_age { nanos: 25000000 }
    devices {
      running: 6 waiting: 7 blocks_used: 8 blocks_cached: 9 blocks_free: 10 steps: 11 paused: 12
      predicted_wait { seconds: 1 nanos: 500000000 }
      prefill_tokens_per_second: 250 slot_interval { nanos: 500000000 }
    }
    devices { running: 2 blocks_cached: 4 lost: true predicted_wait {} })"))
      << "of the second a slot is free, or nothing is known";
}

TEST(ConvertStats, TheDefaultProfileIsToldWhereThereIsOne) {
  ServerStatus status = Status();
  status.telemetry.server.default_profile = {4, 3, 2, 1};
  EXPECT_FALSE(ToMessage(status).has_default_profile());
  status.default_profile_tenants = 5;
  EXPECT_THAT(ToMessage(status).default_profile(),
              ReadsAs("used: 4 absent: 3 unfit: 2 unavailable: 1 tenants: 5"));
  status.tenant = TenantNamed("acme");
  EXPECT_FALSE(ToMessage(status).has_default_profile());
}

TEST(ConvertStats, ConnectionsAreEverybodys) {
  ServerStatus status = Status();
  status.connections = {.open = 1,
                        .max = 2,
                        .accepted = 3,
                        .refused_full = 4,
                        .refused_peer = 5,
                        .refused_no_files = 6,
                        .accept_errors = 7};
  EXPECT_THAT(ToMessage(status).connections(), ReadsAs(R"(
    open: 1 max: 2 accepted: 3 refused_full: 4 refused_peer: 5 refused_no_files: 6
    accept_errors: 7)"));
  status.tenant = TenantNamed("acme");
  EXPECT_FALSE(ToMessage(status).has_connections());
}

TEST(ConvertStats, EveryLatencyStandsInItsPlaceAndEmptyOnesHaveNoQuantiles) {
  ServerStatus status = Status();
  auto& of_queue = status.telemetry.latencies[static_cast<int>(Latency::kQueue)];
  of_queue[static_cast<int>(Window::kTenMinutes)] = {
      .count = 8, .p50 = milliseconds(1), .p95 = milliseconds(2), .p99 = milliseconds(1500)};
  const v1::Stats stats = ToMessage(status);
  ASSERT_THAT(stats.latencies(), SizeIs(8));
  for (const v1::LatencyStats& latency : stats.latencies()) {
    const bool set = latency.kind() == v1::LATENCY_KIND_QUEUE &&
                     latency.window() == v1::LATENCY_WINDOW_TEN_MINUTES;
    EXPECT_EQ(latency.count(), set ? 8 : 0);
    EXPECT_EQ(latency.has_p50(), set);
    if (set) {
      EXPECT_EQ(TimeUtil::DurationToMilliseconds(latency.p99()), 1500);
    }
  }
}

TEST(ConvertStats, TotalsAreKeptAndDensitiesAreMeansOverSteps) {
  ServerStatus status = Status();
  status.telemetry.accounts = {
      SeriesOf(AttentionMode::kProfile, "b", 3), SeriesOf(AttentionMode::kDynamic, "", 8),
      SeriesOf(AttentionMode::kProfile, "a", 5), SeriesOf(AttentionMode::kFull, "", 0)};
  const v1::Stats stats = ToMessage(status);
  ASSERT_THAT(stats.attention(), SizeIs(3));  // what never decoded is left out
  EXPECT_EQ(stats.attention(0).mode(), v1::ATTENTION_MODE_DYNAMIC);
  EXPECT_EQ(stats.attention(1).profile(), "a");
  EXPECT_EQ(stats.attention(2).profile(), "b");
  EXPECT_THAT(stats.attention(1).totals(), ReadsAs(R"(
    decode_steps: 5 head_density: 0.25 union_density: 0.5
    keys_attended: 55 keys_eligible: 200 keys_read: 45 values_read: 40 keys_cached: 100
    kv_bytes_read: 4500 kv_bytes_dense: 10000 index_bytes_read: 35)"));
}

// Of tenant "default": 2 rows of the last ten minutes at contexts that calibration measured, and as
// many at others, whose union density is 0.2.
AccountSeries VersionOf(const std::string& profile, int64_t version, double union_density) {
  AccountSeries series = SeriesOf(AttentionMode::kProfile, profile, 4);
  series.tenant = LabelOf("default");
  series.version = version;
  series.recent.like_measured = {
      {.decode_rows = 2, .head_density_sum = union_density, .union_density_sum = 2 * union_density},
      3000};
  series.recent.all = series.recent.like_measured;
  series.recent.all.Add(
      {{.decode_rows = 2, .head_density_sum = 0.2, .union_density_sum = 0.4}, 21000});
  return series;
}

TEST(ConvertStats, EachVersionDriftsFromItsOwnPromise) {
  ServerStatus status = Status();
  status.telemetry.accounts = {VersionOf("legal", 2, 0.06), VersionOf("legal", 1, 0.164)};
  status.profiles = {Loaded("default", "legal", 1, 0.082, 0.164),
                     Loaded("default", "legal", 2, 0.02, 0.05)};
  const v1::Stats stats = ToMessage(status);
  ASSERT_THAT(stats.attention(), SizeIs(2));
  EXPECT_EQ(stats.attention(0).version(), 1);
  EXPECT_EQ(stats.attention(0).tenant(), "default");
  EXPECT_DOUBLE_EQ(stats.attention(0).calibrated_union_density(), 0.164);
  EXPECT_NEAR(stats.attention(0).union_density_drift(), 0.0, 1e-12);
  EXPECT_EQ(stats.attention(1).version(), 2);
  EXPECT_DOUBLE_EQ(stats.attention(1).calibrated_head_density(), 0.02);
  EXPECT_NEAR(stats.attention(1).head_density_drift(), 0.5, 1e-12);
  EXPECT_NEAR(stats.attention(1).union_density_drift(), 0.2, 1e-12);
}

TEST(ConvertStats, QualityStandsBesideWhatCalibrationPromised) {
  ServerStatus status = Status();
  status.telemetry.accounts = {VersionOf("legal", 1, 0.164), VersionOf("legal", 2, 0.164)};
  AccountSeries& measured = status.telemetry.accounts[0];
  measured.attention.shadow_row_layers = 4;
  measured.attention.mass_kept_sum = 3.6;
  measured.attention.output_error_sum = 0.8;
  measured.recent.all.shadow_row_layers = 2;
  measured.recent.all.mass_kept_sum = 1.6;
  measured.fallbacks = 3;
  measured.attention.fallback_rows = 9;
  measured.attention.fallback_kv_bytes_read = 900;
  status.profiles = {Loaded("default", "legal", 1, 0.082, 0.164),
                     Loaded("default", "legal", 2, 0.02, 0.05)};
  status.profiles[0].retained_mass = 0.97;
  const v1::Stats stats = ToMessage(status);
  const v1::AttentionSeries& first = stats.attention(0);
  EXPECT_EQ(first.totals().shadow_row_layers(), 4);
  EXPECT_DOUBLE_EQ(first.totals().mass_kept(), 0.9);
  EXPECT_DOUBLE_EQ(first.totals().output_error(), 0.2);
  EXPECT_DOUBLE_EQ(first.recent().mass_kept(), 0.8);
  EXPECT_DOUBLE_EQ(first.calibrated_mass(), 0.97);
  EXPECT_EQ(first.fallbacks(), 3);
  EXPECT_EQ(first.totals().fallback_steps(), 9);
  EXPECT_EQ(first.totals().fallback_kv_bytes_read(), 900);
  const v1::AttentionSeries& second = stats.attention(1);
  EXPECT_FALSE(second.totals().has_mass_kept()) << "nothing was measured";
  EXPECT_FALSE(second.recent().has_mass_kept());
  EXPECT_FALSE(second.has_calibrated_mass()) << "nor promised";
}

TEST(ConvertStats, DriftIsOfTheContextsOfTheCalibrationOrSaidToBeOfOthers) {
  ServerStatus status = Status();
  status.telemetry.accounts = {VersionOf("legal", 1, 0.5), VersionOf("legal", 2, 0.5),
                               VersionOf("legal", 3, 0.5)};
  AccountSeries& longer = status.telemetry.accounts[1];
  longer.recent.like_measured = {};
  status.telemetry.accounts[2].recent = {};
  status.profiles = {Loaded("default", "legal", 1, 0.25, 0.5),
                     Loaded("default", "legal", 2, 0.25, 0.5),
                     Loaded("default", "legal", 3, 0.25, 0.5)};
  const v1::Stats stats = ToMessage(status);
  const v1::AttentionSeries& alike = stats.attention(0);
  EXPECT_EQ(alike.calibrated_context(), 2048);
  EXPECT_EQ(alike.drift_context(), v1::DRIFT_CONTEXT_CALIBRATED);
  EXPECT_EQ(alike.recent().decode_steps(), 4);
  EXPECT_DOUBLE_EQ(alike.recent().context(), 6000.0);
  EXPECT_EQ(alike.recent_as_calibrated().decode_steps(), 2);
  EXPECT_DOUBLE_EQ(alike.recent_as_calibrated().context(), 1500.0);
  EXPECT_NEAR(alike.union_density_drift(), 0.0, 1e-12) << "of 2 rows of the 4";
  const v1::AttentionSeries& other = stats.attention(1);
  EXPECT_EQ(other.drift_context(), v1::DRIFT_CONTEXT_OTHER);
  EXPECT_FALSE(other.has_recent_as_calibrated());
  EXPECT_NEAR(other.union_density_drift(), 1.4 / 4 / 0.5 - 1.0, 1e-12) << "of all 4";
  const v1::AttentionSeries& idle = stats.attention(2);
  EXPECT_EQ(idle.totals().decode_steps(), 4);
  EXPECT_DOUBLE_EQ(idle.calibrated_union_density(), 0.5);
  EXPECT_FALSE(idle.has_recent());
  EXPECT_FALSE(idle.has_union_density_drift()) << "sums since the start are none of its business";
  EXPECT_EQ(idle.drift_context(), v1::DRIFT_CONTEXT_UNSPECIFIED);
}

TEST(ConvertStats, WhatIsNotKnownToBeOneVersionHasNoDrift) {
  ServerStatus status = Status();
  status.telemetry.accounts = {VersionOf("gone", 1, 0.5), VersionOf("unverified", 1, 0.5),
                               VersionOf("many", AccountSeries::kOtherVersions, 0.5),
                               VersionOf("theirs", 1, 0.5), VersionOf("theirs", 1, 0.5)};
  status.telemetry.accounts[3].tenant = LabelOf("somebody");
  status.telemetry.accounts[4].tenant = Label::Other();
  status.profiles = {Loaded("default", "gone", 2, 0.2, 0.4),
                     Loaded("default", "unverified", 1, std::nullopt, std::nullopt),
                     Loaded("default", "many", 1, 0.2, 0.4), Loaded("other", "theirs", 1, 0.2, 0.4),
                     Loaded("default", "theirs", 1, 0.2, 0.4)};
  const v1::Stats stats = ToMessage(status);
  ASSERT_THAT(stats.attention(), SizeIs(5));
  for (const v1::AttentionSeries& series : stats.attention()) {
    EXPECT_FALSE(series.has_calibrated_head_density()) << series.profile();
    EXPECT_FALSE(series.has_head_density_drift()) << series.profile();
    EXPECT_TRUE(series.has_recent()) << series.profile();
  }
  EXPECT_FALSE(stats.attention(1).has_version()) << "several";
  EXPECT_EQ(stats.profiles_loaded(), 5);
  EXPECT_EQ(stats.profiles(0).version(), 2);
  EXPECT_FALSE(stats.profiles(1).has_head_density());
}

TEST(ConvertStats, LayersThatAreTooManyAreThoseOfTheBusiestSeries) {
  const auto with_layers = [](const std::string& profile, int64_t rows, size_t heads) {
    AccountSeries series = SeriesOf(AttentionMode::kProfile, profile, rows);
    series.layers.resize(2);
    for (LayerTotals& layer : series.layers) {
      layer.keys_attended.assign(heads, 3);
      layer.keys_read = {5};
      layer.keys_eligible = 10;
    }
    return series;
  };
  constexpr size_t kHeads = kMaxStatsLayerNumbers / 4 - 2;  // of two layers: half of what may be
  ServerStatus status = Status();
  status.telemetry.accounts = {with_layers("a", 1, kHeads), with_layers("b", 9, kHeads),
                               with_layers("c", 5, kHeads)};
  const v1::Stats stats = ToMessage(status);
  EXPECT_THAT(stats.attention(0).layers(), IsEmpty());
  ASSERT_THAT(stats.attention(1).layers(), SizeIs(2));
  ASSERT_THAT(stats.attention(2).layers(), SizeIs(2));
  EXPECT_THAT(stats.attention(1).layers(0).keys_attended(), SizeIs(kHeads));
  EXPECT_THAT(stats.attention(1).layers(0).keys_read(), ElementsAre(5));
  EXPECT_EQ(stats.attention(1).layers(0).keys_eligible(), 10);
  EXPECT_LT(stats.ByteSizeLong(), 2u << 20);
}

TEST(ConvertStats, TenantsAndTheirCallsComeInOrder) {
  ServerStatus status = Status();
  const auto calls = [&](const char* method, absl::StatusCode code, const char* mode,
                         int64_t count) {
    status.telemetry.calls.push_back(
        {{.method = method, .code = code, .mode = mode, .tenant = LabelOf("b")}, count});
  };
  calls("GetProfile", absl::StatusCode::kOk, "none", 1);
  calls("Generate", absl::StatusCode::kOk, "full", 4);
  calls("Generate", absl::StatusCode::kOk, "dynamic", 3);
  calls("Generate", absl::StatusCode::kCancelled, "full", 2);
  status.telemetry.accounts = {{.tenant = LabelOf("a"), .output_tokens = 20},
                               {.tenant = LabelOf("a"), .version = 1, .output_tokens = 30}};
  const v1::Stats stats = ToMessage(status);
  ASSERT_THAT(stats.tenants(), SizeIs(2));
  EXPECT_EQ(stats.tenants(0).tenant(), "a");
  EXPECT_EQ(stats.tenants(0).output_tokens(), 50);
  EXPECT_EQ(stats.tenants(1).calls(0).code(), "CANCELLED");
  EXPECT_EQ(stats.tenants(1).calls(1).calls(), 7);
  EXPECT_EQ(stats.tenants(1).calls(2).method(), "GetProfile");
}

TEST(ConvertStats, WhatLabelsThatWentCountedIsPartOfSumsAlone) {
  ServerStatus status = Status();
  AccountSeries kept = SeriesOf(AttentionMode::kProfile, "legal", 3);
  kept.tenant = LabelOf("a");
  kept.output_tokens = 1;
  AccountSeries gone = kept;  // a profile of the tenant's
  gone.profile = Label::Gone();
  gone.output_tokens = 20;
  AccountSeries of_nobody = gone;
  of_nobody.tenant = Label::Gone();
  of_nobody.output_tokens = 300;
  status.telemetry.accounts = {kept, gone, of_nobody};
  for (const auto& [tenant, profile] :
       {std::pair(LabelOf("a"), LabelOf("legal")), std::pair(LabelOf("a"), Label::Gone()),
        std::pair(Label::Gone(), Label::Gone())}) {
    status.telemetry.calls.push_back(
        {{.method = "Generate", .mode = "profile", .profile = profile, .tenant = tenant}, 7});
  }
  status.telemetry.reasons = {
      {{.tenant = Label::Gone(), .method = "Generate", .reason = "TENANT_KV"}, 9}};
  const v1::Stats stats = ToMessage(status);
  EXPECT_EQ(stats.load().output_tokens(), 321);
  ASSERT_THAT(stats.attention(), SizeIs(1));
  EXPECT_EQ(stats.attention(0).profile(), "legal");
  ASSERT_THAT(stats.tenants(), SizeIs(1));
  EXPECT_EQ(stats.tenants(0).output_tokens(), 21);
  EXPECT_EQ(stats.tenants(0).attention().decode_steps(), 6);
  EXPECT_EQ(stats.tenants(0).calls(0).calls(), 14);
  EXPECT_THAT(stats.tenants(0).reasons(), SizeIs(0));
}

TEST(ConvertStats, ASeriesIsOfOneTenantAndOneVersion) {
  ServerStatus status = Status();
  for (int64_t version = 3; version > 0; --version) {
    AccountSeries series = SeriesOf(AttentionMode::kProfile, "legal", version);
    series.tenant = LabelOf("tenant-" + std::to_string(version % 2));
    series.version = version;
    series.layers = {{.keys_attended = {1, 2}, .keys_read = {version}, .keys_eligible = 10}};
    status.telemetry.accounts.push_back(series);
  }
  const v1::Stats stats = ToMessage(status);
  ASSERT_THAT(stats.attention(), SizeIs(3));
  for (int i = 0; i < 3; ++i) {
    const v1::AttentionSeries& series = stats.attention(i);
    EXPECT_EQ(series.version(), i + 1);
    EXPECT_EQ(series.tenant(), i == 1 ? "tenant-0" : "tenant-1");
    EXPECT_EQ(series.totals().decode_steps(), i + 1);
    ASSERT_THAT(series.layers(), SizeIs(1));
    EXPECT_THAT(series.layers(0).keys_read(), ElementsAre(i + 1));
  }
  ASSERT_THAT(stats.tenants(), SizeIs(2));
  EXPECT_EQ(stats.tenants(1).attention().decode_steps(), 4);
}

TEST(ConvertStats, AListOfProfilesIsCutAndCounted) {
  ServerStatus status = Status();
  for (int i = 0; i < kMaxStatsProfiles + 5; ++i) {
    status.profiles.push_back(Loaded("default", "p" + std::to_string(i), 1, 0.1, 0.2));
  }
  const v1::Stats stats = ToMessage(status);
  EXPECT_THAT(stats.profiles(), SizeIs(kMaxStatsProfiles));
  EXPECT_EQ(stats.profiles_loaded(), kMaxStatsProfiles + 5);
}

TEST(ConvertStats, OneTenantsStatsHoldNothingOfTheOthers) {
  ServerStatus status = Status();
  status.tenant = TenantNamed("a");
  status.engine.running = 3;
  status.telemetry.latencies[0][0].count = 5;
  const v1::Stats stats = ToMessage(status);
  EXPECT_EQ(stats.tenant(), "a");
  EXPECT_FALSE(stats.has_load());
  EXPECT_THAT(stats.latencies(), IsEmpty());
  EXPECT_EQ(stats.server().model(), "tiny");
}

TEST(ConvertStats, IntervalsAreBounded) {
  const auto interval = [](int64_t whole, int32_t nanos) {
    v1::WatchStatsRequest request;
    request.mutable_interval()->set_seconds(whole);
    request.mutable_interval()->set_nanos(nanos);
    return ToInterval(request);
  };
  EXPECT_EQ(ToInterval({}).value(), seconds(1));
  EXPECT_EQ(interval(0, 100'000'000).value(), milliseconds(100));
  EXPECT_EQ(interval(60, 0).value(), seconds(60));
  for (const auto& [whole, nanos] :
       std::vector<std::pair<int64_t, int32_t>>{{0, 0},
                                                {0, 99'999'999},
                                                {60, 1},
                                                {61, 0},
                                                {-1, 0},
                                                {1, -1},
                                                {0, 1'000'000'000},
                                                {INT64_MAX, 999'999'999},
                                                {INT64_MIN, INT32_MIN}}) {
    const auto refused = interval(whole, nanos);
    ASSERT_FALSE(refused.ok()) << whole << " " << nanos;
    EXPECT_EQ(GetErrorDetail(refused.status()).field, "interval");
    EXPECT_THAT(std::string(refused.status().message()), HasSubstr("100 ms to 60 s"));
  }
}

Caller CallerOf(const std::string& tenant, Roles roles) {
  return {.tenant = TenantNamed(tenant), .roles = roles, .credential = "test"};
}

TEST(StatsQuery, ATenantGetsItsOwnAndTheOperatorsGetAll) {
  const Caller ops = CallerOf("ops", {Role::kStatsAll});
  const Caller user = CallerOf("user", {Role::kStats, Role::kAdmin});
  EXPECT_EQ(MakeStatsQuery({}, false, ops)->tenant, std::nullopt);
  EXPECT_EQ(MakeStatsQuery("user", false, ops)->tenant, user.tenant);
  EXPECT_EQ(MakeStatsQuery({}, true, user)->tenant, user.tenant);
  EXPECT_TRUE(MakeStatsQuery({}, true, user)->layers);
  EXPECT_EQ(MakeStatsQuery("user", false, user)->tenant, user.tenant);
  const absl::Status refused = MakeStatsQuery("ops", false, user).status();
  EXPECT_EQ(refused.code(), absl::StatusCode::kPermissionDenied);
  EXPECT_EQ(GetErrorDetail(refused).reason, "ADMIN_REQUIRED");
}

TEST(StatsQuery, ATenantMustBeAName) {
  for (const std::string& bad : {std::string(), std::string("a b"), std::string(256, 'x')}) {
    const absl::Status refused =
        MakeStatsQuery(bad, false, CallerOf("default", Roles::All())).status();
    EXPECT_EQ(GetErrorDetail(refused).field, "tenant") << bad;
  }
}

TEST(AdminTenants, NeedATenantHeaderAndMustBeNames) {
  ServerOptions options;
  options.admin_tenants = {"ops"};
  EXPECT_THAT(std::string(CheckCallOptions(options).message()), HasSubstr("--tenant_header"));
  options.tenant_header = "x-tenant";
  EXPECT_TRUE(CheckCallOptions(options).ok()) << CheckCallOptions(options);
  options.admin_tenants.emplace_back("two words");
  EXPECT_THAT(std::string(CheckCallOptions(options).message()), HasSubstr("--admin_tenants"));
}

}  // namespace
}  // namespace eta
