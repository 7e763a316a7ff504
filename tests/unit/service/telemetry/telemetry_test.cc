// Telemetry against the answers: the same integers, whoever looks.
#include "service/telemetry/telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <map>
#include <thread>

#include "engine/base/error.h"
#include "service/telemetry/page/metrics_page.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/process/page_reader.h"

namespace eta {
namespace {

using testing::AskTogether;
using testing::Frozen;
using testing::Greedy;
using testing::OptionsFor;
using testing::PageReader;
using testing::Prompt;
using testing::Start;
using testing::TinyModel;
using testing::WithBlocks;

// Full, dynamic and two profiles; two tenants.
std::vector<Request> Mixed(const ModelConfig& config) {
  std::vector<Request> requests;
  for (int i = 0; i < 16; ++i) {
    Request request =
        Greedy(Prompt(20 + (i * 61) % 111, static_cast<uint32_t>(i)), 15 + 19 * (i % 5));
    request.id = "request-" + std::to_string(i);
    request.tenant = i % 3 == 0 ? "acme" : "globex";
    request.output.layer_statistics = true;
    if (i % 4 == 0) request.attention.mode = AttentionMode::kFull;
    if (i % 4 == 1) request.attention.mode = AttentionMode::kDynamic;
    if (i % 4 == 2) request.attention = Frozen(config, "legal");
    if (i % 4 == 3) request.attention = Frozen(config, "code");
    requests.push_back(std::move(request));
  }
  return requests;
}

void Add(const FinishedEvent& answer, TenantTotals& totals) {
  totals.prompt_tokens += answer.prompt_tokens;
  totals.cached_tokens += answer.cached_tokens;
  totals.output_tokens += answer.output_tokens;
  const AttentionStatistics& attention = answer.attention;
  totals.attention.decode_rows += attention.decode_rows;
  totals.attention.keys_attended += attention.keys_attended;
  totals.attention.keys_eligible += attention.keys_eligible;
  totals.attention.keys_read += attention.keys_read;
  totals.attention.keys_cached += attention.keys_cached;
  totals.attention.kv_bytes_read += attention.kv_bytes_read;
  totals.attention.kv_bytes_dense += attention.kv_bytes_dense;
  totals.attention.index_bytes_read += attention.index_bytes_read;
  const auto rows = static_cast<double>(attention.decode_rows);
  totals.attention.head_density += attention.head_density * rows;
  totals.attention.union_density += attention.union_density * rows;
}

void ExpectSame(const AttentionTotals& got, const AttentionTotals& want, const std::string& what) {
  EXPECT_EQ(got.decode_rows, want.decode_rows) << what;
  EXPECT_EQ(got.keys_attended, want.keys_attended) << what;
  EXPECT_EQ(got.keys_eligible, want.keys_eligible) << what;
  EXPECT_EQ(got.keys_read, want.keys_read) << what;
  EXPECT_EQ(got.keys_cached, want.keys_cached) << what;
  EXPECT_EQ(got.kv_bytes_read, want.kv_bytes_read) << what;
  EXPECT_EQ(got.kv_bytes_dense, want.kv_bytes_dense) << what;
  EXPECT_EQ(got.index_bytes_read, want.index_bytes_read) << what;
  EXPECT_NEAR(got.head_density, want.head_density, 1e-9 * want.head_density) << what;
  EXPECT_NEAR(got.union_density, want.union_density, 1e-9 * want.union_density) << what;
}

class TelemetryTest : public ::testing::Test {
 protected:
  void StartEngine(const EngineOptions& options) {
    engine_ = Start(options, &telemetry_);
    telemetry_.SetModel(engine_->info(), std::chrono::milliseconds(5));
  }
  PageReader Page() {
    MetricsPage page(telemetry_);
    return PageReader(page.Write());
  }

  TinyModel model_;
  Telemetry telemetry_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(TelemetryTest, SnapshotAndPageAddUpToTheAnswers) {
  StartEngine(WithBlocks(OptionsFor(model_), 20));
  const std::vector<Request> requests = Mixed(engine_->info().config);
  const auto answers = AskTogether(*engine_, requests);

  std::map<std::pair<AttentionMode, std::string>, TenantTotals> by_mode;
  std::map<std::string, TenantTotals> by_tenant;
  TenantTotals all;
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].finished) << answers[i].status;
    const AttentionChoice& attention = requests[i].attention;
    const std::string profile = attention.profile ? attention.profile->name : "";
    Add(*answers[i].finished, by_mode[{*attention.mode, profile}]);
    Add(*answers[i].finished, by_tenant[requests[i].tenant]);
    Add(*answers[i].finished, all);
  }

