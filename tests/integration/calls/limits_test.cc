// Limits of tenants over a real socket, and when what is given back.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "calibration/profiles/profile_json.h"
#include "engine/base/error.h"
#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/profiles/profile_case.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::StartsWith;

constexpr char kLimits[] = R"({
  "default": {"max_calls": 2, "tokens_per_second": 0.01, "burst_tokens": 1000},
  "tenants": {
    "big": {"max_calls": 100, "tokens_per_second": 1000, "burst_tokens": 1000000, "weight": 7,
            "max_kv_tokens": 5000},
    "calibrator": {"burst_tokens": 100, "max_calibrations": 1, "profile_versions": 1}
  }
})";

class LimitsTest : public CalibrateTest {
 protected:
  void SetUp() override {
    limits_ = std::make_unique<TenantLimits>();
    ASSERT_TRUE(limits_->Apply(kLimits).ok());
    store_ = std::make_unique<FaultyStore>(ProfileStoreOptions{
        .quota_of = [this](const Tenant& tenant) { return limits_->Of(tenant).profiles; }});
    calibrate_ = [this](Engine& engine, const CalibrationJob& job,
                        const CalibrationObserver& observer, std::stop_token stop) {
      const auto work = work_;
      ++runs_;
      return work(engine, job, observer, std::move(stop));
    };
    call_observers_ = {&records_};
    Work();
    ServerOptions options;
    options.tenant_header = kTenantHeader;
    options.admin_tenants = {"ops"};
    Serve(options);
  }
  void TearDown() override {
    ExpectServed("somebody-else");
    StopServing();
  }

  static v1::GenerateRequest AskFor(int32_t max_tokens, const std::string& text = "hello") {
    v1::GenerateRequest request = Ask(text);
    request.mutable_stopping()->set_max_tokens(max_tokens);
    return request;
  }
  std::unique_ptr<ClientCall> Call(const std::string& tenant) {
    auto call = std::make_unique<ClientCall>(*stub_);
    call->context.AddMetadata(kTenantHeader, tenant);
    return call;
  }
  void ExpectServed(const std::string& tenant, int32_t max_tokens = 10) {
    const auto client = Call(tenant);
    client->Start(AskFor(max_tokens));
    const auto call = engine_->TakeAndStart();
    call->Say("yes");
    call->Finish();
    EXPECT_EQ(client->ReadText(), "yes");
    EXPECT_TRUE(client->Finish().ok());
  }
  v1::Stats Stats(const std::string& caller) {
    grpc::ClientContext context;
    context.AddMetadata(kTenantHeader, caller);
    v1::Stats stats;
    EXPECT_TRUE(
        v1::EtaService::NewStub(channel_)->Stats(&context, v1::StatsRequest(), &stats).ok());
    return stats;
  }
  // The tenant's own row of Stats.
  v1::TenantUse UseOf(const std::string& tenant) {
    const v1::Stats stats = Stats(tenant);
    EXPECT_EQ(stats.uses_size(), 1);
    EXPECT_EQ(stats.uses(0).tenant(), tenant);
    return stats.uses(0);
  }
  int64_t Left(const std::string& tenant) { return UseOf(tenant).tokens_left(); }

  CallRecords records_;
};

