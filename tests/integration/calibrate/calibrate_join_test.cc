// Calibrations and the calls that wait for them: calls come, leave and come back.
#include "engine/base/error.h"
#include "gtest/gtest.h"
#include "service/telemetry/call_end.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;

class CalibrateJoinTest : public CalibrateTest {
 protected:
  void SetUp() override {
    call_observers_ = {&records_};
    CalibrateTest::SetUp();
    records_.Clear();
  }

  static v1::CalibrateRequest Named(const std::string& name = "legal") {
    v1::CalibrateRequest request = Request(name);
    request.set_request_id("once");
    return request;
  }
  enum class Tenants { kOne, kMany };
  void ServeWith(milliseconds orphan_timeout, int max_calibrations = 1,
                 Tenants tenants = Tenants::kOne) {
    ServerOptions options;
    if (tenants == Tenants::kMany) options.tenant_header = kTenantHeader;
    options.calibration_orphan_timeout = orphan_timeout;
    options.max_calibrations = max_calibrations;
    Serve(options);
  }
  // Tells one progress, then waits for the gate.
  void TellBehind(Gate& gate) {
    work_ = [this, &gate](Engine&, const CalibrationJob& job, const CalibrationObserver& observer,
                          const std::stop_token& stop) -> absl::StatusOr<CalibrationResult> {
      observer({.phase = CalibrationPhase::kSearch, .sequences_done = 7, .sequences_total = 9});
      const bool passed = gate.Pass(stop);
      stopped_ = !passed;
      if (!passed) return absl::CancelledError("stopped");
      return Made(job);
    };
  }
  // A call that begins its calibration and leaves.
  void BeginAndLeave(const v1::CalibrateRequest& request, Gate& gate,
                     const std::string& tenant = "") {
    grpc::ClientContext context;
    if (!tenant.empty()) context.AddMetadata(kTenantHeader, tenant);
    const size_t ended = records_.All().size();
    const auto reader = stub_->Calibrate(&context, request);
    gate.AwaitStart();
    context.TryCancel();
    EXPECT_EQ(reader->Finish().error_code(), StatusCode::CANCELLED);
    EXPECT_EQ(records_.Await(ended + 1).size(), ended + 1);
    EXPECT_EQ(records_.Last().reason, "CLIENT_CANCELLED");
  }
  // A call that joins the calibration behind the gate, and gets its profile once that opens.
  void ComeBack(const v1::CalibrateRequest& request, Gate& gate, const std::string& tenant = "",
                milliseconds wait = milliseconds(0)) {
    grpc::ClientContext context;
    if (!tenant.empty()) context.AddMetadata(kTenantHeader, tenant);
    const auto back = stub_->Calibrate(&context, request);
    v1::CalibrateResponse message;
    ASSERT_TRUE(back->Read(&message)) << back->Finish().error_message();
    EXPECT_TRUE(message.has_progress());
    std::this_thread::sleep_for(wait);
    EXPECT_FALSE(stopped_);
    gate.Go();
    ASSERT_TRUE(back->Read(&message));
    EXPECT_EQ(message.profile().version(), 1);
    EXPECT_TRUE(back->Finish().ok());
    EXPECT_EQ(runs_, 1);
  }
  grpc::Status Cancel(const std::string& id, const std::string& tenant = "") {
    grpc::ClientContext context;
    if (!tenant.empty()) context.AddMetadata(kTenantHeader, tenant);
    v1::CancelCalibrationRequest request;
    request.set_request_id(id);
    v1::CancelCalibrationResponse response;
    return stub_->CancelCalibration(&context, request, &response);
  }
  struct ToldGate : Gate {
    explicit ToldGate(CalibrateJoinTest& test) { test.TellBehind(*this); }
  };
  // Two calls that wait for the calibration behind the gate. The second has heard where it is.
  struct Pair {
    std::future<CalibrateOutcome> first;
    grpc::ClientContext context;
    std::unique_ptr<grpc::ClientReader<v1::CalibrateResponse>> second;
    v1::CalibrateResponse message;
  };
  void WaitTogether(Gate& gate, Pair& pair) {
    pair.first = CalibrateLater(Named());
    gate.AwaitStart();
    pair.second = stub_->Calibrate(&pair.context, Named());
    ASSERT_TRUE(pair.second->Read(&pair.message)) << "where it is now, at once";
  }
  void AwaitStop() {
    while (!stopped_) std::this_thread::sleep_for(milliseconds(1));
  }