  const TelemetrySnapshot snapshot = telemetry_.Snapshot({.layers = true});
  EXPECT_EQ(snapshot.prompt_tokens, all.prompt_tokens);
  EXPECT_EQ(snapshot.cached_tokens, all.cached_tokens);
  EXPECT_EQ(snapshot.output_tokens, all.output_tokens);
  EXPECT_EQ(snapshot.attention.size(), 4u);
  for (const AttentionSeries& series : snapshot.attention) {
    const AttentionTotals& want = by_mode[{series.mode, series.profile}].attention;
    ExpectSame(series.totals, want, series.profile);
    int64_t attended = 0;
    int64_t read = 0;
    for (const LayerTotals& layer : series.layers) {
      for (const int64_t keys : layer.keys_attended) attended += keys;
      for (const int64_t keys : layer.keys_read) read += keys;
      EXPECT_EQ(layer.keys_eligible * 2 * 4, want.keys_eligible);  // 2 layers of 4 heads
    }
    EXPECT_EQ(attended, want.keys_attended);
    EXPECT_EQ(read, want.keys_read);
  }
  EXPECT_EQ(snapshot.tenants.size(), 2u);
  for (const TenantTotals& tenant : snapshot.tenants) {
    EXPECT_EQ(tenant.output_tokens, by_tenant[tenant.tenant].output_tokens);
    EXPECT_EQ(tenant.prompt_tokens, by_tenant[tenant.tenant].prompt_tokens);
    ExpectSame(tenant.attention, by_tenant[tenant.tenant].attention, tenant.tenant);
  }
  const auto kind = [&](Latency latency) -> const LatencyQuantiles& {
    return snapshot
        .latencies[static_cast<size_t>(latency)][static_cast<size_t>(Window::kTenMinutes)];
  };
  EXPECT_EQ(kind(Latency::kFirstToken).count, 16);
  EXPECT_EQ(kind(Latency::kInterToken).count, all.output_tokens - 16);
  EXPECT_EQ(kind(Latency::kQueue).count, 16);
  EXPECT_EQ(kind(Latency::kRequest).count, 16);

  const PageReader page = Page();
  const auto number = [](int64_t value) { return static_cast<double>(value); };
  EXPECT_EQ(page.Sum("eta_generated_tokens_total"), number(all.output_tokens));
  EXPECT_EQ(page.Sum("eta_prompt_tokens_total", {{"tenant", "acme"}}),
            number(by_tenant["acme"].prompt_tokens));
  EXPECT_EQ(page.Value("eta_preemptions_total", {{"model", "tiny"}}), number(snapshot.preemptions));
  EXPECT_GT(snapshot.preemptions, 0);
  for (const auto& [key, want] : by_mode) {
    const bool frozen = key.first == AttentionMode::kProfile;
    const testing::Labels labels = {{"model", "tiny"},
                                    {"mode", std::string(Name(key.first))},
                                    {"profile", frozen ? key.second : "none"}};
    const AttentionTotals& totals = want.attention;
    EXPECT_EQ(page.Value("eta_attention_decode_rows_total", labels), number(totals.decode_rows));
    EXPECT_EQ(page.Value("eta_attention_keys_attended_total", labels),
              number(totals.keys_attended));
    EXPECT_EQ(page.Value("eta_attention_keys_eligible_total", labels),
              number(totals.keys_eligible));
    EXPECT_EQ(page.Value("eta_attention_keys_read_total", labels), number(totals.keys_read));
    EXPECT_EQ(page.Value("eta_attention_keys_cached_total", labels), number(totals.keys_cached));
    EXPECT_EQ(page.Value("eta_attention_kv_bytes_read_total", labels),
              number(totals.kv_bytes_read));
    EXPECT_EQ(page.Value("eta_attention_kv_bytes_dense_total", labels),
              number(totals.kv_bytes_dense));
    EXPECT_EQ(page.Value("eta_attention_index_bytes_read_total", labels),
              number(totals.index_bytes_read));
    EXPECT_EQ(page.Count("eta_time_to_first_token_seconds", labels), 4.0);
    EXPECT_EQ(page.Count("eta_inter_token_latency_seconds", labels),
              number(want.output_tokens - 4));
    EXPECT_EQ(page.Count("eta_request_density_ratio", labels), 4.0);
  }
  EXPECT_EQ(
      page.Value("eta_tenant_attention_keys_read_total", {{"model", "tiny"}, {"tenant", "acme"}}),
      number(by_tenant["acme"].attention.keys_read));
}