// bad input: Limits and load | a tenant over its calls at a time | RESOURCE_EXHAUSTED, TENANT_CALLS
//   with RetryInfo | AccessProcessTest.OverItsCallsAtATimeATenantWaitsForOneToEnd
TEST_F(LimitsTest, CallsOverTheBoundAreRefusedAndOthersAreServed) {
  const auto first = Call("acme");
  first->Start(AskFor(10));
  const auto second = Call("acme");
  second->Start(AskFor(10));
  const auto running = {engine_->TakeCall(), engine_->TakeCall()};
  EXPECT_EQ(UseOf("acme").calls(), 2);
  EXPECT_EQ(UseOf("acme").max_calls(), 2);

  const int submissions = engine_->submissions();
  const auto third = Call("acme");
  const grpc::Status status = third->Refusal(AskFor(10));
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "TENANT_CALLS"));
  EXPECT_EQ(MetadataOf(status, "limit"), "2");
  const auto quota = DetailOf<google::rpc::QuotaFailure>(status);
  ASSERT_TRUE(quota.has_value());
  EXPECT_EQ(quota->violations(0).subject(), "tenant");
  EXPECT_THAT(quota->violations(0).description(), StartsWith("max_calls: "));
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  EXPECT_GT(std::stoi(third->Trailer("grpc-retry-pushback-ms")), 0);
  EXPECT_TRUE(third->context.GetServerInitialMetadata().empty()) << "no header before the refusal";
  EXPECT_EQ(engine_->submissions(), submissions);
  EXPECT_EQ(records_.Last().reason, "TENANT_CALLS");
  ExpectServed("globex");

  // Every call of the tenant counts, whatever its method.
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, "acme");
  v1::ListProfilesResponse list;
  EXPECT_EQ(ReasonOf(profile_stub_->ListProfiles(&context, v1::ListProfilesRequest(), &list)),
            "TENANT_CALLS");

  for (const auto& call : running) call->Finish();
  first->ReadText();
  EXPECT_TRUE(first->Finish().ok());
  second->ReadText();
  EXPECT_TRUE(second->Finish().ok());
  ExpectServed("acme");  // at once, since the place is free before the end is sent
  EXPECT_EQ(UseOf("acme").calls(), 0);
}

TEST_F(LimitsTest, TokensOverTheBudgetAreRefusedWithTheTimeToWait) {
  const auto first = Call("acme");
  first->Start(AskFor(894));  // plus a prompt of 6
  const auto running = engine_->TakeCall();
  EXPECT_EQ(Left("acme"), 100);

  const auto second = Call("acme");
  const grpc::Status status = second->Refusal(AskFor(95));
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "TENANT_TOKENS"));
  EXPECT_EQ(MetadataOf(status, "tokens"), "101");
  EXPECT_THAT(DetailOf<google::rpc::QuotaFailure>(status)->violations(0).description(),
              StartsWith("tokens_per_second: "));
  // One token is missing: 100 s at 0.01 a second, less the time since then, plus at most 20 %.
  const int pushback = std::stoi(second->Trailer("grpc-retry-pushback-ms"));
  EXPECT_GT(pushback, 60'000);
  EXPECT_LE(pushback, 120'000);
  EXPECT_EQ(DetailOf<google::rpc::RetryInfo>(status)->retry_delay().seconds(), pushback / 1000);
  EXPECT_TRUE(second->context.GetServerInitialMetadata().empty());
  ExpectServed("globex", 900);

  running->Finish();
  first->ReadText();
  EXPECT_TRUE(first->Finish().ok());
}

TEST_F(LimitsTest, ACallThatNeverFitsIsToldSo) {
  const auto client = Call("acme");
  const grpc::Status status = client->Refusal(AskFor(995));
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "TENANT_TOKENS"));
  EXPECT_THAT(DetailOf<google::rpc::QuotaFailure>(status)->violations(0).description(),
              StartsWith("burst_tokens: "));
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  EXPECT_EQ(client->Trailer("grpc-retry-pushback-ms"), "-1");
  EXPECT_EQ(Left("acme"), 1000);
}

TEST_F(LimitsTest, MakingTokensOfATextCostsWhateverBecomesOfThem) {
  const auto tokenize = [&](const std::string& text) {
    grpc::ClientContext context;
    context.AddMetadata(kTenantHeader, "acme");
    v1::TokenizeRequest request;
    request.set_text(text);
    v1::TokenizeResponse response;
    return stub_->Tokenize(&context, request, &response);
  };
  EXPECT_TRUE(tokenize(std::string(100 * kTextBytesPerToken, 'x')).ok());
  EXPECT_EQ(Left("acme"), 900);
  EXPECT_FALSE(tokenize(std::string(100 * kTextBytesPerToken, '\xff')).ok());
  EXPECT_EQ(Left("acme"), 800);
  const int64_t before = engine_->tokenized_bytes();
  EXPECT_EQ(ReasonOf(tokenize(std::string(801 * kTextBytesPerToken, 'x'))), "TENANT_TOKENS");
  EXPECT_EQ(engine_->tokenized_bytes(), before);
  EXPECT_EQ(Left("acme"), 800);
}

