// Liveness of the server as it is shipped: red when it no longer takes connections, not when it is
// busy.
#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <csignal>
#include <thread>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/client_call.h"
#include "tests/testing/error_details.h"
#include "tests/testing/health_call.h"
#include "tests/testing/log_lines.h"
#include "tests/testing/server_process.h"

namespace eta::testing {
namespace {

using ::testing::IsEmpty;
using ::testing::Not;

const std::string kServer = ETA_BINARY_DIR "/eta-server";
const std::vector<std::string> kFlags = {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen",
                                         "127.0.0.1:0"};

std::vector<std::string> With(std::vector<std::string> more) {
  more.insert(more.begin(), kFlags.begin(), kFlags.end());
  return more;
}

std::shared_ptr<grpc::Channel> NewChannel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

// Connections that say nothing.
class Connections {
 public:
  Connections(const std::string& address, int count) {
    sockaddr_in to{};
    to.sin_family = AF_INET;
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(address.rfind(':') + 1))));
    for (int i = 0; i < count; ++i) {
      const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
      if (fd < 0) break;
      fds_.push_back(fd);
      connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to));
    }
  }
  ~Connections() {
    for (const int fd : fds_) close(fd);
  }

 private:
  std::vector<int> fds_;
};

TEST(HealthProcess, AServerThatRanOutOfFileDescriptorsSaysThatItIsDeaf) {
  // Both limits, so that the server cannot raise its own.
  std::vector<std::string> arguments = {"-c", "ulimit -n 96 && exec \"$0\" \"$@\"", kServer};
  for (const std::string& flag : With({"--threads", "1", "--self_probe_timeout", "2s"})) {
    arguments.push_back(flag);
  }
  ServerProcess server("/bin/sh", arguments);
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  HealthListener liveness(NewChannel(address), "liveness");
  EXPECT_EQ(liveness.Next(), HealthStatus::SERVING);
  const Connections hostile(address, 300);
  EXPECT_EQ(liveness.Next(), HealthStatus::NOT_SERVING);
  server.Signal(SIGTERM);
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 0);
  EXPECT_THAT(LogLines(exit.errors, "self_probe_failed"), Not(IsEmpty())) << exit.errors;
  EXPECT_THAT(LogLines(exit.errors, "not_alive"), Not(IsEmpty()));
}

TEST(HealthProcess, AFullQueueIsNoReasonToRestart) {
  ServerProcess server(kServer, With({"--max_running", "1", "--max_waiting_requests", "1"}));
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const auto stub = v1::EtaService::NewStub(NewChannel(address));
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
  EXPECT_EQ(CheckHealth(NewChannel(address), "liveness"), HealthStatus::SERVING);
  EXPECT_EQ(CheckHealth(NewChannel(address), "readiness"), HealthStatus::SERVING);
}

}  // namespace
}  // namespace eta::testing
