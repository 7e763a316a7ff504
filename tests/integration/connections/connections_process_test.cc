// Connections of the shipped server: more than it has file descriptors for, thousands of idle ones,
// limits by peer, Unix sockets.
#include <sys/resource.h>
#include <sys/stat.h>

#include <algorithm>
#include <csignal>
#include <cstdio>
#include <filesystem>
#include <limits>
#include <thread>

#include "eta/v1/service.grpc.pb.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/health_call.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::IsEmpty;
using ::testing::Not;

// A new connection must be served within 1 s; a long run checks this. Sanitizers and a busy machine
// take longer.
constexpr seconds kServedAgain(kAddressSanitizer ? 20 : 5);

v1::GenerateRequest Answer(int tokens) {
  v1::GenerateRequest request = Ask("Once upon a time");
  request.mutable_stopping()->set_max_tokens(tokens);
  request.mutable_stopping()->set_ignore_eos(true);
  return request;
}

bool HasFile(pid_t process, rlim_t number) {
  std::error_code error;
  return std::filesystem::is_symlink(
      "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number), error);
}

// The lowest free file number, apart from files that are open for a moment, such as those of /proc
// while the server looks at its memory.
rlim_t FirstFreeFile(pid_t process) {
  rlim_t least = std::numeric_limits<rlim_t>::max();
  for (int look = 0; look < 50; ++look) {
    rlim_t number = 0;
    while (HasFile(process, number)) ++number;
    least = std::min(least, number);
    std::this_thread::sleep_for(milliseconds(5));
  }
  return least;
}

class ConnectionsProcessTest : public ::testing::Test {
 protected:
  void Start(const std::vector<std::string>& more, int max_files = 0,
             const std::string& listen = "127.0.0.1:0") {
    std::vector<std::string> flags = {"--model",   model_.path(), "--listen",        listen,
                                      "--threads", "1",           "--kv_pool_bytes", "64MiB"};
    flags.insert(flags.end(), more.begin(), more.end());
    const std::string binary = ETA_BINARY_DIR "/eta-server";
    if (max_files == 0) {
      server_ = std::make_unique<ServerProcess>(binary, flags);
    } else {  // both limits, so that the server cannot raise its own
      flags.insert(
          flags.begin(),
          {"-c", "ulimit -n " + std::to_string(max_files) + " && exec \"$0\" \"$@\"", binary});
      server_ = std::make_unique<ServerProcess>("/bin/sh", flags);
    }
    address_ = server_->AwaitAddress();
    ASSERT_NE(address_, "") << server_->AwaitExit().errors;
    channel_ = OwnConnection(address_);  // before all others, so that Stats can be asked for
    Connections();
  }
  void TearDown() override {
    if (server_ == nullptr) return;
    server_->Signal(SIGTERM);
    const ServerProcess::Exit exit = server_->AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
  }

  grpc::Status NewCall() {
    const auto stub = v1::EtaService::NewStub(OwnConnection(address_));
    ClientCall call(*stub);
    call.Start(Answer(4));
    call.ReadText();
    return call.Finish();
  }
  // Expects that a call over a new connection of gRPC's client is answered: within ten seconds on
  // the busiest machine.
  void ExpectAnswered() {
    const auto begin = std::chrono::steady_clock::now();
    while (!NewCall().ok() && std::chrono::steady_clock::now() - begin < seconds(60)) {
    }
    EXPECT_LE(std::chrono::steady_clock::now() - begin, seconds(10));
  }
  // Expects that a new connection is served soon after `what`. The client tries again at once;
  // gRPC's own waits about a second before it reconnects.
  void ExpectServedAgain(const char* what) const {
    const auto begin = std::chrono::steady_clock::now();
    const auto lasted = [begin] { return std::chrono::steady_clock::now() - begin; };
    for (bool served = false; !served && lasted() < seconds(60);) {
      Http2Peer peer(address_);
      if (!peer.connected()) continue;
      peer.Call(1, kGenerateMethod);
      peer.Message(1, Answer(4).SerializeAsString(), /*end_stream=*/true);
      served = Http2Peer::Header(peer.ReadStream(1), "grpc-status") == "0";
    }
    const auto taken = std::chrono::duration_cast<milliseconds>(lasted());
    std::printf("a new connection is served %ld ms after %s\n", static_cast<long>(taken.count()),
                what);
    EXPECT_LE(taken, LongRun() ? seconds(1) : kServedAgain);
  }
  v1::ConnectionStats Connections() {
    grpc::ClientContext context;
    v1::Stats stats;
    const auto stub = v1::EtaService::NewStub(channel_);
    const grpc::Status status = stub->Stats(&context, {}, &stats);
    EXPECT_TRUE(status.ok()) << status.error_message();
    return stats.connections();
  }
  int OpenAtMost(int count) {
    int open = Connections().open();
    for (int i = 0; i < 3000 && open > count; ++i, open = Connections().open()) {
      std::this_thread::sleep_for(milliseconds(10));
    }
    return open;
  }

  const TinyModel model_;
  const TempFolder folder_;
  std::unique_ptr<ServerProcess> server_;
  std::string address_;
  std::shared_ptr<grpc::Channel> channel_;
};

TEST_F(ConnectionsProcessTest, FiveTimesMoreConnectionsThanFilesAndItAcceptsAgain) {
  constexpr int kFiles = 128;
  ASSERT_NO_FATAL_FAILURE(Start({}, kFiles));
  EXPECT_EQ(Connections().max(), kFiles / 4);
  HealthListener liveness(channel_, "liveness");
  EXPECT_EQ(liveness.Next(), HealthStatus::SERVING);
  const auto stub = v1::EtaService::NewStub(channel_);

  std::vector<std::unique_ptr<Http2Peer>> hostile;
  const auto begin = std::chrono::steady_clock::now();
  const auto lasted = [begin] { return std::chrono::steady_clock::now() - begin; };
  const auto enough = [&] { return Connections().refused_full() > 4 * kFiles; };
  while (lasted() < (LongRun() ? seconds(30) : seconds(2)) ||
         (!enough() && lasted() < seconds(60))) {
    while (hostile.size() < 5 * kFiles) hostile.push_back(std::make_unique<Http2Peer>(address_));
    ClientCall call(*stub);  // existing connections are served meanwhile
    call.Start(Answer(4));
    call.ReadText();
    EXPECT_TRUE(call.Finish().ok());
    hostile.erase(hostile.begin(), hostile.begin() + 50);
  }
  const v1::ConnectionStats full = Connections();
  EXPECT_LE(full.open(), full.max() + 16);
  EXPECT_GT(full.refused_full(), 4 * kFiles);
  EXPECT_EQ(full.refused_no_files(), 0) << "the limit leaves files for everything else";
  EXPECT_EQ(CheckHealth(channel_, "liveness"), HealthStatus::SERVING);

  hostile.clear();
  ExpectServedAgain("the others have left");
  ExpectAnswered();
  EXPECT_LE(OpenAtMost(4), 4);
  EXPECT_EQ(CheckHealth(channel_, "liveness"), HealthStatus::SERVING);

  server_->Signal(SIGTERM);
  const ServerProcess::Exit exit = server_->AwaitExit();
  EXPECT_EQ(exit.code, 0);
  EXPECT_THAT(LogLines(exit.errors, "connections_refused"), Not(IsEmpty()));
  EXPECT_THAT(LogLines(exit.errors, "not_alive"), IsEmpty()) << "full is not deaf";
  server_.reset();
}

TEST_F(ConnectionsProcessTest, WithNoFileLeftItAcceptsAgainWhenFilesComeBack) {
  if (kAddressSanitizer) {
    GTEST_SKIP() << "UBSan takes a process without a file descriptor for one with bad pointers";
  }
  ASSERT_NO_FATAL_FAILURE(Start({}));
  rlimit before{};
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_NOFILE, nullptr, &before), 0);
  rlimit none = before;
  none.rlim_cur = FirstFreeFile(server_->pid());
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_NOFILE, &none, nullptr), 0);
  const auto begin = std::chrono::steady_clock::now();
  do {
    for (int i = 0; i < 100; ++i) Http2Peer(address_).ReadStream(1);  // reads until it is closed
  } while (LongRun() && std::chrono::steady_clock::now() - begin < seconds(30));
  const v1::ConnectionStats without = Connections();
  EXPECT_GE(without.refused_no_files(), 90);
  EXPECT_GE(without.accept_errors(), 90);
  ASSERT_EQ(prlimit(server_->pid(), RLIMIT_NOFILE, &before, nullptr), 0);
  ExpectServedAgain("files came back");
  ExpectAnswered();
  EXPECT_GT(Connections().accepted(), without.accepted());
}