TEST_F(LimitsTest, WhatWasNotUsedComesBackHoweverACallEnds) {
  {  // a short answer: the prompt of 3, 2 tokens
    const auto client = Call("acme");
    client->Start(AskFor(500));
    const auto call = engine_->TakeAndStart();
    call->Say("a");
    call->Say("b");
    call->Finish();
    client->ReadText();
    EXPECT_TRUE(client->Finish().ok());
  }
  EXPECT_EQ(Left("acme"), 995);
  {  // a refusal by the engine
    engine_->Refuse(MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                              {.reason = "QUEUE_FULL", .retry_after = milliseconds(1000)}));
    EXPECT_EQ(ReasonOf(Call("acme")->Refusal(AskFor(500))), "QUEUE_FULL");
  }
  EXPECT_EQ(Left("acme"), 995);
  {  // a failure before it ran
    const auto client = Call("acme");
    client->Start(AskFor(500));
    engine_->TakeCall()->Fail(
        MakeError(absl::StatusCode::kDeadlineExceeded, "too late", {.reason = "DEADLINE_QUEUED"}));
    EXPECT_EQ(client->ReadText(), "");
    EXPECT_EQ(ReasonOf(client->Finish()), "DEADLINE_QUEUED");
  }
  EXPECT_EQ(Left("acme"), 995);
  {  // a bad request
    v1::GenerateRequest bad = AskFor(500);
    bad.mutable_sampling()->set_top_p(3);
    EXPECT_EQ(ReasonOf(Call("acme")->Refusal(bad)), "INVALID_FIELD");
  }
  EXPECT_EQ(Left("acme"), 995);
  {  // a client that leaves
    const auto client = Call("acme");
    client->Start(AskFor(500));
    const auto call = engine_->TakeAndStart();
    client->Read();
    client->context.TryCancel();
    EXPECT_TRUE(engine_->AwaitCancel(*call));
    records_.Clear();
    call->Fail(absl::CancelledError("cancelled"));
    client->Finish();
    records_.Await(1);
  }
  EXPECT_EQ(Left("acme"), 995);
  EXPECT_EQ(UseOf("acme").calls(), 0);
}

TEST_F(LimitsTest, WhoHasAnAnswerMayCallAgainAtOnce) {
  ASSERT_TRUE(limits_->Apply(R"({"default": {"max_calls": 1}})").ok());
  for (int i = 0; i < 200; ++i) {
    grpc::ClientContext context;
    context.AddMetadata(kTenantHeader, "acme");
    v1::ListProfilesResponse list;
    const grpc::Status status =
        profile_stub_->ListProfiles(&context, v1::ListProfilesRequest(), &list);
    ASSERT_TRUE(status.ok()) << i << " " << status.error_message();
  }
}

