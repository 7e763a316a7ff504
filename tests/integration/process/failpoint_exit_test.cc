// Failures that a server does not survive: it ends soon with the exit code that says why, and its
// clients are told.
#include <atomic>
#include <csignal>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/process/failpoint_server.h"
#include "tests/testing/process/log_lines.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using ::testing::AnyOf;
using ::testing::HasSubstr;

constexpr int kExitBadStart = 2;
constexpr int kExitDeviceLost = 3;
constexpr int kExitStoreFailed = 4;
constexpr int kExitOutOfMemory = 5;
constexpr int kExitHung = 6;

class FailpointExit : public ::testing::Test {
 protected:
  const TinyModel model_;
  const TempFolder folder_;
  const std::string store_ = folder_.path() + "/profiles.db";
};

// What runs fails, health says so at once, nothing new is taken, and the process ends in order to
// be restarted.
class FailpointDevice : public FailpointExit, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Failpoints, FailpointDevice,
                         ::testing::Values("engine.step", "engine.step_device"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::erase_if(name, [](char c) { return c == '.' || c == '_'; });
                           return name;
                         });

TEST_P(FailpointDevice, ThatIsLostEndsTheProcess) {
  const FailpointServer server(model_.path(), "");
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  const auto channel = grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials());
  HealthListener readiness(channel, "readiness");
  EXPECT_EQ(readiness.Next(), HealthStatus::SERVING);
  ClientCall running(*server->stub);
  running.Start(LongAnswer(900));
  EXPECT_TRUE(running.Read().has_started());
  server.Arm(std::string(GetParam()) + "=fail*1 drain=delay:2000");  // time for the checks below
  running.ReadText();
  const grpc::Status status = running.Finish();
  EXPECT_THAT(status, FailsWith(StatusCode::INTERNAL, "DEVICE_ERROR"));
  EXPECT_NE(MetadataOf(status, "output_tokens"), "");
  server->Generate("");
  EXPECT_THAT(server->status, FailsWith(StatusCode::UNAVAILABLE, "DEVICE_ERROR"));
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(server->status).has_value());
  EXPECT_EQ(readiness.Next(), HealthStatus::NOT_SERVING);
  const ServerProcess::Exit exit = server->process().AwaitExit();
  EXPECT_EQ(exit.code, kExitDeviceLost) << exit.errors;
  EXPECT_EQ(LogLines(exit.errors, "device_lost").size(), 1u);
}

// Memory is short somewhere in the step thread: every call ends, and so does the process.
class FailpointMemory : public FailpointExit, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Failpoints, FailpointMemory,
                         ::testing::Values("engine.step", "engine.block", "engine.deliver",
                                           "generate.delta"),
                         [](const auto& tested) {
                           std::string name = tested.param;
                           std::erase(name, '.');
                           return name;
                         });

TEST_P(FailpointMemory, ShortInAStepEndsTheProcess) {
  const FailpointServer server(model_.path(), "");
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  ClientCall one(*server->stub), two(*server->stub);
  one.Start(LongAnswer(900));
  EXPECT_TRUE(one.Read().has_started());
  two.Start(LongAnswer(900));
  EXPECT_TRUE(two.Read().has_started());
  server.Arm(std::string(GetParam()) + "=bad_alloc*1");
  for (ClientCall* call : {&one, &two}) {
    call->ReadText();
    EXPECT_THAT(call->Finish(), FailsWith(StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"));
  }
  server->Generate("");
  EXPECT_EQ(server->status.error_code(), StatusCode::UNAVAILABLE) << server->status.error_message();
  const ServerProcess::Exit exit = server->process().AwaitExit();
  EXPECT_EQ(exit.code, kExitOutOfMemory) << exit.errors;
  EXPECT_THAT(exit.errors, HasSubstr("had no memory"));
}

// A step hangs: the server is not alive during it and is alive after it.
TEST_F(FailpointExit, AStepThatHangsIsSeenByLiveness) {
  const FailpointServer server(model_.path(), "",
                               {"--slow_reader_timeout", "500ms", "--stall_timeout", "1s"});
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  const auto channel = grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials());
  HealthListener liveness(channel, "liveness");
  EXPECT_EQ(liveness.Next(), HealthStatus::SERVING);
  server.Arm("engine.step=pause");
  v1::GenerateRequest request = LongAnswer(900);
  ClientCall call(*server->stub);
  call.Start(request);
  EXPECT_EQ(liveness.Next(), HealthStatus::NOT_SERVING);
  server.Disarm();
  EXPECT_EQ(liveness.Next(), HealthStatus::SERVING);
  call.ReadText();
  EXPECT_TRUE(call.Finish().ok());
}

// The log of a process that ended with plain words, since the log itself may have hung.
std::string WithoutLastWords(const std::string& log) {
  const size_t words = log.rfind("eta-server: comes to no end by itself");
  EXPECT_NE(words, std::string::npos) << log;
  return log.substr(0, words);
}

// Nobody looks at liveness, and the process ends all the same.
TEST_F(FailpointExit, AStepThatNeverEndsEndsTheProcess) {
  const FailpointServer server(model_.path(), "",
                               {"--slow_reader_timeout", "500ms", "--stall_timeout", "1s"});
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  server.Arm("engine.step=pause");
  ClientCall call(*server->stub);
  call.Start(LongAnswer(900));
  const ServerProcess::Exit exit = server->process().AwaitExit();
  EXPECT_EQ(exit.code, kExitHung) << exit.errors;
  const std::string log = WithoutLastWords(exit.errors);
  EXPECT_EQ(LogLines(log, "not_alive").size(), 1u);
  EXPECT_EQ(LogLines(log, "exit").size(), 1u);
  EXPECT_EQ(call.Finish().error_code(), StatusCode::UNAVAILABLE);
}

// While a step hangs the drain cannot end: the second signal ends the process, long before it would
// count as hung.
TEST_F(FailpointExit, ASecondSignalEndsAProcessWhoseStepHangs) {
  const FailpointServer server(model_.path(), "");
  ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
  const auto channel = grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials());
  HealthListener readiness(channel, "readiness");
  EXPECT_EQ(readiness.Next(), HealthStatus::SERVING);
  ClientCall call(*server->stub);
  call.Start(LongAnswer(900));
  EXPECT_TRUE(call.Read().has_started());
  server.Arm("engine.step=pause");
  server->process().Signal(SIGTERM);
  EXPECT_EQ(readiness.Next(), HealthStatus::NOT_SERVING);
  server->process().Signal(SIGTERM);
  const ServerProcess::Exit exit = server->process().AwaitExit();
  EXPECT_EQ(exit.code, kExitHung) << exit.errors;
  EXPECT_EQ(LogLines(WithoutLastWords(exit.errors), "drain_hurried").size(), 1u);
}

