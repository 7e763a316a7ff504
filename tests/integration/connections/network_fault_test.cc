// Clients behind a bad network. Whatever happens to the connection, the server gives back what the
// call held, answers are whole or fail, and the next call is good. Times are printed, and compared
// with the promises only in a long run, since a busy machine is slow.
#include <algorithm>
#include <atomic>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iostream>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "gmock/gmock.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/net/tcp_proxy.h"
#include "tests/testing/process/failpoint_server.h"
#include "tests/testing/process/live_figures.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/sanitized.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::AnyOf;

// The promised time until blocks are free: after a reset, and after keepalive has found a peer
// lost.
constexpr seconds kFreeAfterReset{1};
constexpr seconds kFreeAfterKeepalive{5};

void ExpectPromised(milliseconds taken, milliseconds promised) {
  if (LongRun() && !kAddressSanitizer) {
    EXPECT_LE(taken, promised);
  }
}

// A server with a keepalive of seconds and slow steps, and its connections.
class NetworkFault : public ::testing::Test {
 protected:
  NetworkFault() : NetworkFault({"--keepalive_interval", "1s"}, milliseconds(5)) {}
  NetworkFault(std::vector<std::string> flags, milliseconds step)
      : server_(model_.path(), "", Patient(std::move(flags)),
                "engine.step=delay:" + std::to_string(step.count())) {}

  void SetUp() override { ASSERT_TRUE(server_->up()) << server_->process().AwaitExit().errors; }
  void TearDown() override {
    AwaitIdle(*server_);
    Straight(4);
    server_->process().Signal(SIGTERM);
    const ServerProcess::Exit exit = server_->process().AwaitExit();
    EXPECT_EQ(exit.code, 0) << "every call has ended";
    // A long call did not end by itself, nor because its reader was slow, which is allowed an hour
    // here. Its connection was given up.
    int cut = 0;
    for (const nlohmann::json& line : LogLines(exit.errors, "call_end")) {
      if (line.value("request_id", "").rfind("long-", 0) != 0) continue;
      ++cut;
      EXPECT_EQ(line["code"], "CANCELLED") << line;
      EXPECT_LT(line.value("output_tokens", kLong), kLong) << line;
    }
    EXPECT_EQ(cut, begun_);
  }

  std::unique_ptr<v1::EtaService::Stub> Through() const {
    return v1::EtaService::NewStub(OwnConnection(proxy_.address()));
  }
  static v1::GenerateRequest Answer(int tokens) {
    v1::GenerateRequest request = Ask("Once upon a time");
    request.mutable_stopping()->set_max_tokens(tokens);
    request.mutable_stopping()->set_ignore_eos(true);
    request.mutable_sampling()->set_seed(7);
    return request;
  }
  // Begins an answer that nobody waits for, and reads its first part.
  void Begin(ClientCall& call) {
    v1::GenerateRequest request = Answer(kLong);
    request.set_request_id("long-" + std::to_string(begun_++));
    call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
    call.Start(request);
    EXPECT_TRUE(call.Read().has_started());
    EXPECT_TRUE(call.Read().has_delta());
  }
  std::string Straight(int tokens) {
    // Each fault meets a fresh connection.
    const auto stub = v1::EtaService::NewStub(OwnConnection(server_->address()));
    ClientCall call(*stub);
    call.Start(Answer(tokens));
    const std::string text = call.ReadText();
    const grpc::Status status = call.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    return text;
  }
  void ExpectLost(ClientCall& call) {
    call.ReadText();
    EXPECT_EQ(call.Finish().error_code(), StatusCode::UNAVAILABLE);
  }

  // Flags with which a slow reader is not cut off.
  static std::vector<std::string> Patient(std::vector<std::string> flags) {
    flags.insert(flags.end(), {"--slow_reader_timeout", "1h", "--stall_timeout", "2h"});
    return flags;
  }

  static constexpr int kLong = 8000;       // tokens: 8,000 steps
  static constexpr seconds kKeepalive{2};  // 1 s, and as long for the answer