// bad input: Limits and load | a text whose bytes alone are over the budget | TENANT_TOKENS, before
//   it is made tokens
TEST_F(LimitsTest, WhatTheBudgetCannotPayIsNotMadeTokens) {
  const std::string text(100'000, 'x');
  const grpc::Status generate = Call("acme")->Refusal(AskFor(10, text));
  EXPECT_EQ(ReasonOf(generate), "TENANT_TOKENS");
  EXPECT_EQ(MetadataOf(generate, "tokens"), "100010");
  v1::CalibrateRequest samples = Request();
  samples.mutable_samples(0)->set_text(text);
  EXPECT_EQ(ReasonOf(Calibrate(samples, "calibrator").status), "TENANT_TOKENS");
  EXPECT_EQ(engine_->tokenized_bytes(), 0);
  EXPECT_EQ(Left("acme"), 1000);
  EXPECT_EQ(Left("calibrator"), 100);
}

// Otherwise a nearly spent budget would admit any number of texts that it cannot pay.
TEST_F(LimitsTest, TextThatWasMadeTokensIsPaidForHoweverACallEnds) {
  const std::string text(1280, 'x');
  ASSERT_TRUE(
      limits_->Apply(R"({"default": {"tokens_per_second": 0.001, "burst_tokens": 1290}})").ok());
  // With the beginning of text there is one token too many.
  EXPECT_EQ(ReasonOf(Call("acme")->Refusal(AskFor(10, text))), "TENANT_TOKENS");
  EXPECT_EQ(Left("acme"), 1285);
  EXPECT_EQ(ReasonOf(Call("acme")->Refusal(AskFor(6, text))), "TENANT_TOKENS");
  EXPECT_EQ(Left("acme"), 1285) << "too dear by then, so it was not made tokens";

  const auto cancelled = Call("acme");
  cancelled->Start(AskFor(1, text));
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  call->Fail(
      MakeError(absl::StatusCode::kDeadlineExceeded, "too late", {.reason = "DEADLINE_QUEUED"}));
  cancelled->ReadText();
  EXPECT_EQ(ReasonOf(cancelled->Finish()), "DEADLINE_QUEUED");
  EXPECT_EQ(Left("acme"), 1280);
  ASSERT_TRUE(limits_->Apply(kLimits).ok());
}

TEST_F(LimitsTest, TheEngineHearsOfTheTenantsShare) {
  const auto client = Call("big");
  client->Start(AskFor(10));
  const auto call = engine_->TakeCall();
  EXPECT_EQ(call->request().tenant, "big");
  EXPECT_EQ(call->request().share.weight, 7.0);
  EXPECT_EQ(call->request().share.max_kv_tokens, 5000);
  call->Finish();
  client->ReadText();
  EXPECT_TRUE(client->Finish().ok());
}

TEST_F(LimitsTest, NewLimitsHoldForTheNextCall) {
  ASSERT_TRUE(limits_->Apply(R"({"default": {"max_calls": 1}})").ok());
  const auto first = Call("acme");
  first->Start(AskFor(10));
  const auto call = engine_->TakeCall();
  EXPECT_EQ(ReasonOf(Call("acme")->Refusal(AskFor(10))), "TENANT_CALLS");
  EXPECT_FALSE(limits_->Apply(R"({"default": {"max_calls": -1}})").ok());
  EXPECT_EQ(UseOf("acme").max_calls(), 1) << "bad limits change nothing";
  ASSERT_TRUE(limits_->Apply("{}").ok());
  ExpectServed("acme");
  call->Finish();
  first->ReadText();
  EXPECT_TRUE(first->Finish().ok());
}

TEST_F(LimitsTest, CalibrateTakesItsSamplesAndGivesBackWhatNeverBegan) {
  const auto samples = [](size_t bytes) {
    v1::CalibrateRequest request = Request();
    request.mutable_samples(0)->set_text(std::string(bytes, 'x'));
    return request;
  };
  CalibrateOutcome outcome = Calibrate(samples(100), "calibrator");  // 101 tokens
  EXPECT_THAT(outcome.status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "TENANT_TOKENS"));
  EXPECT_EQ(outcome.pushback, "-1");
  EXPECT_EQ(runs_, 0);

  work_ = [](Engine&, const CalibrationJob&, const CalibrationObserver&, const std::stop_token&) {
    return absl::StatusOr<CalibrationResult>(
        MakeError(absl::StatusCode::kResourceExhausted, "not now", {.reason = "QUEUE_FULL"}));
  };
  EXPECT_EQ(ReasonOf(Calibrate(samples(59), "calibrator").status), "QUEUE_FULL");
  EXPECT_EQ(Left("calibrator"), 100);

  Work();
  outcome = Calibrate(samples(59), "calibrator");
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  EXPECT_EQ(Left("calibrator"), 40);
  v1::CalibrateRequest next = samples(59);
  next.set_name("next");
  // The quota of profiles is checked first.
  outcome = Calibrate(next, "calibrator");
  EXPECT_EQ(ReasonOf(outcome.status), "PROFILE_QUOTA");
  EXPECT_EQ(outcome.pushback, "-1");
  const auto quota = DetailOf<google::rpc::QuotaFailure>(outcome.status);
  EXPECT_EQ(quota->violations(0).subject(), "tenant");
  EXPECT_THAT(quota->violations(0).description(), HasSubstr("1 profiles"));
  grpc::ClientContext context;
  context.AddMetadata(kTenantHeader, "calibrator");
  v1::ImportProfileRequest import;
  import.set_json(*ProfileToJson({.name = "next", .version = 1, .content = MakeContent(1, 2, 4)}));
  v1::Profile imported;
  EXPECT_EQ(ReasonOf(profile_stub_->ImportProfile(&context, import, &imported)), "PROFILE_QUOTA");
  ASSERT_TRUE(
      limits_->Apply(R"({"default": {"tokens_per_second": 0.01, "burst_tokens": 100}})").ok());
  EXPECT_EQ(ReasonOf(Calibrate(next, "calibrator").status), "TENANT_TOKENS");
  EXPECT_TRUE(Calibrate(samples(59), "another").status.ok());
}