TEST_F(TelemetryTest, ATenantsSnapshotHoldsNobodyElsesFigures) {
  StartEngine(OptionsFor(model_));
  AskTogether(*engine_, Mixed(engine_->info().config));
  const TelemetrySnapshot all = telemetry_.Snapshot({.layers = true});
  const TelemetrySnapshot acme = telemetry_.Snapshot({.layers = true, .tenant = "acme"});
  const TelemetrySnapshot globex = telemetry_.Snapshot({.layers = true, .tenant = "globex"});
  ASSERT_EQ(acme.tenants.size(), 1u);
  EXPECT_EQ(acme.tenants[0].tenant, "acme");
  EXPECT_EQ(acme.output_tokens, acme.tenants[0].output_tokens);
  EXPECT_EQ(acme.output_tokens + globex.output_tokens, all.output_tokens);
  int64_t rows = 0;
  for (const auto& snapshot : {acme, globex}) {
    for (const AttentionSeries& series : snapshot.attention) rows += series.totals.decode_rows;
  }
  int64_t all_rows = 0;
  for (const AttentionSeries& series : all.attention) all_rows += series.totals.decode_rows;
  EXPECT_EQ(rows, all_rows);
}

TEST_F(TelemetryTest, ATenantWithoutALabelOfItsOwnSeesNothingOfTheOthers) {
  Telemetry telemetry(TelemetryOptions{.profiles = {}, .tenants = {"acme"}});
  const auto engine = Start(OptionsFor(model_), &telemetry);
  telemetry.SetModel(engine->info(), {});
  AskTogether(*engine, Mixed(engine->info().config));
  const TelemetrySnapshot globex = telemetry.Snapshot({.tenant = "globex"});
  EXPECT_TRUE(globex.tenants.empty());
  EXPECT_TRUE(globex.attention.empty());
  EXPECT_EQ(globex.output_tokens, 0);
  const TelemetrySnapshot other = telemetry.Snapshot({.tenant = "other"});
  EXPECT_TRUE(other.tenants.empty());
  EXPECT_EQ(telemetry.Snapshot().tenants.size(), 2u);  // acme and other
}

