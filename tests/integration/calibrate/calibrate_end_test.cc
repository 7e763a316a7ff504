// Ends of Calibrate calls that do not run their course: cancelled, too late, not read, drained.
#include "engine/base/error.h"
#include "gtest/gtest.h"
#include "service/telemetry/call_end.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

// Records what is noted of each call.
class CalibrateEndTest : public CalibrateTest {
 protected:
  void SetUp() override {
    call_observers_ = {&records_};
    CalibrateTest::SetUp();
  }
  std::future<CalibrateOutcome> CalibrateIntoAStoreThatHangs() {
    work_ = [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                   const std::stop_token&) {
      store_->Block();
      return Made(job);
    };
    auto call = CalibrateLater(Request());
    while (store_->waiting() == 0) std::this_thread::sleep_for(milliseconds(1));
    return call;
  }

  CallRecords records_;
};

TEST_F(CalibrateEndTest, ACancelledCalibrationStoresNothing) {
  Gate gate;
  WorkBehind(gate);
  grpc::ClientContext context;
  const auto reader = stub_->Calibrate(&context, Request());
  gate.AwaitStart();
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  Work();
  // The call's place is free once the calibration has stopped.
  grpc::Status status;
  do {
    status = Calibrate(Request("code")).status;
  } while (ReasonOf(status) == "CALIBRATION_BUSY");
  EXPECT_EQ(StoredVersion("legal"), 0);
}