TEST_F(LimitsTest, StatsShowWhatOfTheProfileQuotaIsUsed) {
  ASSERT_TRUE(Calibrate(Request(), "calibrator").status.ok());
  v1::TenantUse use;
  for (int i = 0; i < 2000 && use.stored_versions() != 1; ++i) {  // the store looks a second later
    use = UseOf("calibrator");
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(use.stored_versions(), 1);
  EXPECT_EQ(use.profile_versions(), 1);
  EXPECT_EQ(use.profile_bytes(), ProfileQuota().bytes);
  EXPECT_GT(use.stored_bytes(), 0);
  EXPECT_EQ(use.stored_versions_ever(), 1);
  EXPECT_EQ(use.max_versions_ever(), ProfileQuota().versions_ever);
  const v1::TenantUse other = UseOf("another");
  EXPECT_TRUE(other.has_stored_versions());
  EXPECT_EQ(other.stored_versions(), 0);
}

TEST_F(LimitsTest, StatsShowEachTenantItsOwnAndTheOperatorAll) {
  const auto client = Call("acme");
  client->Start(AskFor(94));
  const auto call = engine_->TakeCall();
  engine_->SetTenants(
      {{.tenant = "acme", .running = 1, .waiting = 2, .kv_tokens = 100, .paused = 1}});
  const v1::TenantUse acme = UseOf("acme");
  EXPECT_EQ(acme.calls(), 1);
  EXPECT_EQ(acme.tokens_per_second(), 0.01);
  EXPECT_EQ(acme.burst_tokens(), 1000);
  EXPECT_EQ(acme.tokens_left(), 900);
  EXPECT_EQ(acme.weight(), 1.0);
  EXPECT_EQ(acme.kv_tokens(), 100);
  EXPECT_EQ(acme.running(), 1);
  EXPECT_EQ(acme.waiting(), 2);
  EXPECT_EQ(acme.paused(), 1);
  EXPECT_EQ(UseOf("globex").calls(), 0);
  EXPECT_EQ(UseOf("globex").tokens_left(), 1000);
  std::vector<std::string> names;
  const v1::Stats all = Stats("ops");
  for (const v1::TenantUse& use : all.uses()) names.push_back(use.tenant());
  EXPECT_THAT(names, ::testing::ElementsAre("acme", "big", "calibrator"));
  call->Finish();
  client->ReadText();
  EXPECT_TRUE(client->Finish().ok());
}

}  // namespace
}  // namespace eta::testing
