// How the server's process starts and ends.
#include <fcntl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include "absl/time/clock.h"
#include "absl/time/time.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const std::string kModel = ETA_SOURCE_DIR "/models/eta-27m";

ServerProcess Serve(const std::vector<std::string>& flags) {
  return {ETA_BINARY_DIR "/eta-server", flags};
}

// Expects exit code 2 and one line that names the cause.
void ExpectBadStart(const std::vector<std::string>& flags, const std::string& cause) {
  ServerProcess server = Serve(flags);
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 2) << exit.errors;
  EXPECT_THAT(exit.errors, HasSubstr(cause));
  EXPECT_EQ(std::count(exit.errors.begin(), exit.errors.end(), '\n'), 1) << exit.errors;
}

TEST(Process, SaysInOneLineWhyItDoesNotStart) {
  ExpectBadStart({}, "--model");
  ExpectBadStart({"--model", "/nowhere"}, "/nowhere");
  ExpectBadStart({"--model", kModel, "--nonsense"}, "--nonsense");
  ExpectBadStart({"--model", kModel, "--drain_timeout", "soon"}, "soon");
  ExpectBadStart({"--model", kModel, "--kv_dtype", "int3"}, "--kv_dtype");
  ExpectBadStart({"--model", kModel, "--kv_dtype", "float8_e4m3"}, "kv_dtype: backend cpu");
  ExpectBadStart({"--model", kModel, "--index_dtype", "bfloat16"}, "--index_dtype");
  ExpectBadStart({"--model", kModel, "--index_dtype", "int8"}, "index_dtype: backend cpu");
  ExpectBadStart({"--model", kModel, "--listen", "0.0.0.0:1"}, "--allow_unauthenticated_network");
  ExpectBadStart({"--model", ETA_SOURCE_DIR "/models"}, "config.json");
  ExpectBadStart({"--model", kModel, "--sha256", "config.json=" + std::string(64, '0')},
                 "config.json");
  ExpectBadStart({"--model", kModel, "--stall_timeout", "1s"}, "--stall_timeout");
  ExpectBadStart({"--model", kModel, "--device", "0,1"}, "device: only backend cuda");
  ExpectBadStart({"--model", kModel, "--device", "first"}, "--device");
  ExpectBadStart({"--model", kModel, "--compute", "float32"}, "compute: only backend cuda");
  ExpectBadStart({"--model", kModel, "--kv_pool_fraction", "1.5"}, "--kv_pool_fraction");
  ExpectBadStart({"--model", kModel, "--kv_pool_bytes", "1000TiB"}, "not 1099511627776000");
}

TEST(Process, ReadsFileAndEnvironment) {
  const std::string config = ::testing::TempDir() + "eta-process-test.toml";
  std::ofstream(config) << "model = \"" << kModel << "\"\nlisten = \"127.0.0.1:0\"\n"
                        << "model_name = \"from-file\"\n";
  setenv("ETA_MODEL_NAME", "from-environment", 1);
  setenv("ETA_MAX_OUTPUT_TOKENS", "7", 1);
  ServerProcess server = Serve({"--config", config});
  unsetenv("ETA_MODEL_NAME");
  unsetenv("ETA_MAX_OUTPUT_TOKENS");
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request = Ask("hello");
  request.mutable_stopping()->set_max_tokens(1);
  ClientCall call(*stub);
  call.Start(request);
  EXPECT_EQ(call.Read().started().model(), "from-file");
  call.ReadText();
  EXPECT_TRUE(call.Finish().ok());
  request.mutable_stopping()->set_max_tokens(8);
  EXPECT_EQ(FieldOf(ClientCall(*stub).Refusal(request)), "stopping.max_tokens");
}

TEST(Process, IsNobodysToLookIntoBeforeItReadsItsConfiguration) {
  const TempFolder folder;
  const std::string config = folder.path() + "/config";  // a pipe: opening it waits for a writer
  ASSERT_EQ(mkfifo(config.c_str(), 0600), 0);
  ServerProcess server = Serve({"--config", config});
  const std::string status = "/proc/" + std::to_string(server.pid()) + "/status";
  std::string seen;
  for (int i = 0; i < 2000 && seen.find("NoNewPrivs:\t1") == std::string::npos; ++i) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    seen = ReadFile(status);
  }
  ASSERT_THAT(seen, AllOf(HasSubstr("NoNewPrivs:\t1"), HasSubstr("Umask:\t0077")));
  const int writer = open(config.c_str(), O_WRONLY | O_CLOEXEC);  // opens once the server reads
  EXPECT_EQ(write(writer, "nonsense = 1\n", 13), 13);
  close(writer);
  EXPECT_THAT(server.AwaitExit().errors, HasSubstr("nonsense"));
}

TEST(Process, DrainsOnTheFirstSignalAndHurriesOnTheSecond) {
  ServerProcess server = Serve({"--model", kModel, "--listen", "127.0.0.1:0"});
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "");
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(16000);
  request.mutable_stopping()->set_ignore_eos(true);
  ClientCall running(*stub);
  running.Start(request);
  EXPECT_TRUE(running.Read().has_started());

  server.Signal(SIGTERM);
  grpc::Status status;
  do {  // repeated until the signal has arrived
    request.mutable_stopping()->set_max_tokens(1);
    ClientCall late(*stub);
    late.Start(request);
    late.ReadText();
    status = late.Finish();
  } while (status.ok());
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::UNAVAILABLE, "DRAINING"));
  EXPECT_TRUE(server.Running());

  server.Signal(SIGTERM);
  EXPECT_NE(running.ReadText(), "");
  status = running.Finish();
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::UNAVAILABLE, "DRAINING"));
  EXPECT_EQ(server.AwaitExit().code, 0);
}

TEST(Process, ToBeStoppedAndGoOnIsNoSecondSignal) {
  ServerProcess server = Serve({"--model", kModel, "--listen", "127.0.0.1:0"});
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "");
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  ClientCall running(*stub);
  running.context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(120));
  running.Start(LongAnswer(500));
  EXPECT_TRUE(running.Read().has_started());
  server.Signal(SIGTERM);
  AwaitClosed(*stub);

  server.Signal(SIGSTOP);
  siginfo_t stopped;
  ASSERT_EQ(waitid(P_PID, static_cast<id_t>(server.pid()), &stopped, WSTOPPED | WNOWAIT), 0);
  server.Signal(SIGCONT);
  running.ReadText();
  const grpc::Status status = running.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(running.finished.usage().output_tokens(), 500);
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 0);
  EXPECT_TRUE(LogLines(exit.errors, "drain_hurried").empty()) << exit.errors;
}

TEST(Process, FiguresCanBeReadWhenTheLastCallHasEnded) {
  ServerProcess server =
      Serve({"--model", kModel, "--listen", "127.0.0.1:0", "--metrics_listen", "127.0.0.1:0"});
  const std::string url = server.AwaitLine("metrics on ");
  const int port = std::stoi(url.substr(url.rfind(':') + 1));
  ASSERT_NE(server.AwaitAddress(), "");
  server.Signal(SIGTERM);
  std::string last_read;
  while (HttpGet(port, "/metrics").status == 200) {
    last_read = absl::FormatTime("%Y-%m-%dT%H:%M:%E6SZ", absl::Now(), absl::UTCTimeZone());
  }
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 0);
  const auto drained = LogLines(exit.errors, "drain_end");
  ASSERT_EQ(drained.size(), 1u) << exit.errors;
  EXPECT_GT(last_read, std::string(drained[0]["time"]));
}

}  // namespace
}  // namespace eta::testing
