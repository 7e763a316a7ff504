// What clients see when something fails that the server survives: the right code, nothing lost, and
// a good next call.
#include <csignal>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/process/failpoint_server.h"
#include "tests/testing/process/live_figures.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/metric_samples.h"
#include "tests/testing/profiles/postgres_server.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using ::testing::HasSubstr;
using ::testing::Not;

const auto* const kCoverage = ::testing::AddGlobalTestEnvironment(
    new FailpointCoverage([] { return PostgresServer::Get() == nullptr; }));

class FailpointCall : public ::testing::Test {
 protected:
  void SetUp() override { ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors; }

  // Expects that the next call is good and that everything was given back.
  void ExpectGood() {
    server_.Disarm();
    server_->Generate("");
    EXPECT_TRUE(server_->status.ok()) << server_->status.error_message();
    AwaitIdle(*server_);
  }
  void ExpectRefused(StatusCode code, const std::string& reason) {
    EXPECT_EQ(server_->status.error_code(), code) << server_->status.error_message();
    EXPECT_EQ(ReasonOf(server_->status), reason);
  }

  const TinyModel model_;
  const TempFolder folder_;
  const std::string store_ = folder_.path() + "/profiles.db";
  FailpointServer server_{model_.path(), store_, {"--metrics_listen", "127.0.0.1:0"}};
};

// bad input: Device | memory short at admission | RESOURCE_EXHAUSTED with RetryInfo; no step can
//   need more by design
TEST_F(FailpointCall, NoMemoryToSubmitRefusesOneCall) {
  for (const char* action : {"fail", "bad_alloc"}) {
    server_.Arm(std::string("engine.submit=") + action + "*1");
    server_->Generate("");
    ExpectRefused(StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE");
    EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(server_->status).has_value());
    ExpectGood();
  }
}

// One block is missing that was counted: an error of that call in the log, and nothing else.
TEST_F(FailpointCall, AMiscountedBlockLosesOneRequest) {
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(300);
  request.mutable_stopping()->set_ignore_eos(true);
  ClientCall first(*server_->stub), second(*server_->stub);
  first.Start(request);
  EXPECT_TRUE(first.Read().has_started());
  second.Start(request);
  EXPECT_TRUE(second.Read().has_started());
  server_.Arm("engine.block=fail*1");
  first.ReadText();
  second.ReadText();
  const grpc::Status statuses[] = {first.Finish(), second.Finish()};
  const bool first_failed = !statuses[0].ok();
  EXPECT_EQ(statuses[first_failed ? 0 : 1].error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(ReasonOf(statuses[first_failed ? 0 : 1]), "INTERNAL_ERROR");
  EXPECT_TRUE(statuses[first_failed ? 1 : 0].ok());
  const ClientCall& whole = first_failed ? second : first;
  EXPECT_EQ(whole.finished.usage().output_tokens(), 300);
}

TEST_F(FailpointCall, ADeviceThatIsShortOfMemoryInAStepLosesOneRequest) {
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(300);
  request.mutable_stopping()->set_ignore_eos(true);
  ClientCall older(*server_->stub), younger(*server_->stub);
  older.Start(request);
  EXPECT_TRUE(older.Read().has_started());
  younger.Start(request);
  EXPECT_TRUE(younger.Read().has_started());
  EXPECT_NE(younger.Read().delta().text(), "");
  server_.Arm("engine.step_memory=fail*1");
  younger.ReadText();
  const grpc::Status status = younger.Finish();
  EXPECT_THAT(status, FailsWith(StatusCode::UNAVAILABLE, "DEVICE_ERROR"));
  EXPECT_GE(std::stoi(MetadataOf(status, "output_tokens")), 1);
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  older.ReadText();
  EXPECT_TRUE(older.Finish().ok());
  EXPECT_EQ(older.finished.usage().output_tokens(), 300);
  ExpectGood();
}

TEST_F(FailpointCall, LogitsThatAreNotNumbersLoseOneRequest) {
  const auto counted = [this] {
    return MetricSamples(HttpGet(server_->metrics_port(), "/metrics").body)
        .Sum("eta_requests_failed_total", {{"reason", "nonfinite_logits"}});
  };
  EXPECT_EQ(counted(), 0);
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(200);
  request.mutable_stopping()->set_ignore_eos(true);
  ClientCall one(*server_->stub), two(*server_->stub);
  one.Start(request);
  two.Start(request);
  EXPECT_TRUE(one.Read().has_started());
  EXPECT_TRUE(two.Read().has_started());
  server_.Arm("engine.sample=fail*1");
  one.ReadText();
  two.ReadText();
  const grpc::Status statuses[] = {one.Finish(), two.Finish()};
  const bool first = !statuses[0].ok();
  EXPECT_EQ(statuses[first ? 0 : 1].error_code(), StatusCode::INTERNAL);
  EXPECT_EQ(ReasonOf(statuses[first ? 0 : 1]), "NONFINITE_LOGITS");
  EXPECT_TRUE(statuses[first ? 1 : 0].ok()) << "the other goes on";
  EXPECT_EQ((first ? two : one).finished.usage().output_tokens(), 200);
  EXPECT_EQ(counted(), 1);
  ExpectGood();
}

// Memory that is first needed for a calibration.
// bad input: Device | memory short for a calibration | RESOURCE_EXHAUSTED without RetryInfo:
//   nothing tells when there is room
TEST_F(FailpointCall, NoDeviceMemoryToCalibrateRefusesTheCalibration) {
  server_.Arm("engine.pass_cells=fail*1");
  EXPECT_FALSE(server_->Calibrate(SmallCalibration("legal")).has_value());
  ExpectRefused(StatusCode::RESOURCE_EXHAUSTED, "DEVICE_ERROR");
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(server_->status).has_value());
  ExpectGood();
  EXPECT_TRUE(server_->Calibrate(SmallCalibration("legal")).has_value());
}