  CallRecords records_;
  std::atomic<bool> stopped_ = false;
};

TEST_F(CalibrateJoinTest, TheSameIdJoinsTheCalibrationThatRuns) {
  ToldGate gate(*this);
  Pair pair;
  WaitTogether(gate, pair);
  auto& [first, context, second, message] = pair;
  EXPECT_EQ(message.progress().phase(), v1::CALIBRATION_PHASE_SEARCH);
  EXPECT_EQ(message.progress().sequences_done(), 7);
  gate.Go();
  ASSERT_TRUE(second->Read(&message));
  ASSERT_TRUE(message.has_profile());
  EXPECT_TRUE(second->Finish().ok());
  const CalibrateOutcome outcome = first.get();
  ASSERT_TRUE(outcome.profile.has_value()) << outcome.status.error_message();
  EXPECT_EQ(outcome.profile->SerializeAsString(), message.profile().SerializeAsString());
  EXPECT_EQ(runs_, 1);
  EXPECT_EQ(StoredVersion("legal"), 1);

  const std::vector<CallRecord> calls = records_.Await(2);
  ASSERT_EQ(calls.size(), 2u);
  for (const CallRecord& call : calls) EXPECT_EQ(call.profile_version, 1) << "for the audit log";
  const auto calibrations = records_.Calibrations();
  ASSERT_EQ(calibrations.size(), 1u) << "one that two calls waited for";
  EXPECT_EQ(calibrations[0].record.request_id, "once");
  EXPECT_EQ(calibrations[0].record.profile_version, 1);
  EXPECT_FALSE(calibrations[0].alone);
}

TEST_F(CalibrateJoinTest, AnErrorIsToldToAllWhoWait) {
  Gate gate;
  work_ = [&gate](Engine&, const CalibrationJob&, const CalibrationObserver& observer,
                  const std::stop_token& stop) -> absl::StatusOr<CalibrationResult> {
    observer({.phase = CalibrationPhase::kSearch});
    gate.Pass(stop);
    return MakeError(absl::StatusCode::kFailedPrecondition, "too much",
                     {.reason = "PROFILE_LOSES"});
  };
  Pair pair;
  WaitTogether(gate, pair);
  auto& [first, context, second, message] = pair;
  gate.Go();
  EXPECT_FALSE(second->Read(&message));
  EXPECT_EQ(ReasonOf(second->Finish()), "PROFILE_LOSES");
  EXPECT_EQ(ReasonOf(first.get().status), "PROFILE_LOSES");
  Work();
  EXPECT_TRUE(Calibrate(Named()).status.ok()) << "the id of what stored nothing";
}

// bad input: Calibrate | the same request id, other payload, another `stage`, also while the first
//   runs | ALREADY_EXISTS, REQUEST_ID_REUSED | BadProfileTest.ARequestIdIsOfOneRequest
TEST_F(CalibrateJoinTest, AnotherRequestUnderTheIdIsRefused) {
  ServeWith(seconds(60), /*max_calibrations=*/2, Tenants::kMany);
  ToldGate gate(*this);
  auto first = CalibrateLater(Named(), "acme");
  gate.AwaitStart();
  v1::CalibrateRequest other = Named();
  other.mutable_target()->set_union_density(0.25);
  EXPECT_EQ(ReasonOf(Calibrate(other, "acme").status), "REQUEST_ID_REUSED");
  EXPECT_EQ(Calibrate(other, "acme").status.error_code(), StatusCode::ALREADY_EXISTS);
  for (const CallRecord& record : records_.Await(2)) {
    EXPECT_TRUE(record.of_calibration) << "no calibration was rejected: one runs";
  }
  Work();
  EXPECT_TRUE(Calibrate(other, "globex").status.ok()) << "another tenant's id is another id";
  EXPECT_EQ(runs_, 2);
  gate.Go();
  EXPECT_TRUE(first.get().status.ok());
}