TEST_F(ConnectionsProcessTest, TwoThousandIdleConnectionsAndAHundredStreams) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max_running", "16", "--max_waiting_requests", "200"}));
  const int64_t before = server_->PeakMemory();
  std::vector<std::unique_ptr<Http2Peer>> idle;
  for (int i = 0; i < 2000; ++i) {
    idle.push_back(std::make_unique<Http2Peer>(address_));
    ASSERT_TRUE(idle.back()->connected());
  }
  std::vector<std::unique_ptr<v1::EtaService::Stub>> stubs;
  std::vector<std::unique_ptr<ClientCall>> calls;
  for (int i = 0; i < 100; ++i) {
    if (i % 10 == 0) stubs.push_back(v1::EtaService::NewStub(OwnConnection(address_)));
    calls.push_back(std::make_unique<ClientCall>(*stubs.back()));
    calls.back()->context.set_deadline(std::chrono::system_clock::now() + seconds(120));
    calls.back()->Start(Answer(32));
  }
  EXPECT_GE(Connections().open(), 2001);
  for (const auto& call : calls) {
    call->ReadText();
    const grpc::Status status = call->Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(call->finished.usage().output_tokens(), 32);
  }
  const v1::ConnectionStats stats = Connections();
  EXPECT_EQ(stats.refused_full(), 0);
  EXPECT_EQ(stats.accept_errors(), 0);
  EXPECT_TRUE(NewCall().ok());
  std::printf("2,000 idle connections and 100 streams: %ld KB\n",
              static_cast<long>(server_->PeakMemory() - before));
  calls.clear();
  stubs.clear();
  idle.clear();
  EXPECT_LE(OpenAtMost(4), 4);
}

