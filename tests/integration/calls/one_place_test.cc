// What an answer that has ended, or waits for its reader, leaves to the next one.
#include <algorithm>
#include <csignal>
#include <memory>
#include <string>
#include <thread>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/process/live_figures.h"
#include "tests/testing/process/log_lines.h"
#include "tests/testing/process/long_run.h"
#include "tests/testing/process/metric_samples.h"
#include "tests/testing/process/sanitized.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using ::testing::SizeIs;

// Most tokens of a long answer that is cut off at once, on a fast machine.
constexpr int kMostTokens = 4000;

// Nothing may be held a second later. Sanitizers and a busy machine take longer, and the rest of a
// long answer longer still.
seconds IdleWithin() {
  if (kAddressSanitizer) return seconds(60);
  return LongRun() ? seconds(1) : seconds(10);
}

// A server that computes one answer at a time. The next one begins when that is over or paused.
class OnePlaceTest : public ::testing::Test {
 protected:
  static constexpr milliseconds kSlowReaderTimeout{3000};

  void SetUp() override {
    const std::string url = server_.AwaitLine("metrics on ");
    metrics_port_ = std::stoi("0" + url.substr(url.rfind(':') + 1));
    address_ = server_.AwaitAddress();
    ASSERT_NE(address_, "") << server_.AwaitExit().errors;
  }
  double Counted(const std::string& metric, const MetricLabels& labels) const {
    return MetricSamples(HttpGet(metrics_port_, "/metrics").body).Sum(metric, labels);
  }
  // Stops the server and returns the log lines of calls that ended for this reason.
  std::vector<nlohmann::json> StopAndFind(const std::string& reason) {
    server_.Signal(SIGTERM);
    const ServerProcess::Exit exit = server_.AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
    std::vector<nlohmann::json> found;
    for (nlohmann::json& line : LogLines(exit.errors, "call_end")) {
      if (line.value("reason", "") == reason) found.push_back(std::move(line));
    }
    return found;
  }
  // The output tokens of all answers so far.
  int64_t Tokens() const { return LiveStats(address_).load().output_tokens(); }
  // Expects that the long answer that began at `tokens` was given up: no KV block is in use, and
  // the engine did not work on to its end.
  void ExpectGivenUp(int64_t tokens) const {
    EXPECT_LE(AwaitIdle(address_), IdleWithin());
    EXPECT_LT(Tokens() - tokens, kMostTokens);
  }
  void ExpectAnswered() const {
    const auto stub = NewStub();
    ClientCall call(*stub);  // must not wait for a long answer before it
    v1::GenerateRequest request = Ask("next");
    request.mutable_stopping()->set_max_tokens(1);
    call.Start(request);
    call.ReadText();
    const grpc::Status status = call.Finish();
    EXPECT_TRUE(status.ok()) << status.error_message();
  }
  std::unique_ptr<v1::EtaService::Stub> NewStub() const {
    return v1::EtaService::NewStub(OwnConnection(address_));
  }

  ServerProcess server_{
      ETA_BINARY_DIR "/eta-server",
      {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0", "--metrics_listen",
       "127.0.0.1:0", "--max_running", "1", "--slow_reader_timeout",
       std::to_string(kSlowReaderTimeout.count()) + "ms"}};
  int metrics_port_ = 0;
  std::string address_;
};

TEST_F(OnePlaceTest, ADeadlineThatPassesInTheMiddleEndsTheWork) {
  Http2Peer peer(address_);  // not gRPC's client, which would end the call itself
  ASSERT_TRUE(peer.connected());
  peer.Call(1, kGenerateMethod, {{"grpc-timeout", "1S"}});
  peer.Message(1, LongAnswer().SerializeAsString(), /*end_stream=*/true);
  peer.Widen(1, 10 << 20);  // only the deadline ends it
  const auto frames = peer.ReadStream(1);
  EXPECT_TRUE(std::any_of(frames.begin(), frames.end(),
                          [](const auto& frame) { return frame.type == Http2Peer::kData; }));
  EXPECT_EQ(Http2Peer::Header(frames, "grpc-status"),
            std::to_string(StatusCode::DEADLINE_EXCEEDED));
  ExpectGivenUp(0);
  ExpectAnswered();
}

TEST_F(OnePlaceTest, ClientsThatCancelOrVanishAreCountedAndGiveBackWhatTheyHeld) {
  {
    const auto stub = NewStub();
    ClientCall call(*stub);
    call.Start(LongAnswer());
    EXPECT_TRUE(call.Read().has_started());
    EXPECT_TRUE(call.Read().has_delta());
    call.context.TryCancel();
    call.ReadText();
    EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
  }
  ExpectGivenUp(0);
  const int64_t tokens = Tokens();
  Http2Peer peer(address_);
  ASSERT_TRUE(peer.connected());
  peer.Call(1, kGenerateMethod);
  peer.Message(1, LongAnswer().SerializeAsString(), /*end_stream=*/true);
  while (Tokens() == tokens && !HasFailure()) {
    std::this_thread::sleep_for(milliseconds(2));
  }
  peer.Vanish();
  ExpectGivenUp(tokens);
  ExpectAnswered();
  const auto counted = [this] {
    return Counted("eta_requests_cancelled_total", {{"stage", "decode"}});
  };
  for (int i = 0; i < 1000 && counted() < 2; ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_EQ(counted(), 2);
  EXPECT_EQ(Counted("eta_requests_total", {{"code", "CANCELLED"}}), 2);
  const auto lines = StopAndFind("CLIENT_CANCELLED");
  EXPECT_THAT(lines, SizeIs(2));
  for (const nlohmann::json& line : lines) {
    EXPECT_EQ(line["code"], "CANCELLED");
    EXPECT_GT(line["output_tokens"], 0);
    EXPECT_LT(line["output_tokens"], kMostTokens);
  }
}

TEST_F(OnePlaceTest, AReaderThatComesBackAfterItWasCutOffIsToldWhy) {
  v1::GenerateRequest chatty = LongAnswer();
  chatty.mutable_output()->set_logprobs(20);
  Http2Peer slow(address_);
  ASSERT_TRUE(slow.connected());
  slow.Call(1, kGenerateMethod, {{"grpc-timeout", "60S"}});
  slow.Message(1, chatty.SerializeAsString(), /*end_stream=*/true);
  std::this_thread::sleep_for(milliseconds(200));  // so that this call comes first

  const auto stub = NewStub();
  ClientCall next(*stub);
  v1::GenerateRequest request = Ask("next");
  request.mutable_stopping()->set_max_tokens(1);
  next.Start(request);
  EXPECT_TRUE(next.Read().has_started());  // so the slow reader has just been paused
  next.ReadText();
  EXPECT_TRUE(next.Finish().ok());
  // One timeout passes before the work is given up, and another before what is left to send is.
  std::this_thread::sleep_for(kSlowReaderTimeout * 3 / 2);
  slow.Widen(1, 10 << 20);
  const auto frames = slow.ReadStream(1);
  EXPECT_EQ(Http2Peer::Header(frames, "grpc-status"),
            std::to_string(StatusCode::RESOURCE_EXHAUSTED));
  EXPECT_EQ(Http2Peer::Header(frames, "grpc-message"), "the client reads too slowly");
  EXPECT_EQ(Counted("eta_requests_failed_total", {{"reason", "slow_consumer"}}), 1);
  const auto lines = StopAndFind("SLOW_CONSUMER");
  ASSERT_THAT(lines, SizeIs(1));
  EXPECT_EQ(lines[0]["code"], "RESOURCE_EXHAUSTED");
}

}  // namespace
}  // namespace eta::testing
