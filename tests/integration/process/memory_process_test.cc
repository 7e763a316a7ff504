// The built server in a control group of its own. The test moves the group's limit, and the
// readings are the kernel's. It needs a machine on which the test may make control groups (version
// 1).
#include <signal.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <fstream>
#include <memory>
#include <string>
#include <thread>

#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

class MemoryProcessTest : public ::testing::Test {
 protected:
  void SetUp() override {
    std::error_code error;
    if (!std::filesystem::create_directory(group_, error) ||
        !std::filesystem::exists(group_ + "/memory.limit_in_bytes")) {
      GTEST_SKIP() << "no control groups can be made here";
    }
    const std::string enter = "echo $$ > \"$0\"/cgroup.procs && exec \"$@\"";
    server_ = std::make_unique<ServerProcess>(
        "/bin/sh",
        std::vector<std::string>{"-c", enter, group_, ETA_BINARY_DIR "/eta-server", "--model",
                                 ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0",
                                 "--kv_pool_bytes", "64MiB", "--threads", "1"});
    const std::string address = server_->AwaitAddress();
    ASSERT_NE(address, "");
    const auto channel = grpc::CreateChannel(address, grpc::InsecureChannelCredentials());
    stub_ = v1::EtaService::NewStub(channel);
    stats_ = v1::EtaService::NewStub(channel);
  }
  void TearDown() override {
    server_.reset();
    std::error_code error;
    for (int i = 0; i < 100 && !std::filesystem::remove(group_, error) && error; ++i) {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
  }

  int64_t Read(const std::string& file, const std::string& key = "") const {
    std::ifstream in(group_ + "/" + file);
    std::string name;
    int64_t value = 0;
    if (key.empty()) {
      in >> value;
      return value;
    }
    while (in >> name >> value) {
      if (name == key) return value;
    }
    return 0;
  }
  v1::PressureStats Pressure() {
    grpc::ClientContext context;
    v1::Stats stats;
    EXPECT_TRUE(stats_->Stats(&context, v1::StatsRequest(), &stats).ok());
    return stats.pressure();
  }
  // Moves the limit to where what is used now is such a share of it, until the server says so.
  ::testing::AssertionResult Squeeze(double share, v1::Pressure level) {
    for (int i = 0; i < 60; ++i) {
      const int64_t used =
          Read("memory.usage_in_bytes") - Read("memory.stat", "total_inactive_file");
      std::ofstream(group_ + "/memory.limit_in_bytes")
          << static_cast<int64_t>(static_cast<double>(used) / share);
      std::this_thread::sleep_for(std::chrono::milliseconds(300));
      if (Pressure().pressure() == level) return ::testing::AssertionSuccess();
    }
    return ::testing::AssertionFailure()
           << "never " << v1::Pressure_Name(level) << " but " << Pressure().ShortDebugString();
  }
  grpc::Status Generate() {
    v1::GenerateRequest request = Ask("Once upon a time");
    request.mutable_stopping()->set_max_tokens(4);
    ClientCall call(*stub_);
    call.Start(request);
    call.ReadText();
    return call.Finish();
  }

  const std::string group_ = "/sys/fs/cgroup/memory/eta-test-" + std::to_string(getpid());
  std::unique_ptr<ServerProcess> server_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
  std::unique_ptr<v1::EtaService::Stub> stats_;
};

TEST_F(MemoryProcessTest, ClimbsAndComesDownByTheKernelsReadings) {
  EXPECT_EQ(Pressure().pressure(), v1::PRESSURE_NONE);
  EXPECT_TRUE(Generate().ok());
  EXPECT_TRUE(Squeeze(0.965, v1::PRESSURE_SHORT));
  const grpc::Status refused = Generate();
  EXPECT_EQ(ReasonOf(refused), "MEMORY_PRESSURE");
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(refused).has_value());
  EXPECT_TRUE(Squeeze(0.5, v1::PRESSURE_NONE));
  EXPECT_TRUE(Generate().ok());
  server_->Signal(SIGTERM);
  const ServerProcess::Exit exit = server_->AwaitExit();
  EXPECT_EQ(exit.code, 0) << exit.errors;
  EXPECT_THAT(exit.errors, HasSubstr("\"pressure\":\"short\""));
  EXPECT_THAT(exit.errors, HasSubstr("memory_ok"));
}

TEST_F(MemoryProcessTest, WhereItIsCriticalTheAnswerThatRunsEnds) {
  ClientCall running(*stub_);
  running.context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
  running.Start(LongAnswer(6000));
  EXPECT_TRUE(running.Read().has_started());
  EXPECT_TRUE(running.Read().has_delta());
  EXPECT_TRUE(Squeeze(0.985, v1::PRESSURE_CRITICAL));
  running.ReadText();
  const grpc::Status ended = running.Finish();
  EXPECT_THAT(ended, FailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"));
  EXPECT_NE(MetadataOf(ended, "output_tokens"), "");
  EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(ended).has_value());
  EXPECT_GE(Pressure().streams_ended(), 1);
  EXPECT_TRUE(Squeeze(0.5, v1::PRESSURE_NONE));
  EXPECT_TRUE(Generate().ok());
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->AwaitExit().code, 0);
}

}  // namespace
}  // namespace eta::testing
