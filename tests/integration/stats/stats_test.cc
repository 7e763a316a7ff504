// The calls Stats and WatchStats over a real socket: who sees what, streams of snapshots, drain.
#include <google/protobuf/util/time_util.h>

#include <chrono>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/process/call_records.h"
#include "tests/testing/service/calibrate_fixture.h"

namespace eta::testing {
namespace {

using google::protobuf::util::TimeUtil;
using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::SizeIs;

// A WatchStats call, snapshot by snapshot.
class WatchCall {
 public:
  WatchCall(v1::EtaService::Stub& stub, const v1::WatchStatsRequest& request,
            const std::string& tenant = "") {
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    if (!tenant.empty()) context.AddMetadata(kTenantHeader, tenant);
    reader_ = stub.WatchStats(&context, request);
  }
  // False once there are no more.
  bool Read() { return reader_->Read(&stats); }
  // Reads on until a snapshot is as it should be; false if none is.
  bool ReadUntil(const std::function<bool(const v1::Stats&)>& condition) {
    while (Read()) {
      if (condition(stats)) return true;
    }
    return false;
  }
  grpc::Status Finish() { return reader_->Finish(); }

  grpc::ClientContext context;
  v1::Stats stats;

 private:
  std::unique_ptr<grpc::ClientReader<v1::Stats>> reader_;
};

class StatsTest : public CalibrateTest {
 protected:
  void SetUp() override {
    telemetry_ = [this](const SnapshotQuery& query) {
      const std::lock_guard lock(mutex_);
      queries_.push_back(query);
      return counted_;
    };
    counted_.started = Clock::now() - seconds(60);
    CalibrateTest::SetUp();
  }

  void ServeTenants() {
    ServerOptions options;
    options.tenant_header = kTenantHeader;
    options.admin_tenants = {"ops"};
    Serve(options);
  }

  std::unique_ptr<v1::EtaService::Stub> StatsStub() {
    return v1::EtaService::NewStub(NewChannel());
  }
  grpc::Status Get(const v1::StatsRequest& request, v1::Stats& stats,
                   const std::string& tenant = "") {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + seconds(20));
    if (!tenant.empty()) context.AddMetadata(kTenantHeader, tenant);
    return StatsStub()->Stats(&context, request, &stats);
  }
  v1::Stats Get(const std::string& tenant = "") {
    v1::Stats stats;
    const grpc::Status status = Get(v1::StatsRequest(), stats, tenant);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats;
  }
  static v1::WatchStatsRequest Every(milliseconds interval) {
    v1::WatchStatsRequest request;
    *request.mutable_interval() = TimeUtil::MillisecondsToDuration(interval.count());
    return request;
  }
  SnapshotQuery LastQuery() {
    const std::lock_guard lock(mutex_);
    return queries_.back();
  }

