// A tenant that asks on although it is refused, beside another one that is served.
#include <algorithm>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "eta/v1/stats.grpc.pb.h"
#include "gmock/gmock.h"
#include "service/limits/refusal_pacer.h"
#include "tests/integration/service_fixture.h"
#include "tests/testing/call_records.h"
#include "tests/testing/error_details.h"
#include "tests/testing/eventually.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::nanoseconds;
using std::chrono::seconds;

constexpr char kTenantHeader[] = "x-eta-tenant";

class RefusalTest : public ServiceTest {
 protected:
  // Refusals are answered at once to so many of "noisy" in a second.
  explicit RefusalTest(int per_second = 10) : per_second_(per_second) {}

  void SetUp() override {
    limits_ = std::make_unique<TenantLimits>();
    ASSERT_TRUE(limits_->Take(R"({"tenants": {"noisy": {"max_calls": 1}}})").ok());
    store_ = std::make_unique<FaultyStore>();
    call_observers_ = {&records_};
    options_.tenant_header = kTenantHeader;
    options_.admin_tenants = {"ops"};
    options_.refusals_per_second = per_second_;
    Serve(options_);
    // It has one call running, and is refused all others.
    running_ = Call("noisy");
    running_->Start(Ask("hello"));
    ASSERT_NE(engine_->TakeCall(), nullptr);
  }
  void TearDown() override {
    ExpectGoodCall({{kTenantHeader, "quiet"}});
    StopServing();
    EndOf(*running_);
  }

  static grpc::Status EndOf(ClientCall& call) {
    call.ReadText();
    return call.Finish();
  }
  std::unique_ptr<ClientCall> Call(const std::string& tenant) {
    auto call = std::make_unique<ClientCall>(*stub_);
    call->context.AddMetadata(kTenantHeader, tenant);
    return call;
  }
  grpc::Status Refusal() {
    const auto call = Call("noisy");
    grpc::Status status = call->Refusal(Ask("hello"));
    EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
    EXPECT_EQ(ReasonOf(status), "TENANT_CALLS");
    EXPECT_FALSE(call->Trailer("grpc-retry-pushback-ms").empty());
    return status;
  }
  grpc::Status RefusalOfUnaryCall() {
    grpc::ClientContext context;
    context.AddMetadata(kTenantHeader, "noisy");
    v1::ListProfilesResponse list;
    return profile_stub_->ListProfiles(&context, v1::ListProfilesRequest(), &list);
  }
  v1::PressureStats Pressure() {
    grpc::ClientContext context;
    v1::Stats stats;
    context.AddMetadata(kTenantHeader, "ops");
    EXPECT_TRUE(v1::StatsService::NewStub(channel_)
                    ->GetStats(&context, v1::GetStatsRequest(), &stats)
                    .ok());
    return stats.pressure();
  }
  const int per_second_;
  ServerOptions options_;
  CallRecords records_;
  std::unique_ptr<ClientCall> running_;
};

TEST_F(RefusalTest, AloneItIsAnsweredAtOnce) {
  for (int i = 0; i < 30; ++i) Refusal();
  EXPECT_EQ(records_.Last().held, nanoseconds(0));
  EXPECT_EQ(Pressure().refusals_delayed(), 0);
}

TEST_F(RefusalTest, BesideOthersItWaitsForItsTurn) {
  ExpectGoodCall({{kTenantHeader, "quiet"}});
  const auto begin = Clock::now();
  for (int i = 0; i < 30; ++i) Refusal();
  const auto taken = Clock::now() - begin;
  // The first is due at once, the thirtieth 2.9 s later, a second of which it need not wait.
  EXPECT_GE(taken, milliseconds(1850));
  const CallRecord last = records_.Last();
  EXPECT_GT(last.held, nanoseconds(0));
  EXPECT_LE(last.held, last.duration);
  const v1::PressureStats pressure = Pressure();
  EXPECT_GT(pressure.refusals_delayed(), 0);
  EXPECT_EQ(pressure.refusals_waiting(), 0);

  records_.Clear();
  const auto other = Call("quiet");
  v1::GenerateRequest bad = Ask("hello");
  bad.mutable_stopping()->set_max_tokens(-1);
  EXPECT_EQ(other->Refusal(bad).error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(records_.Last().held, nanoseconds(0)) << "another tenant's is answered at once";
}

TEST_F(RefusalTest, CallsOfEveryMethodCount) {
  ExpectGoodCall({{kTenantHeader, "quiet"}});
  const auto begin = Clock::now();
  for (int i = 0; i < 30; ++i) EXPECT_EQ(ReasonOf(RefusalOfUnaryCall()), "TENANT_CALLS");
  EXPECT_GE(Clock::now() - begin, milliseconds(1850));
  EXPECT_GT(records_.Last().held, nanoseconds(0));
}

constexpr char kTrace[] = "0af7651916cd43dd8448eb211c80319c";

class SlowRefusalTest : public RefusalTest {
 protected:
  SlowRefusalTest() : RefusalTest(1) {}

  void SetUp() override {
    RefusalTest::SetUp();
    ExpectGoodCall({{kTenantHeader, "quiet"}});
    // All turns of the next five seconds are taken; so the last one waits for as long.
    for (int i = 0; i < 12; ++i) Ask();
    ASSERT_TRUE(Eventually([&] { return Refused() == 12; }));
    Ask(kTrace);
    ASSERT_TRUE(Eventually([&] { return Refused() == 13; }));
  }
  void TearDown() override {
    RefusalTest::TearDown();
    for (const auto& call : waiting_) EXPECT_FALSE(EndOf(*call).ok());
  }

  void Ask(const std::string& trace = "") {
    waiting_.push_back(Call("noisy"));
    if (!trace.empty()) {
      waiting_.back()->context.AddMetadata("traceparent", "00-" + trace + "-b7ad6b7169203331-01");
    }
    waiting_.back()->Start(testing::Ask("hello"));
  }
  int64_t Refused() {
    const std::vector<CallRecord> ended = records_.All();
    return Pressure().refusals_waiting() +
           std::count_if(ended.begin(), ended.end(),
                         [](const CallRecord& record) { return record.reason == "TENANT_CALLS"; });
  }
  // Of the call with the trace, once it has ended.
  CallRecord Last() {
    for (size_t count = 1; count <= waiting_.size() + 1; ++count) {
      for (const CallRecord& record : records_.Await(count)) {
        if (record.trace_id == kTrace) return record;
      }
    }
    ADD_FAILURE() << "it has not ended";
    return {};
  }

  std::vector<std::unique_ptr<ClientCall>> waiting_;
};

TEST_F(SlowRefusalTest, WhoLeavesWaitsNoMore) {
  waiting_.back()->context.TryCancel();
  const CallRecord ended = Last();
  EXPECT_EQ(ended.reason, "TENANT_CALLS");
  EXPECT_LT(ended.held, RefusalPacer::kLongestWait);
}

TEST_F(SlowRefusalTest, WhoHasLittleTimeHearsWhy) {
  const auto call = Call("noisy");
  call->context.set_deadline(std::chrono::system_clock::now() + seconds(4));
  const grpc::Status status = call->Refusal(testing::Ask("hello"));
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
}

TEST_F(SlowRefusalTest, WhereTheServerEndsNobodyWaits) {
  server_->HurryDrain();
  server_->Drain();
  const CallRecord ended = Last();
  EXPECT_EQ(ended.reason, "TENANT_CALLS");
  EXPECT_LT(ended.held, RefusalPacer::kLongestWait);
  Serve(options_);
}

}  // namespace
}  // namespace eta::testing