TEST_F(CalibrateJoinTest, ACallThatComesBackFindsItsCalibration) {
  ServeWith(seconds(60));
  ToldGate gate(*this);
  BeginAndLeave(Named(), gate);
  ComeBack(Named(), gate);
}

TEST_F(CalibrateJoinTest, OneThatEndsAloneIsStoredAndToldOf) {
  ServeWith(seconds(60));
  ToldGate gate(*this);
  BeginAndLeave(Named(), gate);
  gate.Go();
  while (StoredVersion("legal") == 0) std::this_thread::sleep_for(milliseconds(1));
  const auto calibrations = records_.AwaitCalibrations(1);
  ASSERT_EQ(calibrations.size(), 1u);
  EXPECT_TRUE(calibrations[0].alone) << "no call's end tells of the version";
  EXPECT_EQ(calibrations[0].record.profile_version, 1);
  EXPECT_TRUE(calibrations[0].record.status.ok());
  const CalibrateOutcome back = Calibrate(Named());
  ASSERT_TRUE(back.profile.has_value()) << back.status.error_message();
  EXPECT_EQ(back.profile->version(), 1);
  EXPECT_EQ(runs_, 1);
}

TEST_F(CalibrateJoinTest, OneThatNobodyComesBackToEnds) {
  ServeWith(milliseconds(50));
  ToldGate gate(*this);
  BeginAndLeave(Named(), gate);
  AwaitStop();
  const auto calibrations = records_.AwaitCalibrations(1);
  ASSERT_EQ(calibrations.size(), 1u);
  EXPECT_TRUE(absl::IsCancelled(calibrations[0].record.status));
  EXPECT_EQ(StoredVersion("legal"), 0);
}

// Its timer is not that of the time before.
TEST_F(CalibrateJoinTest, WhoComesBackInTimeKeepsIt) {
  ServeWith(milliseconds(300));
  ToldGate gate(*this);
  BeginAndLeave(Named(), gate);
  ComeBack(Named(), gate, "", milliseconds(600));
}

TEST_F(CalibrateJoinTest, WithoutAnIdOfTheClientsNobodyCanComeBack) {
  ServeWith(seconds(60));
  ToldGate gate(*this);
  BeginAndLeave(Request(), gate);
  AwaitStop();
  EXPECT_EQ(StoredVersion("legal"), 0);
}

TEST_F(CalibrateJoinTest, OneThatNobodyWaitsForGivesItsPlaceToItsTenant) {
  ServeWith(seconds(60), 1, Tenants::kMany);
  ToldGate gate(*this);
  BeginAndLeave(Named(), gate, "acme");
  Work();
  EXPECT_EQ(ReasonOf(Calibrate(Request("code"), "globex").status), "CALIBRATION_BUSY");
  EXPECT_FALSE(stopped_);
  const CalibrateOutcome next = Calibrate(Request("code"), "acme");
  EXPECT_TRUE(next.status.ok()) << next.status.error_message();
  AwaitStop();
  EXPECT_EQ(StoredVersion("legal", "acme"), 0);
  EXPECT_EQ(StoredVersion("code", "acme"), 1);
}

