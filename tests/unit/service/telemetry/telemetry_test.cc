// Telemetry against the answers: the same integers, whoever looks.
#include "service/telemetry/telemetry.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>
#include <thread>

#include "engine/base/error.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/puppet_formats.h"
#include "tests/testing/process/page_reader.h"
#include "tests/testing/process/page_text.h"

namespace eta::testing {
namespace {

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
    if (i % 4 == 1) request.attention.settings.sparse_prefill = i % 8 == 1;
    if (i % 4 == 2) request.attention = Frozen(config, "legal");
    if (i % 4 == 3) request.attention = Frozen(config, "code");
    if (request.attention.profile) {
      auto profile = std::make_shared<ThresholdProfile>(*request.attention.profile);
      profile->version = 3;
      request.attention.profile = std::move(profile);
    }
    requests.push_back(std::move(request));
  }
  return requests;
}

struct Sums {
  int64_t prompt_tokens = 0;
  int64_t cached_tokens = 0;
  int64_t output_tokens = 0;
  AttentionSums attention;
};

void Add(const FinishedEvent& answer, Sums& totals) {
  totals.prompt_tokens += answer.prompt_tokens;
  totals.cached_tokens += answer.cached_tokens;
  totals.output_tokens += answer.output_tokens;
  totals.attention.Add(answer.attention);
}

void ExpectSame(const AttentionSums& got, const AttentionSums& want, const std::string& what) {
  EXPECT_EQ(got.decode_rows, want.decode_rows) << what;
  EXPECT_EQ(got.keys_attended, want.keys_attended) << what;
  EXPECT_EQ(got.keys_eligible, want.keys_eligible) << what;
  EXPECT_EQ(got.keys_read, want.keys_read) << what;
  EXPECT_EQ(got.keys_cached, want.keys_cached) << what;
  EXPECT_EQ(got.values_read, want.values_read) << what;
  EXPECT_EQ(got.prefill_rows, want.prefill_rows) << what;
  EXPECT_EQ(got.prefill_keys_attended, want.prefill_keys_attended) << what;
  EXPECT_EQ(got.prefill_keys_eligible, want.prefill_keys_eligible) << what;
  EXPECT_NEAR(got.prefill_density_sum, want.prefill_density_sum, 1e-9 * want.prefill_density_sum)
      << what;
  EXPECT_EQ(got.kv_bytes_read, want.kv_bytes_read) << what;
  EXPECT_EQ(got.kv_bytes_dense, want.kv_bytes_dense) << what;
  EXPECT_EQ(got.index_bytes_read, want.index_bytes_read) << what;
  EXPECT_NEAR(got.head_density_sum, want.head_density_sum, 1e-9 * want.head_density_sum) << what;
  EXPECT_NEAR(got.union_density_sum, want.union_density_sum, 1e-9 * want.union_density_sum) << what;
}

// Of the accounts that `belongs` names.
template <typename Belongs>
Sums SumOf(const TelemetrySnapshot& snapshot, const Belongs& belongs) {
  Sums sums;
  for (const AccountSeries& account : snapshot.accounts) {
    if (!belongs(account)) continue;
    sums.prompt_tokens += account.prompt_tokens;
    sums.cached_tokens += account.cached_tokens;
    sums.output_tokens += account.output_tokens;
    sums.attention.Add(account.attention);
  }
  return sums;
}
Sums SumOf(const TelemetrySnapshot& snapshot) {
  return SumOf(snapshot, [](const AccountSeries&) { return true; });
}

class TelemetryTest : public ::testing::Test {
 protected:
  void StartEngine(const EngineOptions& options) {
    engine_ = Start(options, &telemetry_);
    telemetry_.SetModel(engine_->info(), std::chrono::milliseconds(5));
  }
  PageReader Page() { return PageReader(PageText(telemetry_)); }

  TinyModel model_;
  Telemetry telemetry_;
  std::unique_ptr<Engine> engine_;
};

