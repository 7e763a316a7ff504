// How much of the shipped server each tenant gets: rows 38 and 39 of the table of bad inputs.
#include <chrono>
#include <functional>
#include <string>

#include "tests/testing/base/error_details.h"
#include "tests/testing/service/tenants_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::seconds;
using std::chrono::steady_clock;
using ::testing::HasSubstr;

class LimitsProcessTest : public TenantsFixture {
 protected:
  void ExpectQuota(const grpc::Status& status, const std::string& reason,
                   const std::string& description) {
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(ReasonOf(status), reason);
    const auto quota = DetailOf<google::rpc::QuotaFailure>(status);
    ASSERT_TRUE(quota.has_value());
    EXPECT_EQ(quota->violations(0).subject(), "tenant");
    EXPECT_THAT(quota->violations(0).description(), HasSubstr(description));
  }
  // As ExpectQuota, for a refusal that says when the same call passes.
  void ExpectRetry(const grpc::Status& status, const std::string& reason,
                   const std::string& description) {
    ExpectQuota(status, reason, description);
    EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
    EXPECT_GT(std::stoi("0" + pushback_), 0);
  }
  // As ExpectQuota, for a call that never passes.
  void ExpectNoRetry(const grpc::Status& status, const std::string& reason,
                     const std::string& description) {
    ExpectQuota(status, reason, description);
    EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(status).has_value());
    EXPECT_EQ(pushback_, "-1");
  }
  // Expects that the call passes soon. The place of a cancelled call is free a moment after its
  // client has gone.
  static void ExpectSoon(const std::function<grpc::Status()>& call) {
    const auto begin = steady_clock::now();
    grpc::Status status;
    do {
      status = call();
    } while (!status.ok() && steady_clock::now() - begin < seconds(30));
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
};

TEST_F(LimitsProcessTest, OverItsQuotaOfProfilesATenantStoresNoneUntilItDeletesOne) {
  ASSERT_NO_FATAL_FAILURE(
      Start(R"({"tenants": {"acme": {"profile_versions": 1}, "globex": {"profile_bytes": 100}}})"));
  ASSERT_TRUE(Import("acme", "legal").ok());
  ExpectNoRetry(Import("acme", "code"), "PROFILE_QUOTA", "1 profiles");
  ExpectNoRetry(Calibrate(By("acme"), SmallCalibration("code")), "PROFILE_QUOTA", "1 profiles");
  ExpectNoRetry(Import("globex", "legal"), "PROFILE_QUOTA", "100 bytes");
  EXPECT_TRUE(Import("good", "legal").ok());
  EXPECT_TRUE(Import("good", "code").ok());
  v1::DeleteProfileRequest removal;
  removal.set_name("legal");
  EXPECT_TRUE(
      Call(*server_->profiles, &v1::ProfileService::Stub::DeleteProfile, removal, By("acme")).ok());
  EXPECT_TRUE(Import("acme", "code").ok());
  v1::Stats stats;
  ASSERT_TRUE(AskStats("ops", "globex", stats).ok());
  ASSERT_EQ(stats.uses_size(), 1);
  EXPECT_EQ(stats.uses(0).profile_bytes(), 100);
}

TEST_F(LimitsProcessTest, OverItsCallsAtATimeATenantWaitsForOneToEnd) {
  ASSERT_NO_FATAL_FAILURE(Start(R"({"tenants": {"acme": {"max_calls": 1}}})"));
  const auto running = Begin(By("acme"), AskFor(12'000));
  EXPECT_TRUE(running->Read().has_started());
  ExpectRetry(Generate(By("acme")), "TENANT_CALLS", "max_calls: ");
  ExpectRetry(Import("acme", "legal"), "TENANT_CALLS", "max_calls: ");
  EXPECT_TRUE(Generate(By("globex")).ok());
  running->context.TryCancel();
  running->Finish();
  ExpectSoon([this] { return Generate(By("acme")); });
}

TEST_F(LimitsProcessTest, OverItsTokensATenantWaitsAndGetsBackWhatItDidNotUse) {
  ASSERT_NO_FATAL_FAILURE(Start(
      R"({"tenants": {"acme": {"tokens_per_second": 0.01, "burst_tokens": 13000},
                      "globex": {"max_kv_tokens": 64},
                      "good": {"tokens_per_second": 1000, "burst_tokens": 64}}})"));
  const auto running = Begin(By("acme"), AskFor(12'000));
  EXPECT_TRUE(running->Read().has_started());
  ExpectRetry(Generate(By("acme"), AskFor(2000)), "TENANT_TOKENS", "tokens_per_second: ");
  ExpectNoRetry(Generate(By("acme"), AskFor(13'000)), "TENANT_TOKENS", "burst_tokens: ");
  ExpectNoRetry(Generate(By("globex"), AskFor(100)), "TENANT_KV", "max_kv_tokens: ");
  EXPECT_TRUE(Generate(By("globex")).ok());
  v1::GenerateRequest unnamed = AskFor(1);
  unnamed.mutable_stopping()->clear_max_tokens();
  EXPECT_TRUE(Generate(By("globex"), unnamed).ok()) << "what the tenant may hold bounds it";
  EXPECT_TRUE(Generate(By("good"), unnamed).ok()) << "and so does what its budget ever holds";
  running->context.TryCancel();
  running->Finish();
  // No tokens flow in, so these are the ones that the first call gave back.
  ExpectSoon([this] { return Generate(By("acme"), AskFor(2000)); });
}

TEST_F(LimitsProcessTest, OverItsCalibrationsATenantWaitsForOneToEnd) {
  ASSERT_NO_FATAL_FAILURE(
      Start(R"({"tenants": {"acme": {"max_calibrations": 1}}})", {"--max_calibrations", "2"}));
  const v1::CalibrateRequest request = LongCalibration("legal");
  grpc::ClientContext context;
  Show(By("acme"), context);
  const auto running = server_->stub->Calibrate(&context, request);
  v1::CalibrateResponse message;
  EXPECT_TRUE(running->Read(&message));
  ExpectRetry(Calibrate(By("acme"), SmallCalibration("code")), "TENANT_CALIBRATIONS",
              "max_calibrations: ");
  EXPECT_TRUE(Calibrate(By("globex"), SmallCalibration("code")).ok());
  context.TryCancel();
  running->Finish();
  ExpectSoon([this] { return Calibrate(By("acme"), SmallCalibration("code")); });
}

}  // namespace
}  // namespace eta::testing
