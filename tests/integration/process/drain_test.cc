// A stop step by step: which calls are taken, and how long running calls have.
#include <thread>

#include "eta/v1/service.grpc.pb.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class DrainTest : public CalibrateTest {
 protected:
  void TearDown() override {
    Serve();  // the previous server of the test has ended
    CalibrateTest::TearDown();
  }
  std::shared_ptr<PuppetCall> StartCall(ClientCall& client) {
    client.Start(Ask("take your time"));
    auto call = engine_->TakeCall();
    if (call != nullptr) call->Start();
    return call;
  }
};

TEST_F(DrainTest, AfterTheDelayNoMethodTakesNewWork) {
  ClientCall running(*stub_);
  const auto call = StartCall(running);
  ASSERT_NE(call, nullptr);
  std::thread drain([this] { server_->Drain(); });
  AwaitClosed(*stub_);
  ClientCall late(*stub_);
  const grpc::Status refused = late.Refusal(Ask("me too"));
  EXPECT_EQ(ReasonOf(refused), "DRAINING");
  // Another replica takes the call at once.
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(refused).has_value());
  EXPECT_GE(std::atoi(late.Trailer("grpc-retry-pushback-ms").c_str()), 100);
  EXPECT_LE(std::atoi(late.Trailer("grpc-retry-pushback-ms").c_str()), 120);
  ExpectRefusal(Request(), grpc::StatusCode::UNAVAILABLE, "DRAINING");
  grpc::ClientContext list;
  v1::ListProfilesResponse profiles;
  EXPECT_EQ(ReasonOf(profile_stub_->ListProfiles(&list, {}, &profiles)), "DRAINING");
  grpc::ClientContext stats_context;
  v1::Stats stats;
  EXPECT_TRUE(v1::EtaService::NewStub(channel_)->Stats(&stats_context, {}, &stats).ok())
      << "an operator may still look";
  EXPECT_EQ(CheckHealth(NewChannel(), "readiness"), HealthStatus::NOT_SERVING);
  EXPECT_EQ(CheckHealth(NewChannel(), "liveness"), HealthStatus::SERVING);
  call->Say("done");
  call->Finish();
  EXPECT_EQ(running.ReadText(), "done");
  EXPECT_TRUE(running.Finish().ok());
  drain.join();
}

TEST_F(DrainTest, AReaderHasTheWholeTimeoutToTakeItsAnswer) {
  ClientCall slow(*stub_);
  const auto call = StartCall(slow);
  ASSERT_NE(call, nullptr);
  size_t said = 0;
  for (int i = 0; i < 8192 && !call->Congested(); ++i) {
    call->Say(std::string(8 * 1024, 'x'));
    said += 8 * 1024;
    std::this_thread::sleep_for(milliseconds(1));  // time for the writer
  }
  ASSERT_TRUE(call->Congested());
  call->Finish();
  std::thread drain([this] { server_->Drain(); });
  AwaitClosed(*stub_);
  std::this_thread::sleep_for(milliseconds(1500));  // the engine ended long before
  EXPECT_EQ(slow.ReadText().size(), said);
  EXPECT_TRUE(slow.Finish().ok());
  drain.join();
}

TEST_F(DrainTest, ASecondSignalDoesNotWaitForReaders) {
  ClientCall slow(*stub_);
  const auto call = StartCall(slow);
  ASSERT_NE(call, nullptr);
  for (int i = 0; i < 8192 && !call->Congested(); ++i) {
    call->Say(std::string(8 * 1024, 'x'));
    std::this_thread::sleep_for(milliseconds(1));
  }
  call->Finish();
  std::thread drain([this] { server_->Drain(); });
  AwaitClosed(*stub_);
  const auto begin = Clock::now();
  server_->HurryDrain();
  drain.join();
  EXPECT_LT(Clock::now() - begin, seconds(20)) << "of the drain's 60";
}

TEST_F(DrainTest, DoesNotWaitForAProfileThatTheStoreKeepsBack) {
  store_->Block();
  v1::GenerateRequest request = Ask("hello");
  request.mutable_attention()->set_profile("legal");
  ClientCall waits(*stub_);
  waits.Start(request);
  while (store_->waiting() == 0) std::this_thread::sleep_for(milliseconds(1));
  std::thread drain([this] { server_->Drain(); });
  const grpc::Status status = waits.Finish();
  EXPECT_EQ(ReasonOf(status), "DRAINING") << status.error_message();
  EXPECT_EQ(store_->waiting(), 1);
  store_->Release();
  drain.join();
}

TEST_F(DrainTest, WhoListensHearsOfItAtOnce) {
  ServerOptions options;
  options.drain_delay = seconds(60);
  Serve(options);
  HealthListener readiness(NewChannel(), "readiness");
  EXPECT_EQ(readiness.Next(), HealthStatus::SERVING);
  std::thread drain([this] { server_->Drain(); });
  EXPECT_EQ(readiness.Next(), HealthStatus::NOT_SERVING);
  ExpectGoodCall();
  server_->HurryDrain();
  drain.join();
}

}  // namespace
}  // namespace eta::testing