// Nothing is served that could not be loaded whole.
class FailpointStart : public FailpointExit, public ::testing::WithParamInterface<const char*> {};
INSTANTIATE_TEST_SUITE_P(Failpoints, FailpointStart,
                         ::testing::Values("file.open=fail*1", "file.open=fail*1@1",
                                           "file.read=fail*1", "file.read=fail*1@3",
                                           "device.allocate=fail*1@2", "device.allocate=fail*1@5",
                                           "store.open=fail", "store.migrate=fail@3",
                                           "server.threads=fail"),
                         [](const auto& tested) { return std::to_string(tested.index); });

TEST_P(FailpointStart, ThatFailsIsNoStartAndTheNextIsGood) {
  {
    const FailpointServer server(model_.path(), store_, {}, GetParam());
    EXPECT_FALSE(server->up());
    const ServerProcess::Exit exit = server->process().AwaitExit();
    EXPECT_EQ(exit.code, kExitBadStart) << exit.errors;
    EXPECT_THAT(exit.errors, AnyOf(HasSubstr("bad_start"), HasSubstr("eta-server: ")));
  }
  const FailpointServer again(model_.path(), store_);
  ASSERT_TRUE(again->up()) << again->process().AwaitExit().errors;
  again->Generate("");
  EXPECT_TRUE(again->status.ok()) << again->status.error_message();
}

TEST_F(FailpointExit, ACommitThatFailsIsNotAcknowledgedAndEndsTheProcess) {
  {
    const FailpointServer server(model_.path(), store_);
    ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
    ASSERT_TRUE(server->Calibrate(SmallCalibration("legal")).has_value());
    HealthListener readiness(
        grpc::CreateChannel(server->address(), grpc::InsecureChannelCredentials()), "readiness");
    EXPECT_EQ(readiness.Next(), HealthStatus::SERVING);
    server.Arm("store.before_commit=fail");
    server->Import(server->Export("legal"));
    EXPECT_THAT(server->status, FailsWith(StatusCode::INTERNAL, "STORE_IO_ERROR"));
    EXPECT_EQ(readiness.Next(), HealthStatus::NOT_SERVING);
    const ServerProcess::Exit exit = server->process().AwaitExit();
    EXPECT_EQ(exit.code, kExitStoreFailed) << exit.errors;
  }
  const FailpointServer again(model_.path(), store_);
  EXPECT_EQ(again->Get("legal").version(), 1) << again->status.error_message();
}

// Killed while it stops: what it acknowledged is stored.
TEST_F(FailpointExit, AKillInTheDrainLosesNothing) {
  {
    const FailpointServer server(model_.path(), store_);
    ASSERT_TRUE(server->up()) << server->process().AwaitExit().errors;
    ASSERT_TRUE(server->Calibrate(SmallCalibration("legal")).has_value());
    server.Arm("drain=kill");
    server->process().Signal(SIGTERM);
    EXPECT_EQ(server->process().AwaitExit().code, -1) << "ended by a signal";
  }
  const FailpointServer again(model_.path(), store_);
  EXPECT_EQ(again->Generate("legal").profile_version(), 1) << again->status.error_message();
}

}  // namespace
}  // namespace eta::testing