TEST_F(ConnectionsProcessTest, ConnectionsOfOnePeerAreLimited) {
  ASSERT_NO_FATAL_FAILURE(Start({"--max_connections_per_peer", "8"}));
  std::vector<std::unique_ptr<Http2Peer>> peers;
  for (int i = 0; i < 20; ++i) peers.push_back(std::make_unique<Http2Peer>(address_));
  EXPECT_FALSE(NewCall().ok());
  const v1::ConnectionStats stats = Connections();
  EXPECT_LE(stats.open(), 8);
  EXPECT_GE(stats.refused_peer(), 12);
  peers.clear();
  ExpectAnswered();
}

TEST_F(ConnectionsProcessTest, AUnixSocketIsForItsOwnerAndIsGoneAfterwards) {
  const std::string path = folder_.path() + "/server.sock";
  ASSERT_NO_FATAL_FAILURE(Start({"--socket_mode", "0660"}, 0, "unix:" + path));
  struct stat file {};
  ASSERT_EQ(stat(path.c_str(), &file), 0);
  EXPECT_EQ(file.st_mode & 0777, 0660u);
  EXPECT_TRUE(NewCall().ok());
  EXPECT_EQ(CheckHealth(channel_, "liveness"), HealthStatus::SERVING);
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->AwaitExit().code, 0);
  EXPECT_NE(stat(path.c_str(), &file), 0);
  server_.reset();
}

// A listener that is told to stop closes, so that no client believes it was accepted.
TEST_F(ConnectionsProcessTest, NoConnectionIsTakenOnceTheServerHasDrained) {
  ASSERT_NO_FATAL_FAILURE(Start({}));
  server_->Signal(SIGTERM);
  EXPECT_EQ(server_->AwaitExit().code, 0);
  EXPECT_FALSE(Http2Peer(address_).connected());
  server_.reset();
}

}  // namespace
}  // namespace eta::testing