  const TinyModel model_{{.max_context = 8192}};
  const FailpointServer server_;
  TcpProxy proxy_{server_->address()};
  int begun_ = 0;
};

// bad input: Connections | TCP reset in the middle | as a client that vanishes
TEST_F(NetworkFault, ResetsInTheMiddleOfAnswers) {
  milliseconds worst{0};
  const int rounds = Rounds(12, 200);
  for (int i = 0; i < rounds; ++i) {
    const auto stub = Through();
    ClientCall call(*stub);
    Begin(call);
    proxy_.ResetAll();
    worst = std::max(worst, AwaitIdle(*server_));
    ExpectLost(call);
  }
  ExpectPromised(worst, kFreeAfterReset);
  std::cout << rounds << " resets: KV blocks free after " << worst.count() << " ms at most\n";
}

// bad input: Connections | a half-open peer | found by keepalive and freed, within 45 s
TEST_F(NetworkFault, BlackHolesAreFoundByKeepalive) {
  milliseconds worst{0};
  const int rounds = Rounds(1, 5);
  const int calls = Rounds(3, 10);
  for (int i = 0; i < rounds; ++i) {
    std::vector<std::unique_ptr<v1::EtaService::Stub>> stubs;
    std::vector<std::unique_ptr<ClientCall>> lost;
    for (int j = 0; j < calls; ++j) {
      stubs.push_back(Through());
      lost.push_back(std::make_unique<ClientCall>(*stubs.back()));
      Begin(*lost.back());
    }
    proxy_.BlackHole();
    worst = std::max(worst, AwaitIdle(*server_));
    proxy_.ResetAll();  // what a client's own keepalive would do
    for (const auto& call : lost) ExpectLost(*call);
    proxy_.Mend();
  }
  ExpectPromised(worst, kKeepalive + kFreeAfterKeepalive);
  std::cout << rounds * calls << " black holes, keepalive 1 s + 1 s: KV blocks free after "
            << worst.count() << " ms at most\n";
}

class ShippedKeepalive : public NetworkFault {
 protected:
  ShippedKeepalive() : NetworkFault({}, milliseconds(20)) {}
};

TEST_F(ShippedKeepalive, FindsBlackHolesWithinAMinute) {
  if (!LongRun()) GTEST_SKIP() << "part of the long run (ETA_TEST_LONG)";
  const auto stub = Through();
  ClientCall call(*stub);
  Begin(call);
  proxy_.BlackHole();
  const milliseconds taken = AwaitIdle(*server_);
  proxy_.ResetAll();
  ExpectLost(call);
  EXPECT_LT(taken, seconds(60));
  ExpectPromised(taken, seconds(30 + 10) + kFreeAfterKeepalive);
  std::cout << "a black hole, keepalive as shipped: KV blocks free after " << taken.count()
            << " ms\n";
}

TEST_F(NetworkFault, ClientsThatVanishWithoutAWordAreFoundByKeepalive) {
  milliseconds worst{0};
  for (int i = 0; i < Rounds(1, 10); ++i) {
    const auto stub = Through();
    ClientCall call(*stub);
    Begin(call);
    proxy_.LoseClients();
    worst = std::max(worst, AwaitIdle(*server_));
    ExpectLost(call);
  }
  ExpectPromised(worst, kKeepalive + kFreeAfterKeepalive);
  std::cout << "half-open peers: KV blocks free after " << worst.count() << " ms at most\n";
}