// They gave up their places, and not yet their threads.
TEST_F(CalibrateJoinTest, WhereThoseThatEndHaveEveryThreadTheNextIsToldToWait) {
  ServeWith(seconds(60));
  std::promise<void> end;
  work_ = [ended = end.get_future().share()](
              Engine&, const CalibrationJob&, const CalibrationObserver&,
              const std::stop_token&) -> absl::StatusOr<CalibrationResult> {
    ended.wait();
    return absl::CancelledError("stopped");
  };
  grpc::Status status;
  size_t calls = 0;
  for (bool runs = true; runs && calls < 8;) {
    v1::CalibrateRequest request = Named();
    request.set_request_id("call-" + std::to_string(calls));
    grpc::ClientContext context;
    const auto reader = stub_->Calibrate(&context, request);
    runs = false;
    while (!runs && records_.All().size() == calls) {
      std::this_thread::sleep_for(milliseconds(1));
      for (const auto& running : server_->Status().calibrations) {
        runs = runs || running.request_id == request.request_id();
      }
    }
    if (runs) context.TryCancel();
    status = reader->Finish();
    EXPECT_EQ(records_.Await(++calls).size(), calls);
  }
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "CALIBRATION_BUSY"));
  end.set_value();
  EXPECT_EQ(records_.AwaitCalibrations(calls).size(), calls);
}

TEST_F(CalibrateJoinTest, TheDeadlineOfTheLastCallEndsIt) {
  ServeWith(seconds(60));
  ToldGate gate(*this);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(300));
  EXPECT_EQ(stub_->Calibrate(&context, Named())->Finish().error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  AwaitStop();
  ASSERT_EQ(records_.Await(1).size(), 1u);
  EXPECT_EQ(records_.Last().reason, "DEADLINE_DECODING");
  EXPECT_EQ(CalibrationEndOf(records_.AwaitCalibrations(1).at(0).record), CallEnd::kCancelled);
  EXPECT_EQ(StoredVersion("legal"), 0);
}