TEST_F(FailpointCall, ACalibrationThatFailsInAnyPhaseStoresNothing) {
  for (const char* phase : {"collect", "solve", "search", "verify"}) {
    for (const char* action : {"fail", "bad_alloc"}) {
      SCOPED_TRACE(std::string(phase) + " " + action);
      server_.Arm(std::string("calibrate.") + phase + "=" + action + "*1");
      EXPECT_FALSE(server_->Calibrate(SmallCalibration("legal")).has_value());
      ExpectRefused(StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE");
      server_->Versions("legal");
      ExpectRefused(StatusCode::NOT_FOUND, "PROFILE_NOT_FOUND");
      ExpectGood();
    }
  }
  const auto stored = server_->Calibrate(SmallCalibration("legal"));
  ASSERT_TRUE(stored.has_value()) << server_->status.error_message();
  EXPECT_EQ(stored->version(), 1);
}

TEST_F(FailpointCall, ProfileCallsThatCannotBeDoneNowCanBeSoon) {
  ASSERT_TRUE(server_->Calibrate(SmallCalibration("legal")).has_value());
  struct Case {
    const char* rule;
    StatusCode code;
    const char* reason;
  };
  for (const Case& expected : {
           Case{"profile.call=fail*1", StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"},
           Case{"profile.call=bad_alloc*1", StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"},
           Case{"worker.post=fail*1", StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"},
           Case{"store.read=fail*1", StatusCode::UNAVAILABLE, "STORE_BUSY"},
           Case{"store.read=bad_alloc*1", StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"},
       }) {
    SCOPED_TRACE(expected.rule);
    // The cache's own reads may use up the failpoint, so this is repeated.
    do {
      server_.Arm(expected.rule);
      server_->Get("legal");
    } while (server_->status.ok() && std::string(expected.rule).rfind("store.read", 0) == 0);
    ExpectRefused(expected.code, expected.reason);
    ExpectGood();
    EXPECT_EQ(server_->Get("legal").version(), 1) << server_->status.error_message();
  }
}

TEST_F(FailpointCall, AProfileThatCannotBeLoadedNowCanBeSoon) {
  ASSERT_TRUE(server_->Calibrate(SmallCalibration("legal")).has_value());
  for (const char* action : {"fail", "bad_alloc"}) {
    server_.Arm(std::string("cache.load=") + action);
    server_->Generate("legal@1");  // no call has asked for the profile by its version yet
    ExpectRefused(StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE");
    EXPECT_EQ(server_->Generate("legal").profile_version(), 1) << "it is in memory";
    ExpectGood();
  }
  EXPECT_EQ(server_->Generate("legal@1").profile_version(), 1) << server_->status.error_message();
}

// Cached profiles are used for their time and then asked for again.
TEST(FailpointCache, RefreshesThatDoNotComeHurtNobody) {
  const TinyModel model;
  const TempFolder folder;
  const FailpointServer server(model.path(), folder.path() + "/profiles.db",
                               {"--profile_staleness", "200ms"});
  ASSERT_TRUE(server->Calibrate(SmallCalibration("legal")).has_value());
  server.Arm("cache.refresh=fail");
  for (int i = 0; i < 40; ++i) {
    EXPECT_EQ(server->Generate("legal").profile_version(), 1) << server->status.error_message();
    std::this_thread::sleep_for(milliseconds(10));
  }
}

TEST_F(FailpointCall, ALogThatCannotBeWrittenLosesLinesAndNoCalls) {
  server_.Arm("log.write=fail");
  for (int i = 0; i < 3; ++i) {
    server_->Generate("");
    EXPECT_TRUE(server_->status.ok()) << server_->status.error_message();
  }
  // A slow log holds nobody up either.
  server_.Arm("log.write=pause");
  for (int i = 0; i < 3; ++i) server_->Generate("");
  EXPECT_TRUE(server_->status.ok()) << server_->status.error_message();
  ExpectGood();
  server_->process().Signal(SIGTERM);
  const ServerProcess::Exit exit = server_->process().AwaitExit();
  EXPECT_EQ(exit.code, 0);
  EXPECT_EQ(LogLines(exit.errors, "stop").size(), 1u) << "it writes again";
}

TEST(FailpointMetrics, APageWithoutMemoryIsEmptyAndTheNextIsWhole) {
  const TinyModel model;
  const TempFolder folder;
  const std::string rules = folder.Write("rules", "metrics.page=bad_alloc*1");
  {
    const Environment failpoints("ETA_FAILPOINTS", rules);
    ServerProcess server(ETA_BINARY_DIR "/eta-server",
                         {"--model", model.path(), "--listen", "127.0.0.1:0", "--metrics_listen",
                          "127.0.0.1:0", "--kv_pool_bytes", "16MiB"});
    const std::string url = server.AwaitLine("metrics on ");
    const int port = std::stoi("0" + url.substr(url.rfind(':') + 1));
    ASSERT_NE(server.AwaitAddress(), "") << server.AwaitExit().errors;
    const HttpAnswer without_memory = HttpGet(port, "/metrics");
    EXPECT_EQ(without_memory.status, 200);
    EXPECT_THAT(without_memory.body, Not(HasSubstr("eta_")));
    const HttpAnswer next = HttpGet(port, "/metrics");
    EXPECT_EQ(next.status, 200);
    EXPECT_THAT(next.body, HasSubstr("eta_engine_state"));
    server.Signal(SIGTERM);
    const ServerProcess::Exit exit = server.AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
    EXPECT_THAT(exit.errors, HasSubstr("ETA_FAILPOINTS")) << "said aloud at the start";
  }
  FailpointCoverage::Add(ReadFile(rules + ".struck"));
}

TEST(FailpointReload, AFileThatCannotBeReadNowKeepsWhatHeldAndIsReadLater) {
  const TinyModel model;
  const TempFolder folder;
  const std::string tenants = folder.Write("tenants", R"({"default": {"max_calls": 8}})");
  const FailpointServer server(model.path(), "", {"--tenants", tenants});
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  server.Arm("file.reload=fail engine.step=delay:5");
  std::rename(folder.Write("new", R"({"default": {"max_calls": 1}})").c_str(), tenants.c_str());
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(900);
  request.mutable_stopping()->set_ignore_eos(true);
  ClientCall running(*server->stub);
  running.Start(request);
  EXPECT_TRUE(running.Read().has_started());
  while (!server.Struck("file.reload")) std::this_thread::sleep_for(milliseconds(5));
  server->Generate("");
  EXPECT_TRUE(server->status.ok()) << server->status.error_message();
  server.Arm("engine.step=delay:5");
  do {
    server->Generate("");
  } while (server->status.ok() && running.Read().has_delta());
  EXPECT_THAT(server->status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "TENANT_CALLS"));
}

}  // namespace
}  // namespace eta::testing