TEST_F(NetworkFault, SlowAndTornLinksCarryWholeAnswersAndHoldNoBlocks) {
  const std::string text = Straight(60);
  ASSERT_NE(text, "");
  milliseconds worst{0};
  for (const LinkFaults& faults :
       {LinkFaults{.latency = milliseconds(20), .jitter = milliseconds(10)},
        LinkFaults{.piece_bytes = 7},
        LinkFaults{.piece_bytes = 512, .bytes_per_second = 64000 / 8}}) {
    proxy_.SetFaults(faults);
    const auto stub = Through();
    ClientCall call(*stub);
    call.context.set_deadline(std::chrono::system_clock::now() + std::chrono::minutes(5));
    call.Start(Answer(60));
    EXPECT_EQ(call.ReadText(), text);
    const grpc::Status status = call.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
    EXPECT_EQ(call.finished.usage().output_tokens(), 60);
    ClientCall left(*stub);
    Begin(left);
    proxy_.ResetAll();
    worst = std::max(worst, AwaitIdle(*server_));
    ExpectLost(left);
  }
  ExpectPromised(worst, kFreeAfterReset);
  std::cout
      << "slow and torn links, 64 kbit/s the slowest, cut in the middle of answers: KV blocks "
      << "free after " << worst.count() << " ms at most\n";
}

// The client's stream is cut after any number of bytes. The client has the whole answer with its
// end, or an error.
TEST_F(NetworkFault, AnswersCutAfterAnyByteAreWholeOrFail) {
  const std::string text = Straight(20);
  std::mt19937 random(11);
  int whole = 0;
  const int rounds = Rounds(20, 200);
  for (int i = 0; i < rounds; ++i) {
    proxy_.SetFaults({.reset_after = static_cast<int64_t>(random() % 4000)});
    const auto stub = Through();
    ClientCall call(*stub);
    call.Start(Answer(20));
    const std::string got = call.ReadText();
    const grpc::Status status = call.Finish();
    if (status.ok()) {
      ++whole;
      EXPECT_EQ(got, text);
    } else {
      EXPECT_EQ(status.error_code(), StatusCode::UNAVAILABLE) << status.error_message();
      EXPECT_EQ(text.rfind(got, 0), 0u) << "what came is the beginning";
    }
    proxy_.ResetAll();
  }
  EXPECT_GT(whole, 0);
  EXPECT_LT(whole, rounds);
}

// network_loss.sh runs this in a network that loses three packets of ten.
using NetworkLoss = NetworkFault;

TEST_F(NetworkLoss, AMinuteOfItLeavesNothingBehind) {
  const char* const file = std::getenv("ETA_TEST_LOSS");  // NOLINT(concurrency-mt-unsafe)
  if (file == nullptr) GTEST_SKIP() << "run by tests/integration/connections/network_loss.sh";
  // The test writes the file; then the script begins or ends the loss and removes the file.
  const auto turn = [file] {
    std::ofstream(file).close();
    while (std::filesystem::exists(file)) std::this_thread::sleep_for(milliseconds(1));
  };
  const std::string text = Straight(20);
  turn();
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(60);
  std::atomic<int> whole = 0;
  std::atomic<int> lost = 0;
  std::vector<std::thread> clients;
  for (int i = 0; i < 8; ++i) {
    clients.emplace_back([&] {
      while (std::chrono::steady_clock::now() < end) {
        const auto stub = Through();
        ClientCall call(*stub);
        call.Start(Answer(20));
        const std::string got = call.ReadText();
        const grpc::Status status = call.Finish();
        ++(status.ok() ? whole : lost);
        if (status.ok()) {
          EXPECT_EQ(got, text);
        } else {
          EXPECT_THAT(status.error_code(),
                      AnyOf(StatusCode::UNAVAILABLE, StatusCode::DEADLINE_EXCEEDED))
              << status.error_message();
        }
      }
    });
  }
  for (std::thread& client : clients) client.join();
  EXPECT_GT(whole, 0);
  turn();
  // If a client's last packets were lost, the server learns of its end by keepalive.
  const milliseconds taken = AwaitIdle(*server_);
  ExpectPromised(taken, kKeepalive + kFreeAfterReset);
  std::cout << "30 % of packets lost for a minute: " << whole << " answers, " << lost
            << " calls lost; KV blocks free after " << taken.count() << " ms\n";
}

}  // namespace
}  // namespace eta::testing