TEST_F(TelemetryTest, ManyNamesTakeBoundedRoomAndNothingIsLost) {
  Telemetry telemetry(TelemetryOptions{.label_limit = 50});
  const auto engine = Start(OptionsFor(model_));
  telemetry.SetModel(engine->info(), {});
  // 10,000 pairs of names, each of a request with one token.
  for (int i = 0; i < 10'000; ++i) {
    Request request;
    request.tenant = "tenant-" + std::to_string(i % 100);
    ResolvedAttention attention;
    auto profile = std::make_shared<ThresholdProfile>();
    profile->name = "profile-" + std::to_string(i / 100);
    attention.mode = AttentionMode::kProfile;
    attention.profile = profile;
    request.attention = {.mode = AttentionMode::kProfile, .profile = profile};
    const TokenReport token{.request = &request, .attention = &attention, .first = true};
    StepReport step;
    step.sequences = step.prefill_rows = step.num_rows = 1;
    step.tokens = {&token, 1};
    telemetry.OnStep(step);
    FinishedEvent outcome;
    outcome.prompt_tokens = 3;
    outcome.output_tokens = 1;
    outcome.timing.queue = outcome.timing.first_token = std::chrono::microseconds(1);
    telemetry.OnRequestEnd(request, absl::OkStatus(), outcome);
    CallRecord record{.method = "Generate", .tenant = request.tenant};
    record.resolved = record.submitted = true;
    record.mode = AttentionMode::kProfile;
    record.profile = profile->name;
    record.outcome = outcome;
    telemetry.OnCallEnd(record);
  }
  const TelemetryFigures figures = telemetry.Figures();
  EXPECT_LE(figures.accounts.size(), Telemetry::kMaxAccounts + 52);
  EXPECT_LE(figures.calls.size(), Telemetry::kMaxCallSeries + 52);
  EXPECT_EQ(figures.modes.size(), 50u + 3u);  // and other, full, dynamic
  MetricsPage writer(telemetry);
  const PageReader page(writer.Write());
  EXPECT_EQ(page.Sum("eta_generated_tokens_total"), 10'000.0);
  EXPECT_EQ(page.Sum("eta_prompt_tokens_total"), 30'000.0);
  EXPECT_EQ(page.Sum("eta_requests_total"), 10'000.0);
  // By profile nothing is folded but what has no label: 50 of 100 profiles.
  EXPECT_EQ(page.Sum("eta_generated_tokens_total", {{"profile", "profile-7"}}), 100.0);
  EXPECT_EQ(page.Sum("eta_generated_tokens_total", {{"profile", "other"}}), 5'000.0);
}

TEST_F(TelemetryTest, WhyCallsDidNotEndOkIsToldByTenantAndMethod) {
  Telemetry telemetry(TelemetryOptions{.profiles = {}, .tenants = {"acme", "globex"}});
  const auto end = [&](const char* tenant, const char* method, absl::StatusCode code,
                       const char* reason) {
    CallRecord record{.method = method, .tenant = tenant};
    record.status = absl::Status(code, "");
    record.reason = reason;
    telemetry.OnCallEnd(record);
  };
  const auto exhausted = absl::StatusCode::kResourceExhausted;
  end("acme", "Generate", exhausted, "TENANT_CALLS");
  end("acme", "Generate", exhausted, "DEADLINE_TOO_SHORT");
  end("acme", "Generate", exhausted, "DEADLINE_TOO_SHORT");
  end("acme", "GetProfile", exhausted, "QUEUE_FULL");
  end("acme", "Generate", absl::StatusCode::kOk, "");
  end("globex", "Generate", absl::StatusCode::kInternal, "");
  end("made-up", "Generate", exhausted, "TENANT_CALLS");
  const auto reasons = [&](const std::string& tenant) {
    std::vector<std::string> texts;
    for (const TenantTotals& totals : telemetry.Snapshot({.tenant = tenant}).tenants) {
      for (const ReasonCount& count : totals.reasons) {
        texts.push_back(totals.tenant + " " + count.method + " " + count.reason + " " +
                        std::to_string(count.calls));
      }
    }
    return texts;
  };
  EXPECT_THAT(reasons("acme"), ::testing::ElementsAre("acme Generate DEADLINE_TOO_SHORT 2",
                                                      "acme Generate TENANT_CALLS 1",
                                                      "acme GetProfile QUEUE_FULL 1"));
  EXPECT_THAT(reasons("globex"), ::testing::ElementsAre("globex Generate  1"));
  EXPECT_THAT(reasons("made-up"), ::testing::IsEmpty());
  EXPECT_EQ(reasons("").size(), 5u) << "with `other`";
}

TEST_F(TelemetryTest, NamesOfRefusedCallsGetNoLabels) {
  const auto engine = Start(OptionsFor(model_));
  telemetry_.SetModel(engine->info(), {});
  for (int i = 0; i < 1000; ++i) {
    CallRecord record{.method = "Generate", .tenant = "made-up-" + std::to_string(i)};
    record.status =
        MakeError(absl::StatusCode::kNotFound, "no such profile", {.reason = "PROFILE_NOT_FOUND"});
    record.reason = "PROFILE_NOT_FOUND";
    record.resolved = true;
    record.mode = AttentionMode::kProfile;
    record.profile = "made-up-" + std::to_string(i);
    telemetry_.OnCallEnd(record);
  }
  const PageReader page = Page();
  EXPECT_EQ(page.Value("eta_requests_total", {{"model", "tiny"},
                                              {"method", "Generate"},
                                              {"code", "NOT_FOUND"},
                                              {"finish_reason", "none"},
                                              {"mode", "profile"},
                                              {"profile", "other"},
                                              {"tenant", "other"}}),
            1000.0);
  EXPECT_EQ(
      page.Value("eta_requests_rejected_total",
                 {{"model", "tiny"}, {"method", "Generate"}, {"reason", "profile_not_found"}}),
      1000.0);
}

TEST_F(TelemetryTest, CallsAreToldApartByHowTheyEnded) {
  const auto engine = Start(OptionsFor(model_));
  telemetry_.SetModel(engine->info(), {});
  const auto end = [&](std::string_view method, absl::StatusCode code, const std::string& reason,
                       bool submitted = false, Timing timing = {}) {
    CallRecord record{.method = method, .tenant = "acme"};
    if (code != absl::StatusCode::kOk) record.status = MakeError(code, "x", {.reason = reason});
    record.reason = reason;
    record.submitted = record.resolved = submitted;
    record.outcome.timing = timing;
    record.duration = std::chrono::seconds(2);
    telemetry_.OnCallEnd(record);
  };
  using Code = absl::StatusCode;
  const Timing ran{.queue = std::chrono::nanoseconds(1)};
  const Timing drew{.queue = std::chrono::nanoseconds(1),
                    .first_token = std::chrono::nanoseconds(2)};
  end("Generate", Code::kOk, "", true, drew);
  end("Generate", Code::kCancelled, "CLIENT_CANCELLED");
  end("Generate", Code::kCancelled, "CLIENT_CANCELLED", true);
  end("Generate", Code::kCancelled, "CLIENT_CANCELLED", true, ran);
  end("Generate", Code::kCancelled, "CLIENT_CANCELLED", true, drew);
  end("Generate", Code::kResourceExhausted, "QUEUE_FULL");
  end("Generate", Code::kResourceExhausted, "DEADLINE_TOO_SHORT", true);
  end("Generate", Code::kDeadlineExceeded, "DEADLINE_DECODING", true, drew);
  end("Generate", Code::kUnavailable, "DRAINING");
  end("Generate", Code::kUnavailable, "DRAINING", true, ran);
  end("Calibrate", Code::kOk, "");
  end("Calibrate", Code::kCancelled, "CLIENT_CANCELLED");
  end("Calibrate", Code::kResourceExhausted, "CALIBRATION_BUSY");
  end("Calibrate", Code::kFailedPrecondition, "TARGET_UNREACHABLE");
  end("GetProfile", Code::kInternal, "INTERNAL_ERROR");

  const PageReader page = Page();
  const auto rejected = [&](const std::string& method, const std::string& reason) {
    return page.Sum("eta_requests_rejected_total", {{"method", method}, {"reason", reason}});
  };
  const auto failed = [&](const std::string& method, const std::string& reason) {
    return page.Sum("eta_requests_failed_total", {{"method", method}, {"reason", reason}});
  };
  EXPECT_EQ(page.Sum("eta_requests_total"), 15.0);
  EXPECT_EQ(page.Sum("eta_requests_total", {{"code", "CANCELLED"}}), 5.0);
  EXPECT_EQ(page.Sum("eta_requests_total", {{"finish_reason", "length"}}), 1.0);
  EXPECT_EQ(page.Sum("eta_requests_cancelled_total", {{"stage", "queued"}}), 2.0);
  EXPECT_EQ(page.Sum("eta_requests_cancelled_total", {{"stage", "prefill"}}), 1.0);
  EXPECT_EQ(page.Sum("eta_requests_cancelled_total", {{"stage", "decode"}}), 1.0);
  EXPECT_EQ(rejected("Generate", "queue_full"), 1.0);
  EXPECT_EQ(rejected("Generate", "deadline_too_short"), 1.0);
  EXPECT_EQ(rejected("Generate", "draining"), 1.0);
  EXPECT_EQ(failed("Generate", "draining"), 1.0);
  EXPECT_EQ(failed("Generate", "deadline_decoding"), 1.0);
  EXPECT_EQ(failed("GetProfile", "internal_error"), 1.0);
  EXPECT_EQ(page.Sum("eta_requests_rejected_total"), 4.0);
  EXPECT_EQ(page.Sum("eta_requests_failed_total"), 4.0);
  for (const char* result : {"success", "cancelled", "rejected", "failed"}) {
    EXPECT_EQ(page.Sum("eta_calibrations_total", {{"result", result}}), 1.0) << result;
  }
  EXPECT_EQ(page.Count("eta_calibration_duration_seconds", {{"model", "tiny"}}), 3.0);
}

TEST_F(TelemetryTest, ReadersAndStepsOfSeveralDevicesDoNotDisturbEachOther) {
  StartEngine(OptionsFor(model_));
  const auto second = Start(OptionsFor(model_), &telemetry_);
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    MetricsPage page(telemetry_);
    while (!stop) {
      const TelemetrySnapshot snapshot = telemetry_.Snapshot({.layers = true});
      for (const AttentionSeries& series : snapshot.attention) {
        EXPECT_LE(series.totals.keys_attended, series.totals.keys_eligible);
        int64_t attended = 0;
        for (const LayerTotals& layer : series.layers) {
          for (const int64_t keys : layer.keys_attended) attended += keys;
        }
        EXPECT_EQ(attended, series.totals.keys_attended);
      }
      PageReader parsed(page.Write());
    }
  });
  int64_t tokens = 0;
  std::thread other([&] { AskTogether(*second, Mixed(second->info().config)); });
  for (const auto& answer : AskTogether(*engine_, Mixed(engine_->info().config))) {
    tokens += answer.finished->output_tokens;
  }
  other.join();
  stop = true;
  reader.join();
  EXPECT_EQ(telemetry_.Snapshot().output_tokens, 2 * tokens);
}

}  // namespace
}  // namespace eta