TEST_F(TelemetryTest, SnapshotAndPageAddUpToTheAnswers) {
  StartEngine(WithBlocks(OptionsFor(model_), 20));
  const std::vector<Request> requests = Mixed(engine_->info().config);
  const auto answers = AskTogether(*engine_, requests);

  std::map<std::pair<AttentionMode, std::string>, Sums> by_mode;
  std::map<std::string, Sums> by_tenant;
  Sums all;
  for (size_t i = 0; i < answers.size(); ++i) {
    ASSERT_TRUE(answers[i].finished) << answers[i].status;
    const AttentionChoice& attention = requests[i].attention;
    const std::string profile = attention.profile ? attention.profile->name : "";
    Add(*answers[i].finished, by_mode[{*attention.mode, profile}]);
    Add(*answers[i].finished, by_tenant[requests[i].tenant]);
    Add(*answers[i].finished, all);
  }

  const TelemetrySnapshot snapshot = telemetry_.Snapshot({.layers = true, .latencies = true});
  EXPECT_EQ(SumOf(snapshot).prompt_tokens, all.prompt_tokens);
  EXPECT_EQ(SumOf(snapshot).cached_tokens, all.cached_tokens);
  EXPECT_EQ(SumOf(snapshot).output_tokens, all.output_tokens);
  EXPECT_EQ(snapshot.accounts.size(), 8u);
  for (const auto& [key, want] : by_mode) {
    const auto belongs = [&of = key](const AccountSeries& account) {
      return account.mode == of.first &&
             account.profile == (of.second.empty() ? "none" : of.second);
    };
    ExpectSame(SumOf(snapshot, belongs).attention, want.attention, key.second);
  }
  for (const AccountSeries& account : snapshot.accounts) {
    int64_t attended = 0;
    int64_t read = 0;
    for (const LayerTotals& layer : account.layers) {
      for (const int64_t keys : layer.keys_attended) attended += keys;
      for (const int64_t keys : layer.keys_read) read += keys;
      EXPECT_EQ(layer.keys_eligible * 2 * 4, account.attention.keys_eligible);  // 2 of 4 heads
    }
    EXPECT_EQ(attended, account.attention.keys_attended);
    EXPECT_EQ(read, account.attention.keys_read);
  }
  for (const auto& [tenant, want] : by_tenant) {
    const Sums got = SumOf(
        snapshot, [&of = tenant](const AccountSeries& account) { return account.tenant == of; });
    EXPECT_EQ(got.output_tokens, want.output_tokens);
    EXPECT_EQ(got.prompt_tokens, want.prompt_tokens);
    ExpectSame(got.attention, want.attention, tenant);
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
  EXPECT_EQ(page.Value("eta_preemptions_total", {{"model", "tiny"}}),
            number(snapshot.server.preemptions));
  EXPECT_GT(snapshot.server.preemptions, 0);
  for (const auto& [key, want] : by_mode) {
    const bool frozen = key.first == AttentionMode::kProfile;
    const Labels labels = {{"mode", std::string(Name(key.first))},
                           {"profile", frozen ? key.second : "none"}};
    const AttentionSums& totals = want.attention;
    EXPECT_EQ(page.Sum("eta_attention_decode_rows_total", labels), number(totals.decode_rows));
    EXPECT_EQ(page.Sum("eta_attention_keys_attended_total", labels), number(totals.keys_attended));
    EXPECT_EQ(page.Sum("eta_attention_keys_eligible_total", labels), number(totals.keys_eligible));
    EXPECT_EQ(page.Sum("eta_attention_keys_read_total", labels), number(totals.keys_read));
    EXPECT_EQ(page.Sum("eta_attention_keys_cached_total", labels), number(totals.keys_cached));
    EXPECT_EQ(page.Sum("eta_attention_values_read_total", labels), number(totals.values_read));
    EXPECT_EQ(page.Sum("eta_attention_prefill_keys_attended_total", labels),
              number(totals.prefill_keys_attended));
    EXPECT_EQ(page.Sum("eta_attention_prefill_keys_eligible_total", labels),
              number(totals.prefill_keys_eligible));
    EXPECT_EQ(page.Sum("eta_attention_kv_bytes_read_total", labels), number(totals.kv_bytes_read));
    EXPECT_EQ(page.Sum("eta_attention_kv_bytes_dense_total", labels),
              number(totals.kv_bytes_dense));
    EXPECT_EQ(page.Sum("eta_attention_index_bytes_read_total", labels),
              number(totals.index_bytes_read));
    const auto& densities = page.families().at("eta_request_density_ratio").counts;
    double answered = 0.0;
    for (const auto& [of, count] : densities) {
      EXPECT_EQ(of.at("version"), of.at("profile") == "none" ? "none" : "3");
      if (of.at("mode") == labels.at("mode") && of.at("profile") == labels.at("profile")) {
        answered += count;
      }
    }
    EXPECT_EQ(answered, 4.0);
  }
  for (const auto& [mode, requests_of] :
       {std::pair("full", 4.0), {"dynamic", 4.0}, {"profile", 8.0}}) {
    const Labels labels = {{"model", "tiny"}, {"mode", mode}};
    EXPECT_EQ(page.Count("eta_time_to_first_token_seconds", labels), requests_of);
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
  for (const AccountSeries& account : acme.accounts) EXPECT_EQ(account.tenant, "acme");
  EXPECT_EQ(SumOf(acme).output_tokens + SumOf(globex).output_tokens, SumOf(all).output_tokens);
  EXPECT_EQ(SumOf(acme).attention.decode_rows + SumOf(globex).attention.decode_rows,
            SumOf(all).attention.decode_rows);
  EXPECT_GT(SumOf(acme).output_tokens, 0);
}

TEST_F(TelemetryTest, ATenantWithoutALabelOfItsOwnSeesNothingOfTheOthers) {
  Telemetry telemetry(TelemetryOptions{.profiles = {}, .tenants = {"acme"}});
  const auto engine = Start(OptionsFor(model_), &telemetry);
  telemetry.SetModel(engine->info(), {});
  AskTogether(*engine, Mixed(engine->info().config));
  const TelemetrySnapshot globex = telemetry.Snapshot({.tenant = "globex"});
  EXPECT_TRUE(globex.accounts.empty());
  const TelemetrySnapshot other = telemetry.Snapshot({.tenant = "other"});
  EXPECT_TRUE(other.accounts.empty());
  std::set<Label> tenants;
  for (const AccountSeries& account : telemetry.Snapshot().accounts) tenants.insert(account.tenant);
  EXPECT_EQ(tenants.size(), 2u);  // acme and other
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
  const TelemetrySnapshot snapshot = telemetry.Snapshot();
  EXPECT_LE(snapshot.accounts.size(), Telemetry::kMaxAccounts + 52);
  EXPECT_LE(snapshot.calls.size(), Telemetry::kMaxCallSeries + 52);
  const PageReader page(PageText(telemetry));
  EXPECT_EQ(page.Sum("eta_generated_tokens_total"), 10'000.0);
  EXPECT_EQ(page.Sum("eta_prompt_tokens_total"), 30'000.0);
  EXPECT_EQ(page.Sum("eta_requests_total"), 10'000.0);
  // By profile nothing is folded but what has no label: 50 of 100 profiles.
  EXPECT_EQ(page.Sum("eta_generated_tokens_total", {{"profile", "profile-7"}}), 100.0);
  EXPECT_EQ(page.Sum("eta_generated_tokens_total", {{"profile", "other"}}), 5'000.0);
}

// A clock that moves when it is told, and requests of one token that end at once.
class LabelFoldTest : public TelemetryTest {
 protected:
  explicit LabelFoldTest(int labels = 2)
      : folding_({.label_limit = labels}, [this] { return now_; }) {}
  void SetUp() override {
    const auto engine = Start(OptionsFor(model_));
    folding_.SetModel(engine->info(), {});
  }
  void Begin(const Request& request, const ResolvedAttention& attention) {
    const TokenReport token{.request = &request, .attention = &attention, .first = true};
    StepReport step;
    step.sequences = step.prefill_rows = step.num_rows = 1;
    step.tokens = {&token, 1};
    folding_.OnStep(step);
  }
  void Ask(const std::string& tenant, const std::string& name, int64_t version) {
    Request request;
    ResolvedAttention attention;
    Prepare(tenant, name, version, request, attention);
    Begin(request, attention);
    FinishedEvent outcome;
    outcome.prompt_tokens = 3;
    outcome.output_tokens = 1;
    outcome.attention = {.decode_rows = 1};
    outcome.timing.queue = outcome.timing.first_token = std::chrono::microseconds(1);
    folding_.OnRequestEnd(request, absl::OkStatus(), outcome);
    CallRecord record{.method = "Generate", .tenant = tenant};
    record.resolved = record.submitted = true;
    record.mode = AttentionMode::kProfile;
    record.profile = name;
    record.profile_version = version;
    record.outcome = outcome;
    folding_.OnCallEnd(record);
  }
  static void Prepare(const std::string& tenant, const std::string& name, int64_t version,
                      Request& request, ResolvedAttention& attention) {
    auto profile = std::make_shared<ThresholdProfile>();
    profile->name = name;
    profile->version = version;
    request.tenant = tenant;
    request.attention = {.mode = AttentionMode::kProfile, .profile = profile};
    attention.mode = AttentionMode::kProfile;
    attention.profile = profile;
  }
  // A decode row of `request` whose heads attended to `attended` of `context` keys; each group read
  // `read` of them.
  void Decode(const Request& request, const ResolvedAttention& attention, int32_t context,
              int32_t attended, int32_t read) {
    const std::vector<int32_t> tokens_attended(2 * 4, attended);  // [L, 1, HQ]
    const std::vector<int32_t> tokens_read(2 * 2, read);          // [L, 1, HKV]
    const DecodeRowReport row{.request = &request,
                              .attention = &attention,
                              .kv_len = context,
                              .sums = {.decode_rows = 1,
                                       .keys_attended = 8 * attended,
                                       .keys_eligible = 8 * context,
                                       .keys_read = 4 * read,
                                       .keys_cached = 4 * context,
                                       .head_density_sum = attended / static_cast<double>(context),
                                       .union_density_sum = read / static_cast<double>(context)}};
    StepReport step;
    step.sequences = step.decode_rows = step.num_rows = 1;
    step.decode = {&row, 1};
    step.tokens_attended = tokens_attended.data();
    step.tokens_read = tokens_read.data();
    folding_.OnStep(step);
  }
  RecentAttention Recent(int64_t version) {
    for (const AccountSeries& account : folding_.Snapshot().accounts) {
      if (account.version == version) return account.recent;
    }
    ADD_FAILURE() << "no version " << version;
    return {};
  }
  double Tokens(const Labels& labels) {
    return PageReader(PageText(folding_)).Sum("eta_generated_tokens_total", labels);
  }
  double Densities(const Labels& labels) {
    double sum = 0.0;
    const PageReader page(PageText(folding_));
    for (const auto& [got, count] : page.families().at("eta_request_density_ratio").counts) {
      if (std::includes(got.begin(), got.end(), labels.begin(), labels.end())) sum += count;
    }
    return sum;
  }

  Clock::time_point now_{std::chrono::hours(1)};
  Telemetry folding_;
};

TEST_F(LabelFoldTest, ANameThatIsInUseTakesTheLabelOfTheOneIdleForLongest) {
  Ask("a", "legal", 1);
  now_ += std::chrono::minutes(1);
  Ask("b", "code", 1);
  now_ += Telemetry::kLabelHold;
  Ask("c", "chat", 1);
  EXPECT_EQ(Tokens({{"tenant", "a"}}), 0.0);
  EXPECT_EQ(Tokens({{"tenant", "b"}, {"profile", "code"}}), 1.0);
  EXPECT_EQ(Tokens({{"tenant", "c"}, {"profile", "chat"}}), 1.0);
  EXPECT_EQ(Tokens({}), 2.0);
  EXPECT_EQ(Densities({}), 2.0);
  Ask("a", "legal", 1);  // too soon for a label of its own
  EXPECT_EQ(Tokens({{"tenant", "other"}, {"profile", "other"}}), 1.0) << "not what was before";
}

// What has gone must not look like events of another label: of none that is on the page does a
// counter step up by it.
TEST_F(LabelFoldTest, WhatHasGoneCountsForNoLabelAndStaysInTheSums) {
  for (int i = 0; i < 300; ++i) {
    CallRecord failed{.method = "Generate", .tenant = "a"};
    failed.submitted = true;
    failed.status = MakeError(absl::StatusCode::kResourceExhausted, "", {.reason = "TENANT_KV"});
    failed.reason = "TENANT_KV";
    folding_.OnCallEnd(failed);
  }
  Ask("a", "legal", 1);
  now_ += std::chrono::minutes(1);
  Ask("b", "code", 1);
  now_ += Telemetry::kLabelHold;
  CallRecord made_up{.method = "Generate", .tenant = "nobody"};
  made_up.status = absl::InvalidArgumentError("");
  folding_.OnCallEnd(made_up);
  const auto page = [this] { return PageReader(PageText(folding_)); };
  EXPECT_EQ(page().Sum("eta_requests_total", {{"tenant", "other"}}), 1.0);
  Ask("c", "chat", 1);
  const PageReader after = page();
  EXPECT_EQ(after.Sum("eta_requests_total", {{"tenant", "a"}}), 0.0);
  EXPECT_EQ(after.Sum("eta_requests_total", {{"tenant", "other"}}), 1.0);
  EXPECT_EQ(after.Sum("eta_tenant_refused_total"), 0.0);
  EXPECT_EQ(after.Sum("eta_tenant_attention_decode_rows_total", {{"tenant", "other"}}), 0.0);
  EXPECT_EQ(after.Sum("eta_calls_total"), 304.0);
  EXPECT_EQ(after.Sum("eta_calls_total", {{"code", "RESOURCE_EXHAUSTED"}}), 300.0);
  int64_t tokens = 0;
  for (const AccountSeries& account : folding_.Snapshot().accounts) tokens += account.output_tokens;
  EXPECT_EQ(tokens, 3);
}

class CappedFoldTest : public LabelFoldTest {
 protected:
  static constexpr int kLabels = 40;  // more tenants and profiles than there may be accounts of
  CappedFoldTest() : LabelFoldTest(kLabels) {}
  int64_t TokensOf(const std::string& tenant) {
    int64_t tokens = 0;
    for (const AccountSeries& account : folding_.Snapshot().accounts) {
      if (account.tenant == tenant) tokens += account.output_tokens;
    }
    return tokens;
  }
};

TEST_F(CappedFoldTest, WhatGoesOfATenantStaysItsOwn) {
  for (int profile = 0; profile < kLabels; ++profile) {
    for (int tenant = 0; tenant < kLabels; ++tenant) {
      Ask("t" + std::to_string(tenant), "p" + std::to_string(profile), 1);
    }
    now_ += std::chrono::seconds(1);
  }
  ASSERT_GT(folding_.Snapshot().accounts.size(), Telemetry::kMaxAccounts);
  const int64_t others = TokensOf("other");
  const int64_t own = TokensOf("t1");
  EXPECT_GT(others, 0);
  now_ += Telemetry::kLabelHold;
  Ask("t0", "new", 1);  // for which p0 goes
  EXPECT_EQ(Tokens({{"profile", "p0"}}), 0.0);
  EXPECT_EQ(TokensOf("other"), others + 1) << "the new one's, and nothing of p0";
  EXPECT_EQ(TokensOf("t1"), own);
}

TEST_F(LabelFoldTest, WhoCameLatelyKeepsItsLabel) {
  Ask("a", "legal", 1);
  Ask("b", "code", 1);
  now_ += Telemetry::kLabelHold;
  Ask("c", "chat", 1);
  EXPECT_EQ(Tokens({{"tenant", "other"}, {"profile", "other"}}), 1.0) << "that is c's";
  EXPECT_EQ(Tokens({{"tenant", "a"}}), 1.0);
}

TEST_F(LabelFoldTest, WhatRunsIsInUse) {
  Request request;
  ResolvedAttention attention;
  Prepare("a", "legal", 1, request, attention);
  Begin(request, attention);
  now_ += std::chrono::minutes(1);
  Ask("b", "code", 1);
  now_ += 2 * Telemetry::kLabelHold;
  Ask("c", "chat", 1);
  EXPECT_EQ(Tokens({{"tenant", "a"}, {"profile", "legal"}}), 1.0);
  EXPECT_EQ(Tokens({{"tenant", "b"}}), 0.0);
  folding_.OnRequestEnd(request, absl::OkStatus(), {});
}

TEST_F(LabelFoldTest, AVersionGoesAloneAndItsTenantKeepsTheSums) {
  Ask("a", "legal", 1);
  now_ += std::chrono::minutes(1);
  Ask("a", "legal", 2);
  now_ += Telemetry::kLabelHold;
  Ask("a", "legal", 3);
  EXPECT_EQ(Densities({{"profile", "legal"}, {"version", "1"}}), 0.0);
  EXPECT_EQ(Densities({{"profile", "legal"}, {"version", "3"}}), 1.0);
  EXPECT_EQ(Tokens({{"profile", "legal"}}), 2.0);
  EXPECT_EQ(Tokens({{"version", "other"}}), 0.0);
  const PageReader page(PageText(folding_));
  for (const char* version : {"2", "3"}) {
    EXPECT_EQ(page.Sum("eta_requests_total", {{"profile", "legal"}, {"version", version}}), 1.0)
        << version;
  }
  EXPECT_EQ(page.Sum("eta_requests_total"), 2.0);
  EXPECT_EQ(page.Sum("eta_calls_total"), 3.0);
  for (const AccountSeries& account : folding_.Snapshot().accounts) {
    EXPECT_EQ(account.tenant, "a") << "it has its label";
  }
}

TEST_F(LabelFoldTest, RecentDensitiesAreEachVersionsOwnAndOfTheLastTenMinutes) {
  Request old_request, new_request;
  ResolvedAttention old_version, new_version;
  Prepare("a", "legal", 1, old_request, old_version);
  Prepare("a", "legal", 2, new_request, new_version);
  Decode(old_request, old_version, 100, 50, 80);
  Decode(new_request, new_version, 200, 20, 30);
  EXPECT_EQ(Recent(1).all.decode_rows, 1);
  EXPECT_DOUBLE_EQ(Recent(1).all.head_density_sum, 0.5);
  EXPECT_DOUBLE_EQ(Recent(1).all.union_density_sum, 0.8);
  EXPECT_DOUBLE_EQ(Recent(2).all.head_density_sum, 0.1);
  EXPECT_EQ(Recent(2).all.context, 200);
  now_ += std::chrono::minutes(10);
  Decode(old_request, old_version, 100, 25, 40);
  EXPECT_EQ(Recent(1).all.decode_rows, 1) << "the first row was longer ago";
  EXPECT_DOUBLE_EQ(Recent(1).all.union_density_sum, 0.4);
  EXPECT_EQ(Recent(2).all.decode_rows, 0);
  for (const AccountSeries& account : folding_.Snapshot().accounts) {
    EXPECT_EQ(account.attention.decode_rows, 3 - account.version) << "of all times";
  }
  folding_.OnRequestEnd(old_request, absl::OkStatus(), {});
  folding_.OnRequestEnd(new_request, absl::OkStatus(), {});
}

TEST_F(LabelFoldTest, RecentRowsAtTheContextsOfTheCalibrationAreToldApart) {
  Request request;
  ResolvedAttention attention;
  Prepare("a", "legal", 1, request, attention);
  auto profile = std::make_shared<ThresholdProfile>(*attention.profile);
  profile->measured_context = 201;
  attention.profile = request.attention.profile = profile;
  for (const int32_t context : {100, 101, 201, 202}) {
    Decode(request, attention, context, context / 2, context);
  }
  EXPECT_EQ(Recent(1).all.decode_rows, 4);
  EXPECT_EQ(Recent(1).all.context, 100 + 101 + 201 + 202);
  EXPECT_EQ(Recent(1).like_measured.decode_rows, 2);
  EXPECT_EQ(Recent(1).like_measured.context, 101 + 201);
  folding_.OnRequestEnd(request, absl::OkStatus(), {});
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
    for (const auto& [series, count] : telemetry.Snapshot({.tenant = tenant}).reasons) {
      texts.push_back(series.tenant.text() + " " + std::string(series.method) + " " +
                      series.reason + " " + std::to_string(count));
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
                                              {"version", "other"},
                                              {"tenant", "other"}}),
            1000.0);
  EXPECT_EQ(
      page.Value("eta_requests_rejected_total",
                 {{"model", "tiny"}, {"method", "Generate"}, {"reason", "profile_not_found"}}),
      1000.0);
}

TEST_F(TelemetryTest, ADeadlineThatPassesCountsByHowLongItsCallerWaitedForAToken) {
  using std::chrono::seconds;
  const auto engine = Start(OptionsFor(model_));
  telemetry_.SetModel(engine->info(), {});
  const auto end = [&](absl::StatusCode code, seconds duration, Timing timing,
                       bool submitted = true, bool reader_behind = false) {
    CallRecord record{.method = "Generate", .tenant = "acme"};
    if (code != absl::StatusCode::kOk) record.status = absl::Status(code, "x");
    record.submitted = record.resolved = submitted;
    record.outcome.timing = timing;
    record.duration = duration;
    record.reader_behind = reader_behind;
    telemetry_.OnCallEnd(record);
  };
  constexpr auto kLate = absl::StatusCode::kDeadlineExceeded;
  const Timing soon{.queue = seconds(1), .first_token = seconds(1), .decode = seconds(8)};
  // Too short for what was asked, though the server kept up:
  end(kLate, seconds(10), soon);
  end(kLate, seconds(2), {.queue = seconds(1)});
  end(kLate, seconds(0), {}, /*submitted=*/false);
  end(kLate, seconds(60), soon, /*submitted=*/true, /*reader_behind=*/true);
  // The server's:
  end(kLate, seconds(30), {});                      // it never began
  end(kLate, seconds(30), {.queue = seconds(29)});  // nor came to a token
  end(kLate, seconds(30), soon);                    // it stopped in the middle
  end(kLate, seconds(30), {.queue = seconds(1), .first_token = seconds(20), .decode = seconds(9)});
  end(kLate, seconds(30), {}, /*submitted=*/false);  // its profile did not come
  // Not of a deadline:
  end(absl::StatusCode::kOk, seconds(30), soon);
  end(absl::StatusCode::kCancelled, seconds(30), {});
  const PageReader page = Page();
  EXPECT_EQ(page.Count("eta_deadline_exceeded_wait_seconds", {{"model", "tiny"}}), 9.0);
  double in_time = 0.0;
  for (const auto& [bound, count] :
       page.families().at("eta_deadline_exceeded_wait_seconds").buckets.begin()->second) {
    if (bound == "5") in_time = count;
  }
  EXPECT_EQ(in_time, 4.0) << "as the rules of faults read it";
}

TEST_F(TelemetryTest, WhatBecameOfTheDefaultProfileIsCounted) {
  const auto engine = Start(OptionsFor(model_));
  telemetry_.SetModel(engine->info(), {});
  const auto end = [&](std::optional<DefaultProfileUse> use) {
    CallRecord record{.method = "Generate", .tenant = "acme"};
    record.default_profile = use;
    telemetry_.OnCallEnd(record);
  };
  end(std::nullopt);
  for (const auto& [use, calls] :
       {std::pair(DefaultProfileUse::kUsed, 4), std::pair(DefaultProfileUse::kAbsent, 3),
        std::pair(DefaultProfileUse::kUnfit, 2), std::pair(DefaultProfileUse::kUnavailable, 1)}) {
    for (int i = 0; i < calls; ++i) end(use);
  }
  const PageReader page = Page();
  const auto of = [&](const std::string& result) {
    return page.Value("eta_default_profile_requests_total",
                      {{"model", "tiny"}, {"result", result}});
  };
  EXPECT_EQ(of("used"), 4.0);
  EXPECT_EQ(of("absent"), 3.0);
  EXPECT_EQ(of("unfit"), 2.0);
  EXPECT_EQ(of("unavailable"), 1.0);
}

TEST_F(TelemetryTest, CountsWhatBecameOfDrafts) {
  StartEngine(OptionsFor(model_));
  telemetry_.OnStep({.sequences = 1,
                     .decode_rows = 4,
                     .drafts = {.drafted = 3, .accepted = 2, .steps_saved = 2}});
  telemetry_.OnStep(
      {.sequences = 1,
       .decode_rows = 8,
       .drafts = {.drafted = 7, .kv_bytes_rejected = 640, .made = 5, .kv_bytes_made = 320}});
  const PageReader page = Page();
  const Labels model = {{"model", "tiny"}};
  EXPECT_EQ(page.Value("eta_draft_tokens_total", model), 10.0);
  EXPECT_EQ(page.Value("eta_draft_tokens_accepted_total", model), 2.0);
  EXPECT_EQ(page.Value("eta_draft_steps_saved_total", model), 2.0);
  EXPECT_EQ(page.Value("eta_draft_kv_bytes_rejected_total", model), 640.0);
  EXPECT_EQ(page.Value("eta_draft_rows_total", model), 5.0);
  EXPECT_EQ(page.Value("eta_draft_kv_bytes_made_total", model), 320.0);
}

TEST_F(TelemetryTest, FormatsAreCountedByWhatBecameOfThem) {
  StartEngine(OptionsFor(model_));
  using std::chrono::milliseconds;
  const auto end_call = [this](const FormatUse& use, const absl::Status& status,
                               const std::string& reason) {
    CallRecord record{.method = "Generate", .tenant = "acme", .status = status, .reason = reason};
    record.format = use;
    record.duration = std::chrono::seconds(9);
    telemetry_.OnCallEnd(record);
  };
  const auto schema = AnswerFormatKind::kJsonSchema;
  end_call({.kind = schema, .compile = milliseconds(300)}, absl::OkStatus(), "");
  end_call({.kind = schema, .kept = true}, absl::OkStatus(), "");
  end_call({.kind = schema}, absl::InvalidArgumentError("before it came to that"), "INVALID_FIELD");
  end_call({.kind = AnswerFormatKind::kRegex, .compile = milliseconds(9000)},
           absl::DeadlineExceededError("slow"), "FORMAT_TOO_SLOW");
  const auto end_answer = [this](const absl::Status& status, FinishReason reason) {
    Request request;
    request.format = std::make_shared<PuppetFormat>(
        AnswerFormat{.kind = AnswerFormatKind::kJsonSchema, .source = "{}"});
    telemetry_.OnRequestEnd(request, status, {.reason = reason});
  };
  end_answer(absl::OkStatus(), FinishReason::kEndOfText);
  end_answer(absl::OkStatus(), FinishReason::kStopString);
  end_answer(absl::OkStatus(), FinishReason::kCutOff);
  end_answer(MakeError(absl::StatusCode::kInternal, "no JSON", {.reason = "ANSWER_INVALID"}),
             FinishReason::kEndOfText);
  end_answer(absl::CancelledError(), FinishReason::kLength);
  telemetry_.OnRequestEnd(Request(), absl::OkStatus(), {});  // free text
  telemetry_.OnStep({.sequences = 1, .decode_rows = 1, .masks = 1, .mask_time = milliseconds(1)});
  telemetry_.OnStep({.sequences = 1, .decode_rows = 1});

  const PageReader page = Page();
  const auto of = [](const std::string& format, const std::string& result = "") {
    Labels labels = {{"model", "tiny"}, {"format", format}};
    if (!result.empty()) labels["result"] = result;
    return labels;
  };
  EXPECT_EQ(page.Value("eta_format_requests_total", of("json_schema")), 3.0);
  EXPECT_EQ(page.Value("eta_format_requests_total", of("regex")), 1.0);
  EXPECT_EQ(page.Value("eta_format_requests_total", of("structural_tag")), 0.0);
  EXPECT_EQ(page.Value("eta_format_answers_total", of("json_schema", "ended")), 2.0);
  EXPECT_EQ(page.Value("eta_format_answers_total", of("json_schema", "cut_off")), 1.0);
  EXPECT_EQ(page.Value("eta_format_answers_total", of("json_schema", "invalid")), 1.0);
  EXPECT_EQ(page.Sum("eta_format_answers_total"), 4.0);
  const auto lookups = [&page](const std::string& result) {
    return page.Value("eta_format_lookups_total", {{"model", "tiny"}, {"result", result}});
  };
  EXPECT_EQ(lookups("hit"), 1.0);
  EXPECT_EQ(lookups("miss"), 2.0);
  EXPECT_EQ(page.Count("eta_format_compile_duration_seconds", {{"model", "tiny"}}), 2.0);
  EXPECT_EQ(page.Count("eta_step_mask_duration_seconds", {{"model", "tiny"}}), 1.0);
  EXPECT_EQ(page.Count("eta_step_mask_wait_seconds", {{"model", "tiny"}}), 1.0);
  EXPECT_EQ(page.Count("eta_deadline_exceeded_wait_seconds", {{"model", "tiny"}}), 0.0)
      << "a format that takes too long says nothing of tokens";
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
  end("Generate", Code::kDeadlineExceeded, "DEADLINE_QUEUED");  // before it was made tokens
  end("Generate", Code::kDeadlineExceeded, "DEADLINE_QUEUED", true);
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
  EXPECT_EQ(page.Sum("eta_requests_total"), 17.0);
  EXPECT_EQ(page.Sum("eta_requests_total", {{"code", "CANCELLED"}}), 5.0);
  EXPECT_EQ(page.Sum("eta_requests_total", {{"finish_reason", "length"}}), 1.0);
  EXPECT_EQ(page.Sum("eta_requests_cancelled_total", {{"stage", "queued"}}), 2.0);
  EXPECT_EQ(page.Sum("eta_requests_cancelled_total", {{"stage", "prefill"}}), 1.0);
  EXPECT_EQ(page.Sum("eta_requests_cancelled_total", {{"stage", "decode"}}), 1.0);
  EXPECT_EQ(rejected("Generate", "queue_full"), 1.0);
  EXPECT_EQ(rejected("Generate", "deadline_too_short"), 1.0);
  EXPECT_EQ(rejected("Generate", "deadline_queued"), 2.0) << "in either queue";
  EXPECT_EQ(rejected("Generate", "draining"), 1.0);
  EXPECT_EQ(failed("Generate", "draining"), 1.0);
  EXPECT_EQ(failed("Generate", "deadline_decoding"), 1.0);
  EXPECT_EQ(failed("GetProfile", "internal_error"), 1.0);
  EXPECT_EQ(page.Sum("eta_requests_rejected_total"), 6.0);
  EXPECT_EQ(page.Sum("eta_requests_failed_total"), 4.0);
  for (const char* result : {"success", "cancelled", "rejected", "failed"}) {
    EXPECT_EQ(page.Sum("eta_calibrations_total", {{"result", result}}), 1.0) << result;
  }
  EXPECT_EQ(page.Count("eta_calibration_duration_seconds", {{"model", "tiny"}}), 3.0);
}

TEST_F(TelemetryTest, ACalibrationCountsOnceHoweverManyCallsWaitForIt) {
  const auto engine = Start(OptionsFor(model_));
  telemetry_.SetModel(engine->info(), {});
  CallRecord record{.method = "Calibrate", .tenant = "acme"};
  record.of_calibration = true;
  telemetry_.OnCalibrationEnd(record, /*alone=*/false);
  telemetry_.OnCallEnd(record);
  telemetry_.OnCallEnd(record);
  record.status =
      MakeError(absl::StatusCode::kFailedPrecondition, "x", {.reason = "PROFILE_LOSES"});
  record.reason = "PROFILE_LOSES";
  telemetry_.OnCalibrationEnd(record, /*alone=*/true);
  record.status = MakeError(absl::StatusCode::kDeadlineExceeded, "x", {});
  record.reason = "DEADLINE_DECODING";
  telemetry_.OnCalibrationEnd(record, /*alone=*/false);
  record.status = absl::UnavailableError("x");
  record.reason = "DRAINING";
  telemetry_.OnCalibrationEnd(record, /*alone=*/false);
  const PageReader page = Page();
  EXPECT_EQ(page.Sum("eta_requests_total"), 2.0);
  EXPECT_EQ(page.Sum("eta_calibrations_total", {{"result", "success"}}), 1.0);
  EXPECT_EQ(page.Sum("eta_calibrations_total", {{"result", "failed"}}), 1.0) << "it has run";
  EXPECT_EQ(page.Sum("eta_calibrations_total", {{"result", "cancelled"}}), 2.0)
      << "its callers' deadline, a drain";
  EXPECT_EQ(page.Sum("eta_calibrations_total"), 4.0);
  EXPECT_EQ(page.Count("eta_calibration_duration_seconds", {{"model", "tiny"}}), 4.0);
}

TEST_F(TelemetryTest, ReadersAndStepsOfSeveralDevicesDoNotDisturbEachOther) {
  StartEngine(OptionsFor(model_));
  const auto second = Start(OptionsFor(model_), &telemetry_);
  std::atomic<bool> stop = false;
  std::thread reader([&] {
    while (!stop) {
      for (const AccountSeries& account : telemetry_.Snapshot({.layers = true}).accounts) {
        EXPECT_LE(account.attention.keys_attended, account.attention.keys_eligible);
        int64_t attended = 0;
        for (const LayerTotals& layer : account.layers) {
          for (const int64_t keys : layer.keys_attended) attended += keys;
        }
        EXPECT_EQ(attended, account.attention.keys_attended);
      }
      Page();
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
  EXPECT_EQ(SumOf(telemetry_.Snapshot()).output_tokens, 2 * tokens);
}

TEST(TelemetryQuality, CountsWhatWasMeasuredByVersionAndTenant) {
  Telemetry telemetry;
  auto profile = std::make_shared<ThresholdProfile>();
  profile->name = "legal";
  profile->version = 3;
  Request request;
  request.id = "measured";
  request.tenant = "acme";
  request.attention = {.mode = AttentionMode::kProfile, .profile = profile};
  ResolvedAttention attention;
  attention.mode = AttentionMode::kProfile;
  attention.profile = profile;
  const std::vector<ShadowReport> measured = {
      {.request = &request, .attention = &attention, .kv_len = 100, .mass = 0.9f, .error = 0.1f},
      {.request = &request, .attention = &attention, .kv_len = 100, .mass = 0.7f, .error = 0.3f}};
  // A row with full attention for want of mass is none of the version's.
  const DecodeRowReport full{.request = &request,
                             .attention = &attention,
                             .kv_len = 100,
                             .sums = {.fallback_rows = 1, .fallback_kv_bytes_read = 51200}};
  telemetry.OnStep(
      {.sequences = 1, .decode_rows = 1, .decode = std::span(&full, 1), .shadow = measured});
  FinishedEvent outcome;
  outcome.output_tokens = 2;
  outcome.full_from = 1;
  outcome.timing.queue = std::chrono::milliseconds(1);
  telemetry.OnRequestEnd(request, absl::OkStatus(), outcome);
  // One that went full as a request before it lacked mass counts; one that asked to does not.
  outcome.full_from = 0;
  for (const Begin begin : {Begin::kFullWhereRecentMassWasLow, Begin::kFull}) {
    request.attention.begin = begin;
    telemetry.OnRequestEnd(request, absl::OkStatus(), outcome);
  }

  const TelemetrySnapshot snapshot = telemetry.Snapshot();
  ASSERT_EQ(snapshot.accounts.size(), 1u);
  const AccountSeries& account = snapshot.accounts[0];
  EXPECT_EQ(account.tenant, "acme");
  EXPECT_EQ(account.version, 3);
  EXPECT_EQ(account.attention.shadow_row_layers, 2);
  EXPECT_NEAR(account.attention.mass_kept_sum, 1.6, 1e-6);
  EXPECT_NEAR(account.attention.output_error_sum, 0.4, 1e-6);
  EXPECT_EQ(account.mass_kept.count(), 2);
  EXPECT_EQ(account.recent.all.shadow_row_layers, 2);
  EXPECT_NEAR(account.recent.all.mass_kept_sum, 1.6, 1e-6);
  EXPECT_EQ(account.fallbacks, 2);
  EXPECT_EQ(account.attention.fallback_rows, 1);
  EXPECT_EQ(account.attention.decode_rows, 0);
  EXPECT_EQ(account.attention.keys_read, 0);
  EXPECT_EQ(account.recent.all.decode_rows, 0) << "nor of what drifts";
}

}  // namespace
}  // namespace eta::testing
