// What an answer that is over, or waits for its reader, leaves to the next one.
#include <algorithm>
#include <memory>
#include <string>
#include <thread>

#include "grpcpp/create_channel.h"
#include "gtest/gtest.h"
#include "tests/testing/client_call.h"
#include "tests/testing/http2_peer.h"
#include "tests/testing/server_process.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;

// A server that computes one answer at a time: the next starts when the last is over or paused.
class OnePlaceTest : public ::testing::Test {
 protected:
  static constexpr milliseconds kSlowReaderTimeout{3000};

  void SetUp() override {
    address_ = server_.AwaitAddress();
    ASSERT_NE(address_, "") << server_.AwaitExit().errors;
  }
  // On a connection of its own.
  std::unique_ptr<v1::EtaService::Stub> NewStub() const {
    grpc::ChannelArguments arguments;
    arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
    return v1::EtaService::NewStub(
        grpc::CreateCustomChannel(address_, grpc::InsecureChannelCredentials(), arguments));
  }

  ServerProcess server_{
      ETA_BINARY_DIR "/eta-server",
      {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0", "--max_running", "1",
       "--slow_reader_timeout", std::to_string(kSlowReaderTimeout.count()) + "ms"}};
  std::string address_;
};

TEST_F(OnePlaceTest, ADeadlineThatPassesInTheMiddleEndsTheWork) {
  Http2Peer peer(address_);  // no library that would end the call itself
  ASSERT_TRUE(peer.connected());
  peer.Call(1, kGenerateMethod, {{"grpc-timeout", "1S"}});
  peer.Message(1, LongAnswer().SerializeAsString(), /*end_stream=*/true);
  const auto frames = peer.ReadStream(1);
  EXPECT_TRUE(std::any_of(frames.begin(), frames.end(),
                          [](const auto& frame) { return frame.type == Http2Peer::kData; }));
  EXPECT_EQ(Http2Peer::Header(frames, "grpc-status"),
            std::to_string(StatusCode::DEADLINE_EXCEEDED));

  const auto stub = NewStub();
  ClientCall next(*stub);  // the whole long answer would take longer than this may wait
  v1::GenerateRequest request = Ask("next");
  request.mutable_stopping()->set_max_tokens(1);
  next.Start(request);
  next.ReadText();
  const grpc::Status status = next.Finish();
  EXPECT_TRUE(status.ok()) << status.error_message();
}

TEST_F(OnePlaceTest, AReaderThatComesBackAfterItWasCutOffIsToldWhy) {
  v1::GenerateRequest chatty = LongAnswer();
  chatty.mutable_output()->set_logprobs(20);
  Http2Peer slow(address_);
  ASSERT_TRUE(slow.connected());
  slow.Call(1, kGenerateMethod, {{"grpc-timeout", "60S"}});
  slow.Message(1, chatty.SerializeAsString(), /*end_stream=*/true);
  std::this_thread::sleep_for(milliseconds(200));  // it comes first

  const auto stub = NewStub();
  ClientCall next(*stub);
  v1::GenerateRequest request = Ask("next");
  request.mutable_stopping()->set_max_tokens(1);
  next.Start(request);
  EXPECT_TRUE(next.Read().has_started());  // so the slow reader was paused just now
  next.ReadText();
  EXPECT_TRUE(next.Finish().ok());
  // The work is given up after one timeout, what is left to send after another.
  std::this_thread::sleep_for(kSlowReaderTimeout * 3 / 2);
  slow.Widen(1, 10 << 20);
  const auto frames = slow.ReadStream(1);
  EXPECT_EQ(Http2Peer::Header(frames, "grpc-status"),
            std::to_string(StatusCode::RESOURCE_EXHAUSTED));
  EXPECT_EQ(Http2Peer::Header(frames, "grpc-message"), "the client reads too slowly");
}

}  // namespace
}  // namespace eta::testing