TEST_F(CalibrateEndTest, ADeadlineOfTheClientsIsToldAsWhatItIs) {
  Gate gate;
  WorkBehind(gate);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  EXPECT_EQ(stub_->Calibrate(&context, Request())->Finish().error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  ASSERT_EQ(records_.Await(1).size(), 1u);
  EXPECT_EQ(records_.Last().status.code(), absl::StatusCode::kDeadlineExceeded)
      << records_.Last().status;
  EXPECT_EQ(records_.Last().reason, "DEADLINE_DECODING");
  EXPECT_EQ(StoredVersion("legal"), 0);
}

TEST_F(CalibrateEndTest, AProfileThatIsStoredCountsAsMadeAlthoughNobodyTookIt) {
  Serve({}, {.max_congestion = milliseconds(300)});
  Http2Peer peer(server_->address(), Http2Peer::NoWindow());
  ASSERT_TRUE(peer.connected());
  peer.Call(1, "/eta.v1.EtaService/Calibrate");
  peer.Message(1, Request().SerializeAsString(), /*end_stream=*/true);
  ASSERT_EQ(records_.Await(1).size(), 1u);
  const CallRecord record = records_.Last();
  EXPECT_EQ(record.reason, "SLOW_CONSUMER");
  EXPECT_EQ(record.profile_version, 1);
  EXPECT_EQ(EndOf(record), CallEnd::kFailed) << "not refused before it ran";
  EXPECT_EQ(StoredVersion("legal"), 1);
}

TEST_F(CalibrateEndTest, ACallWithoutADeadlineGetsTheServers) {
  ServerOptions options;
  options.default_calibrate_deadline = milliseconds(50);
  Serve(options);
  Gate gate;
  WorkBehind(gate);
  grpc::ClientContext context;
  const auto reader = stub_->Calibrate(&context, Request());
  v1::CalibrateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  EXPECT_THAT(reader->Finish(), FailsWith(StatusCode::DEADLINE_EXCEEDED, "DEADLINE_DECODING"));
  EXPECT_EQ(StoredVersion("legal"), 0);
  Serve();
}

absl::Status Down() {
  return MakeError(absl::StatusCode::kUnavailable, "the profile store cannot be reached",
                   {.reason = "STORE_UNAVAILABLE"});
}

// Calibrations whose store goes away while they compute.
class StoreBlipTest : public CalibrateEndTest {
 protected:
  void SetUp() override {
    CalibrateEndTest::SetUp();
    WorkBeforeTheBlip();
  }
  void WorkBeforeTheBlip() {
    work_ = [this](Engine&, const CalibrationJob& job, const CalibrationObserver&,
                   const std::stop_token&) {
      store_->Fail(Down());
      return Made(job);
    };
  }
  // Until the profile was put at least twice; one more call has asked before the work.
  void AwaitTries() {
    while (store_->calls("default") < 3) std::this_thread::sleep_for(milliseconds(1));
  }
};

// bad input: Store | down while a calibration ends | it is stored once the store is back
TEST_F(StoreBlipTest, CostsNoCalibration) {
  auto call = CalibrateLater(Request());
  AwaitTries();
  store_->Fail(absl::OkStatus());
  const CalibrateOutcome outcome = call.get();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_TRUE(outcome.profile.has_value());
  EXPECT_EQ(outcome.profile->version(), 1);
  EXPECT_EQ(outcome.profile->request_id(), records_.Last().request_id)
      << "the server's own, so that no try stores it twice";
  EXPECT_EQ(runs_, 1);
}

TEST_F(StoreBlipTest, ThatOutlastsTheClientStoresNothing) {
  grpc::ClientContext context;
  const auto reader = stub_->Calibrate(&context, Request());
  AwaitTries();
  context.TryCancel();
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
  ASSERT_EQ(records_.Await(1).size(), 1u);
  EXPECT_EQ(records_.Last().reason, "CLIENT_CANCELLED");
  store_->Fail(absl::OkStatus());
  Work();
  EXPECT_TRUE(Calibrate(Request("code")).status.ok()) << "its place is free";
  EXPECT_EQ(StoredVersion("legal"), 0);
}

TEST_F(StoreBlipTest, ThatOutlastsTheDeadlineIsToldAsBoth) {
  ServerOptions options;
  options.default_calibrate_deadline = std::chrono::seconds(1);
  Serve(options);
  grpc::ClientContext context;
  const auto reader = stub_->Calibrate(&context, Request());
  v1::CalibrateResponse message;
  EXPECT_FALSE(reader->Read(&message));
  const grpc::Status status = reader->Finish();
  EXPECT_THAT(status, FailsWith(StatusCode::DEADLINE_EXCEEDED, "DEADLINE_DECODING"));
  EXPECT_NE(status.error_message().find("the profile store cannot be reached"), std::string::npos)
      << status.error_message();
  store_->Fail(absl::OkStatus());
  EXPECT_EQ(StoredVersion("legal"), 0);
  Serve();
}

TEST_F(StoreBlipTest, DoesNotHoldUpADrain) {
  auto call = CalibrateLater(Request());
  AwaitTries();
  server_->Drain();
  EXPECT_THAT(call.get().status, FailsWith(StatusCode::UNAVAILABLE, "DRAINING"));
  store_->Fail(absl::OkStatus());
  EXPECT_EQ(StoredVersion("legal"), 0);
  Serve();
}

class PassEnd final : public PassSink {
 public:
  void OnProgress(int32_t) override {}
  void OnEnded(absl::StatusOr<PassOutcome> outcome) override {
    ended_.set_value(std::move(outcome));
  }
  absl::StatusOr<PassOutcome> Wait() { return ended_.get_future().get(); }

 private:
  std::promise<absl::StatusOr<PassOutcome>> ended_;
};

TEST_F(CalibrateEndTest, DrainingEndsACalibrationAndStoresNothing) {
  work_ = [](Engine& engine, const CalibrationJob& job, const CalibrationObserver&,
             const std::stop_token&) -> absl::StatusOr<CalibrationResult> {
    const auto sink = std::make_shared<PassEnd>();
    const auto handle =
        engine.SubmitPass({.id = job.id, .tenant = job.tenant, .tokens = {1, 2, 3}}, sink);
    if (!handle.ok()) return handle.status();
    return sink->Wait().status();
  };
  auto call = CalibrateLater(Request());
  ASSERT_NE(engine_->TakePass(), nullptr);
  server_->Drain();
  EXPECT_THAT(call.get().status, FailsWith(StatusCode::UNAVAILABLE, "DRAINING"));
  EXPECT_EQ(StoredVersion("legal"), 0);
  Serve();
}

TEST_F(CalibrateEndTest, DrainingEndsACalibrationThatComputesBesideTheEngine) {
  std::promise<void> stopped;
  std::promise<void> end;
  work_ = [&](Engine&, const CalibrationJob&, const CalibrationObserver&,
              const std::stop_token& stop) -> absl::StatusOr<CalibrationResult> {
    while (!stop.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
    stopped.set_value();
    end.get_future().wait();
    return absl::CancelledError("stopped");
  };
  auto call = CalibrateLater(Request());
  while (runs_ == 0) std::this_thread::sleep_for(milliseconds(1));
  std::thread drain([this] { server_->Drain(); });
  stopped.get_future().wait();
  ExpectRefusal(Request("late"), StatusCode::UNAVAILABLE, "DRAINING");
  end.set_value();
  EXPECT_THAT(call.get().status, FailsWith(StatusCode::UNAVAILABLE, "DRAINING"));
  drain.join();
  EXPECT_EQ(StoredVersion("legal"), 0);
  Serve();
}

TEST_F(CalibrateEndTest, WhatIsBeingStoredWhenTheServerDrainsIsStoredAndAnswered) {
  auto call = CalibrateIntoAStoreThatHangs();
  std::thread drain([this] { server_->Drain(); });
  // The store takes longer than the server waits for unsent data.
  EXPECT_EQ(call.wait_for(milliseconds(1500)), std::future_status::timeout);
  store_->Release();
  const CalibrateOutcome outcome = call.get();
  EXPECT_TRUE(outcome.status.ok()) << outcome.status.error_message();
  ASSERT_TRUE(outcome.profile.has_value());
  drain.join();
  EXPECT_EQ(StoredVersion("legal"), outcome.profile->version());
  Serve();
}

TEST_F(CalibrateEndTest, AHurriedDrainDoesNotLetClientsWaitForAStoreThatHangs) {
  ServerOptions options;
  options.drain_timeout = std::chrono::hours(1);
  Serve(options);
  auto call = CalibrateIntoAStoreThatHangs();
  std::thread drain([this] { server_->Drain(); });
  server_->HurryDrain();
  const StatusCode code = call.get().status.error_code();
  EXPECT_TRUE(code == StatusCode::UNAVAILABLE || code == StatusCode::CANCELLED) << code;
  store_->Release();
  drain.join();
  Serve();
}

}  // namespace
}  // namespace eta::testing