TEST_F(CalibrateJoinTest, ACancelEndsItForAllWhoWait) {
  ServeWith(seconds(60));
  ToldGate gate(*this);
  Pair pair;
  WaitTogether(gate, pair);
  auto& [first, context, second, message] = pair;
  EXPECT_TRUE(Cancel("once").ok());
  EXPECT_FALSE(second->Read(&message));
  EXPECT_EQ(second->Finish().error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(first.get().status.error_code(), StatusCode::CANCELLED);
  EXPECT_EQ(ReasonOf(Cancel("once")), "CALIBRATION_NOT_FOUND");
  const auto calibrations = records_.AwaitCalibrations(1);
  ASSERT_EQ(calibrations.size(), 1u);
  EXPECT_EQ(CalibrationEndOf(calibrations[0].record), CallEnd::kCancelled);
  EXPECT_EQ(calibrations[0].record.reason, "CLIENT_CANCELLED");
  EXPECT_EQ(StoredVersion("legal"), 0);
}

TEST_F(CalibrateJoinTest, ACancelMayBeRepeatedWhileItIsBeingStopped) {
  std::promise<void> end;
  std::atomic<bool> stopping = false;
  work_ = [&](Engine&, const CalibrationJob&, const CalibrationObserver&,
              const std::stop_token& stop) -> absl::StatusOr<CalibrationResult> {
    while (!stop.stop_requested()) std::this_thread::sleep_for(milliseconds(1));
    stopping = true;
    end.get_future().wait();
    return absl::CancelledError("stopped");
  };
  auto call = CalibrateLater(Named());
  while (runs_ == 0) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(Cancel("once").ok());
  while (!stopping) std::this_thread::sleep_for(milliseconds(1));
  EXPECT_TRUE(Cancel("once").ok());
  EXPECT_EQ(ReasonOf(Calibrate(Named()).status), "REQUEST_IN_PROGRESS");
  for (const CallRecord& record : records_.All()) {
    EXPECT_TRUE(record.method != "Calibrate" || record.of_calibration) << "it has its own end";
  }
  end.set_value();
  EXPECT_EQ(call.get().status.error_code(), StatusCode::CANCELLED);
}

// bad input: Calibrate | CancelCalibration: no or a bad `request_id`, of nothing that runs, of
//   another tenant's | INVALID_ARGUMENT, field `request_id`; NOT_FOUND, CALIBRATION_NOT_FOUND; what
//   runs goes on | BadInputTest.CalibrationsThatCannotBeCancelled
TEST_F(CalibrateJoinTest, OnlyTheTenantsOwnCalibrationIsCancelled) {
  limits_ = std::make_unique<TenantLimits>();
  ASSERT_TRUE(limits_->Apply(R"({"tenants": {"acme": {"max_calls": 1}}})").ok());
  ServeWith(seconds(60), 1, Tenants::kMany);
  ToldGate gate(*this);
  auto call = CalibrateLater(Named(), "acme");
  gate.AwaitStart();
  EXPECT_EQ(ReasonOf(Cancel("once", "globex")), "CALIBRATION_NOT_FOUND");
  EXPECT_EQ(ReasonOf(Cancel("another", "acme")), "CALIBRATION_NOT_FOUND");
  EXPECT_FALSE(stopped_);
  EXPECT_TRUE(Cancel("once", "acme").ok()) << "it takes no place among the calls";
  EXPECT_EQ(call.get().status.error_code(), StatusCode::CANCELLED);
}

TEST_F(CalibrateJoinTest, ADeadlineEndsItsOwnCallWhileOthersWait) {
  ServeWith(seconds(60));
  ToldGate gate(*this);
  auto other = CalibrateLater(Named());
  gate.AwaitStart();
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(200));
  EXPECT_EQ(stub_->Calibrate(&context, Named())->Finish().error_code(),
            StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(records_.Await(1).size(), 1u);
  EXPECT_EQ(records_.Last().reason, "DEADLINE_DECODING");
  EXPECT_FALSE(stopped_);
  gate.Go();
  EXPECT_TRUE(other.get().status.ok());
}

TEST_F(CalibrateJoinTest, ADrainEndsItForAllAndAlone) {
  ServeWith(seconds(60), /*max_calibrations=*/2);
  ToldGate alone(*this);
  v1::CalibrateRequest left = Named("left");
  left.set_request_id("left");
  BeginAndLeave(left, alone);
  ToldGate gate(*this);
  Pair pair;
  WaitTogether(gate, pair);
  auto& [first, context, second, message] = pair;
  server_->Drain();
  EXPECT_FALSE(second->Read(&message));
  EXPECT_EQ(ReasonOf(second->Finish()), "DRAINING");
  EXPECT_EQ(ReasonOf(first.get().status), "DRAINING");
  EXPECT_EQ(records_.AwaitCalibrations(2).size(), 2u) << "the one that nobody waited for too";
  EXPECT_EQ(StoredVersion("legal"), 0);
  ServeWith(seconds(60));
}

// With 60 s to live alone: it is not waited for.
TEST_F(CalibrateJoinTest, AServerThatGoesWithoutADrainEndsOneThatIsAlone) {
  ServeWith(seconds(60));
  ToldGate gate(*this);
  BeginAndLeave(Named(), gate);
  Serve();
  EXPECT_TRUE(stopped_);
  const auto calibrations = records_.Calibrations();
  ASSERT_EQ(calibrations.size(), 1u);
  EXPECT_EQ(calibrations[0].record.reason, "DRAINING") << "not the end of those 60 s";
}

TEST_F(CalibrateJoinTest, ItsTokensArePaidForOnceAndItHoldsNoCall) {
  limits_ = std::make_unique<TenantLimits>();
  // Enough for one of 36 tokens.
  ASSERT_TRUE(limits_
                  ->Apply(R"({"tenants": {"acme": {"max_calls": 1, "tokens_per_second": 0.001,
                                                   "burst_tokens": 40}}})")
                  .ok());
  ServeWith(seconds(60), 1, Tenants::kMany);
  ToldGate gate(*this);
  BeginAndLeave(Named(), gate, "acme");
  ComeBack(Named(), gate, "acme");
  EXPECT_EQ(ReasonOf(Calibrate(Request("code"), "acme").status), "TENANT_TOKENS");
}

}  // namespace
}  // namespace eta::testing