  std::mutex mutex_;
  TelemetrySnapshot counted_;           // guarded by mutex_
  std::vector<SnapshotQuery> queries_;  // likewise
};

TEST_F(StatsTest, OneSnapshotSaysWhatEngineAndCountersSay) {
  engine_->SetSnapshot({.running = 3, .waiting = 2, .blocks_used = 7, .steps = 55});
  counted_.accounts = {{.output_tokens = 1234}};
  const v1::Stats stats = Get();
  EXPECT_EQ(stats.server().state(), v1::SERVER_STATE_SERVING);
  EXPECT_EQ(stats.server().model(), "puppet");
  EXPECT_EQ(stats.load().running(), 3);
  EXPECT_EQ(stats.load().output_tokens(), 1234);
  ASSERT_THAT(stats.load().devices(), SizeIs(1));
  EXPECT_EQ(stats.load().devices(0).blocks_used(), 7);
  EXPECT_GE(stats.uptime().seconds(), 60);
  EXPECT_FALSE(LastQuery().layers);
  EXPECT_EQ(LastQuery().tenant, "");
}

TEST_F(StatsTest, WorksWhereNothingIsCounted) {
  telemetry_ = nullptr;
  Serve();
  EXPECT_EQ(Get().server().model(), "puppet");
}

TEST_F(StatsTest, ADeviceThatIsLostIsTheState) {
  engine_->SetSnapshot({.device_lost = true});
  EXPECT_EQ(Get().server().state(), v1::SERVER_STATE_DEVICE_LOST);
}

TEST_F(StatsTest, LayersAreAskedForOnRequestOnly) {
  v1::StatsRequest request;
  request.set_layers(true);
  v1::Stats stats;
  EXPECT_TRUE(Get(request, stats).ok());
  EXPECT_TRUE(LastQuery().layers);
}

TEST_F(StatsTest, ATenantSeesItsOwnTheOperatorEverything) {
  ServeTenants();
  const v1::Stats own = Get("user");
  EXPECT_EQ(own.tenant(), "user");
  EXPECT_FALSE(own.has_load());
  EXPECT_THAT(own.latencies(), IsEmpty());
  EXPECT_EQ(LastQuery().tenant, "user");

  const v1::Stats all = Get("ops");
  EXPECT_FALSE(all.has_tenant());
  EXPECT_TRUE(all.has_load());
  EXPECT_EQ(LastQuery().tenant, "");

  v1::StatsRequest request;
  request.set_tenant("user");
  v1::Stats stats;
  EXPECT_TRUE(Get(request, stats, "ops").ok());
  EXPECT_EQ(stats.tenant(), "user");
  EXPECT_EQ(LastQuery().tenant, "user");
}

// bad input: Callers | Stats of another tenant, or of the fleet without the role |
//   PERMISSION_DENIED, ADMIN_REQUIRED | AccessProcessTest.FiguresOfOthersAreForThoseWhoMaySeeAll
TEST_F(StatsTest, AnotherTenantsFiguresAreRefusedBeforeTheyAreTaken) {
  ServeTenants();
  v1::StatsRequest request;
  request.set_tenant("other");
  v1::Stats stats;
  const grpc::Status status = Get(request, stats, "user");
  EXPECT_THAT(status, FailsWith(StatusCode::PERMISSION_DENIED, "ADMIN_REQUIRED"));
  EXPECT_EQ(Get(v1::StatsRequest(), stats).error_code(), StatusCode::UNAUTHENTICATED);
  v1::WatchStatsRequest watch;
  watch.set_tenant("other");
  const auto stub = StatsStub();
  WatchCall call(*stub, watch, "user");
  EXPECT_FALSE(call.Read());
  EXPECT_EQ(call.Finish().error_code(), StatusCode::PERMISSION_DENIED);
  const std::lock_guard lock(mutex_);
  EXPECT_THAT(queries_, IsEmpty());
}

TEST_F(StatsTest, ProfilesAndCalibrationsOfATenantAreItsOwn) {
  ServeTenants();
  EXPECT_TRUE(Calibrate(Request("legal"), "one").status.ok());
  EXPECT_TRUE(Calibrate(Request("code"), "two").status.ok());
  const v1::Stats one = Get("one");
  ASSERT_THAT(one.profiles(), SizeIs(1));
  EXPECT_EQ(one.profiles(0).name(), "legal");
  EXPECT_EQ(one.profiles(0).tenant(), "one");
  EXPECT_EQ(one.profiles_loaded(), 1);
  const ProfileEvidence evidence = FittingContent(1).evidence;
  EXPECT_DOUBLE_EQ(one.profiles(0).head_density(), evidence.head_density);
  EXPECT_DOUBLE_EQ(one.profiles(0).union_density(), evidence.union_density);
  EXPECT_THAT(Get("three").profiles(), IsEmpty());
  EXPECT_THAT(Get("ops").profiles(), SizeIs(2));
}

TEST_F(StatsTest, ACalibrationIsListedWhileItRuns) {
  Gate gate;
  WorkBehind(gate);
  const auto behind_gate = work_;
  work_ = [behind_gate](Engine& engine, const CalibrationJob& job,
                        const CalibrationObserver& observer, const std::stop_token& stop) {
    observer({.phase = CalibrationPhase::kSearch, .sequences_done = 3, .sequences_total = 8});
    return behind_gate(engine, job, observer, stop);
  };
  v1::CalibrateRequest request = Request("legal");
  request.set_request_id("mine");
  auto outcome = CalibrateLater(request);
  gate.AwaitStart();
  const v1::Stats stats = Get();
  gate.Go();
  ASSERT_THAT(stats.calibrations(), SizeIs(1));
  EXPECT_EQ(stats.calibrations(0).profile(), "legal");
  EXPECT_EQ(stats.calibrations(0).tenant(), "default");
  EXPECT_EQ(stats.calibrations(0).request_id(), "mine");
  EXPECT_EQ(stats.calibrations(0).progress().phase(), v1::CALIBRATION_PHASE_SEARCH);
  EXPECT_EQ(stats.calibrations(0).progress().sequences_done(), 3);
  EXPECT_TRUE(outcome.get().status.ok());
  EXPECT_THAT(Get().calibrations(), IsEmpty());
}

TEST_F(StatsTest, AStreamHasASnapshotAtOnceAndTheNextAfterTheInterval) {
  const auto stub = StatsStub();
  WatchCall call(*stub, Every(milliseconds(100)));
  ASSERT_TRUE(call.Read());
  EXPECT_EQ(call.stats.load().running(), 0);
  engine_->SetSnapshot({.running = 4});
  EXPECT_TRUE(call.ReadUntil([](const v1::Stats& stats) { return stats.load().running() == 4; }));
  engine_->SetSnapshot({.running = 0});
  EXPECT_TRUE(call.ReadUntil([](const v1::Stats& stats) { return stats.load().running() == 0; }));
  call.context.TryCancel();
  while (call.Read()) {
  }
  EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
}

TEST_F(StatsTest, AnIntervalOutOfBoundsIsRefused) {
  const auto stub = StatsStub();
  for (const milliseconds interval : {milliseconds(-1000), milliseconds(0), milliseconds(99),
                                      milliseconds(60'001), milliseconds(1'000'000'000'000)}) {
    WatchCall call(*stub, Every(interval));
    EXPECT_FALSE(call.Read()) << interval.count();
    const grpc::Status status = call.Finish();
    EXPECT_THAT(status, FailsAt(StatusCode::INVALID_ARGUMENT, "interval")) << interval.count();
  }
}

TEST_F(StatsTest, AMessageThatDoesNotParseIsRefused) {
  for (const std::string method : {"Stats", "WatchStats"}) {
    GenericCall call(NewChannel(), "/eta.v1.EtaService/" + method);
    const grpc::Status status = call.Exchange("\xff\xff");
    EXPECT_THAT(status, FailsWith(StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE")) << method;
  }
}

TEST_F(StatsTest, AStreamEndsAtItsDeadline) {
  const auto stub = StatsStub();
  WatchCall call(*stub, Every(milliseconds(100)));
  EXPECT_TRUE(call.Read());
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + milliseconds(300));
  const auto reader = stub->WatchStats(&context, Every(milliseconds(100)));
  v1::Stats stats;
  while (reader->Read(&stats)) {
  }
  EXPECT_EQ(reader->Finish().error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_TRUE(call.Read());  // the others go on
}

TEST_F(StatsTest, StreamsAreBounded) {
  ServeTenants();
  const auto stub = StatsStub();
  std::vector<std::unique_ptr<WatchCall>> calls;
  for (int i = 0; i < StatsWatchers::kMax; ++i) {
    const std::string tenant = "user" + std::to_string(i / StatsWatchers::kMaxOfTenant);
    calls.push_back(std::make_unique<WatchCall>(*stub, Every(seconds(60)), tenant));
    ASSERT_TRUE(calls.back()->Read()) << i;
  }
  {
    WatchCall call(*stub, Every(seconds(60)), "other");
    EXPECT_FALSE(call.Read());
    EXPECT_THAT(call.Finish(), FailsWith(StatusCode::RESOURCE_EXHAUSTED, "WATCHERS_FULL"));
  }
  Get("ops");  // one answer is always to be had
  calls.front()->context.TryCancel();
  EXPECT_FALSE(calls.front()->Read());
  calls.front()->Finish();
  // The server hears of it a little later.
  bool let_in = false;
  for (int i = 0; i < 1000 && !let_in; ++i) {
    WatchCall call(*stub, Every(seconds(60)), "other");
    let_in = call.Read();
    if (!let_in) std::this_thread::sleep_for(milliseconds(5));
  }
  EXPECT_TRUE(let_in);
}

TEST_F(StatsTest, OneTenantCannotTakeAllStreams) {
  ServeTenants();
  const auto stub = StatsStub();
  std::vector<std::unique_ptr<WatchCall>> calls;
  for (int i = 0; i < StatsWatchers::kMaxOfTenant; ++i) {
    calls.push_back(std::make_unique<WatchCall>(*stub, Every(seconds(60)), "user"));
    ASSERT_TRUE(calls.back()->Read()) << i;
  }
  WatchCall refused(*stub, Every(seconds(60)), "user");
  EXPECT_FALSE(refused.Read());
  EXPECT_EQ(ReasonOf(refused.Finish()), "WATCHERS_FULL");
  WatchCall other(*stub, Every(seconds(60)), "other");
  EXPECT_TRUE(other.Read());
}

TEST_F(StatsTest, TheDrainCanBeWatchedToItsEnd) {
  ClientCall generate(*stub_);
  generate.Start(Ask("a long story"));
  const auto running = engine_->TakeAndStart();
  const auto stub = StatsStub();
  WatchCall watch(*stub, Every(milliseconds(100)));
  ASSERT_TRUE(watch.Read());
  EXPECT_EQ(watch.stats.server().state(), v1::SERVER_STATE_SERVING);

  std::thread drain([this] { server_->Drain(); });
  EXPECT_TRUE(watch.ReadUntil(
      [](const v1::Stats& stats) { return stats.server().state() == v1::SERVER_STATE_DRAINING; }));
  // It waits for the call above. Who asks now is answered too.
  EXPECT_EQ(Get().server().state(), v1::SERVER_STATE_DRAINING);
  EXPECT_TRUE(watch.Read());
  running->Finish();
  while (watch.Read()) {
  }
  EXPECT_THAT(watch.Finish(), FailsWith(StatusCode::UNAVAILABLE, "DRAINING"));
  drain.join();
  generate.ReadText();
  EXPECT_TRUE(generate.Finish().ok());
  Serve();
}

TEST_F(StatsTest, AServerThatGoesEndsItsStreams) {
  const auto stub = StatsStub();
  WatchCall watch(*stub, Every(seconds(60)));
  ASSERT_TRUE(watch.Read());
  StopServing();
  EXPECT_FALSE(watch.Read());
  EXPECT_EQ(watch.Finish().error_code(), StatusCode::UNAVAILABLE);
  Serve();
}

TEST_F(StatsTest, AConnectionEndsAGraceAfterItsAge) {
  ServerOptions options;
  options.max_connection_age = milliseconds(200);
  options.max_connection_age_grace = milliseconds(200);
  Serve(options);
  const auto stub = StatsStub();
  WatchCall watch(*stub, Every(milliseconds(100)));
  ASSERT_TRUE(watch.Read());
  while (watch.Read()) {
  }
  EXPECT_EQ(watch.Finish().error_code(), StatusCode::UNAVAILABLE) << "not its deadline";
  Serve();
}

// bad input: Deadlines and clients | answers of other calls that nobody reads | cut off with
//   CANCELLED | UnreadAnswerTest.WhatNobodyReadsIsCutOffAndGivenBack
TEST_F(StatsTest, AReaderWhoTakesNothingLosesItsPlaceAndItsCall) {
  CallRecords records;
  call_observers_ = {&records};
  Serve({}, {.max_congestion = milliseconds(300)});
  Http2Peer peer(server_->address(), Http2Peer::NoWindow());
  ASSERT_TRUE(peer.connected());
  peer.Call(1, "/eta.v1.EtaService/WatchStats");
  peer.Message(1, Every(milliseconds(100)).SerializeAsString(), /*end_stream=*/true);
  const auto frames = peer.ReadStream(1);
  ASSERT_FALSE(frames.empty());
  EXPECT_TRUE(frames.back().flags & Http2Peer::kEndStream) << "cut off";
  ASSERT_EQ(records.Await(1).size(), 1u);
  EXPECT_EQ(records.Last().reason, "SLOW_CONSUMER");
  Get();
  call_observers_ = {};
  Serve();
}

TEST_F(StatsTest, AReaderWhoDoesNotReadHoldsNobodyUp) {
  const auto stub = StatsStub();
  const auto idle_stub = v1::EtaService::NewStub(NewChannel());
  WatchCall idle(*idle_stub, Every(milliseconds(100)));  // never read
  WatchCall watch(*stub, Every(milliseconds(100)));
  for (int i = 0; i < 5; ++i) ASSERT_TRUE(watch.Read());
  idle.context.TryCancel();
  while (idle.Read()) {
  }
  idle.Finish();
}

}  // namespace
}  // namespace eta::testing
