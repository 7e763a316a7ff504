// Liveness of the shipped server: it stays green while the server is busy. (Full:
// connections_process_test.cc. No longer accepting connections, which turns it red:
// self_probe_test.cc.)
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

const std::string kServer = ETA_BINARY_DIR "/eta-server";
const std::vector<std::string> kFlags = {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen",
                                         "127.0.0.1:0"};

std::vector<std::string> With(std::vector<std::string> more) {
  more.insert(more.begin(), kFlags.begin(), kFlags.end());
  return more;
}

TEST(HealthProcess, AFullQueueIsNoReasonToRestart) {
  ServerProcess server(kServer, With({"--max_running", "1", "--max_waiting_requests", "1"}));
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const auto stub = v1::EtaService::NewStub(OwnConnection(address));
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(8000);
  request.mutable_stopping()->set_ignore_eos(true);
  ClientCall running(*stub);
  running.Start(request);
  EXPECT_TRUE(running.Read().has_started());
  ClientCall waiting(*stub);
  waiting.Start(request);
  grpc::Status status;
  do {
    ClientCall more(*stub);
    more.context.set_deadline(std::chrono::system_clock::now() + std::chrono::milliseconds(200));
    more.Start(request);
    more.Read();
    status = more.Finish();
  } while (ReasonOf(status) != "QUEUE_FULL");
  EXPECT_EQ(CheckHealth(OwnConnection(address), "liveness"), HealthStatus::SERVING);
  EXPECT_EQ(CheckHealth(OwnConnection(address), "readiness"), HealthStatus::SERVING);
}

}  // namespace
}  // namespace eta::testing
