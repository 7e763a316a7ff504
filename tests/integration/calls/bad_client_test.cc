// Clients of the built server that ask for too much or for too early an end, vanish, or do not
// read. Every case gets its exact answer.
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "tests/testing/base/eventually.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/net/http_get.h"
#include "tests/testing/process/live_figures.h"
#include "tests/testing/process/metric_samples.h"
#include "tests/testing/service/bad_input_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;

class BadClientTest : public BadInputTest {
 protected:
  // The number of calls that the server counts as ended for this reason.
  static double Counted(const std::string& reason) {
    return MetricSamples(HttpGet(metrics_port_, "/metrics").body)
        .Sum("eta_requests_failed_total", {{"reason", reason}});
  }
};

TEST_F(BadClientTest, MoreRequestsThanFit) {
  constexpr int kCalls = 12;
  std::vector<std::unique_ptr<ClientCall>> calls;
  std::vector<grpc::Status> statuses(kCalls);
  std::vector<std::thread> readers;
  for (int i = 0; i < kCalls; ++i) {
    calls.push_back(std::make_unique<ClientCall>(*stub_));
    readers.emplace_back([call = calls.back().get(), &status = statuses[i]] {
      call->Start(LongAnswer());
      call->ReadText();
      status = call->Finish();
    });
  }
  std::this_thread::sleep_for(seconds(1));  // time for refusals, which come at once
  const auto begin = [](Http2Peer& peer, uint32_t stream) {
    peer.Call(stream, kGenerateMethod, {{"grpc-timeout", "20S"}});
    peer.Message(stream, LongAnswer().SerializeAsString(), /*end_stream=*/true);
  };
  Http2Peer filler(*address_), peer(*address_);
  ASSERT_TRUE(filler.connected() && peer.connected());
  for (const uint32_t stream : {1u, 3u, 5u, 7u}) begin(filler, stream);
  for (int i = 0; i < 1000 && LiveStats(*address_).load().waiting() < 4; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  begin(peer, 1);
  const auto frames = peer.ReadStream(1);
  filler.Vanish();
  EXPECT_EQ(Http2Peer::Header(frames, "grpc-message"), "the queue is full");
  EXPECT_EQ(frames.size(), 1u) << "trailers alone, no header before them";
  for (const auto& call : calls) call->context.TryCancel();
  for (std::thread& reader : readers) reader.join();
  int refused = 0;
  for (int i = 0; i < kCalls; ++i) {
    const grpc::Status& status = statuses[i];
    if (status.error_code() != StatusCode::RESOURCE_EXHAUSTED) continue;
    ++refused;
    EXPECT_EQ(ReasonOf(status), "QUEUE_FULL");
    EXPECT_TRUE(DetailOf<google::rpc::RetryInfo>(status).has_value());
    EXPECT_NE(calls[i]->Trailer("grpc-retry-pushback-ms"), "");
  }
  EXPECT_GE(refused, kCalls - 8) << "4 run and 4 wait";
  AwaitIdle(*address_);
}

TEST_F(BadClientTest, DeadlinesThatHavePassedCostNoStep) {
  AwaitIdle(*address_);
  const int64_t steps = LiveStats(*address_).load().steps();
  Http2Peer peer(*address_);
  ASSERT_TRUE(peer.connected());
  peer.Call(1, kGenerateMethod, {{"grpc-timeout", "1n"}});
  std::this_thread::sleep_for(milliseconds(50));
  peer.Message(1, LongAnswer().SerializeAsString(), /*end_stream=*/true);
  EXPECT_EQ(Http2Peer::Header(peer.ReadStream(1), "grpc-status"),
            std::to_string(StatusCode::DEADLINE_EXCEEDED));
  EXPECT_EQ(LiveStats(*address_).load().steps(), steps);
}

TEST_F(BadClientTest, DeadlinesTooShortForTheWork) {
  const auto prompt_of = [](int tokens) {
    v1::GenerateRequest request;
    for (int i = 0; i < tokens; ++i) request.mutable_token_ids()->add_ids(300 + i % 7000);
    request.mutable_stopping()->set_max_tokens(4);
    return request;
  };
  EXPECT_TRUE(Answer(prompt_of(300)).ok()) << "now the server knows how fast it is";
  ClientCall call(*stub_);
  call.context.set_deadline(system_clock::now() + milliseconds(400));
  call.Start(prompt_of(16'000));
  call.ReadText();
  EXPECT_THAT(call.Finish(), FailsWith(StatusCode::RESOURCE_EXHAUSTED, "DEADLINE_TOO_SHORT"));
}

TEST_F(BadClientTest, DeadlinesTooShortForTheWaitForASlot) {
  std::vector<std::unique_ptr<ClientCall>> calls;
  const auto start = [&] {
    calls.push_back(std::make_unique<ClientCall>(*stub_));
    calls.back()->Start(LongAnswer());
  };
  const auto has_slot = [](ClientCall& call) {
    EXPECT_TRUE(call.Read().has_started());
    return call.Read().has_delta();
  };
  for (int i = 0; i < 4; ++i) {
    start();
    EXPECT_TRUE(has_slot(*calls.back()));
  }
  start();
  std::this_thread::sleep_for(seconds(2));
  calls.front()->context.TryCancel();
  EXPECT_TRUE(has_slot(*calls.back())) << "now the server knows how often one comes free";
  ClientCall late(*stub_);
  late.context.set_deadline(system_clock::now() + milliseconds(500));
  const grpc::Status status = late.Refusal(LongAnswer());
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "DEADLINE_TOO_SHORT"));
  for (const auto& call : calls) {
    call->context.TryCancel();
    call->ReadText();
    EXPECT_EQ(call->Finish().error_code(), StatusCode::CANCELLED);
  }
}

TEST_F(BadClientTest, CallsWithoutADeadlineGetTheServers) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, LongAnswer());
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_THAT(status, FailsWith(StatusCode::DEADLINE_EXCEEDED, "DEADLINE_DECODING"));
  EXPECT_NE(MetadataOf(status, "output_tokens"), "0");
}

// A client ends a call by its own clock, a little before the server's clock does.
TEST_F(BadClientTest, ADeadlineIsCountedAsOneAlthoughItIsTheClientThatEndsTheCall) {
  const double before = Counted("deadline_decoding");
  const auto deadline = system_clock::now() + milliseconds(2500);
  ClientCall call(*stub_);
  call.context.set_deadline(deadline);
  call.Start(LongAnswer());
  EXPECT_TRUE(call.Read().has_started());
  std::this_thread::sleep_until(deadline - milliseconds(5));
  call.context.TryCancel();
  call.ReadText();
  EXPECT_FALSE(call.Finish().ok());
  EXPECT_TRUE(Eventually([&] { return Counted("deadline_decoding") > before; }));
}

TEST_F(BadClientTest, ClientsThatCancelOrVanish) {
  ClientCall call(*stub_);
  call.Start(LongAnswer());
  EXPECT_TRUE(call.Read().has_started());
  call.context.TryCancel();
  call.ReadText();
  EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
  for (int round = 0; round < 5; ++round) {  // more rounds than fit: each must free what it held
    Http2Peer peer(*address_);
    ASSERT_TRUE(peer.connected());
    for (const uint32_t stream : {1u, 3u, 5u}) {
      peer.Call(stream, kGenerateMethod);
      peer.Message(stream, LongAnswer().SerializeAsString(), /*end_stream=*/true);
    }
    std::this_thread::sleep_for(milliseconds(200));
    peer.Vanish();
    std::this_thread::sleep_for(milliseconds(200));
  }
}

TEST_F(BadClientTest, AReaderThatStopsIsCutOffAndItsBatchMatesAreNot) {
  v1::GenerateRequest chatty = LongAnswer();
  chatty.mutable_output()->set_logprobs(20);
  const double before = Counted("slow_consumer");
  Http2Peer deaf(*address_);  // never widens the stream's window of 64 KiB
  ASSERT_TRUE(deaf.connected());
  deaf.Call(1, kGenerateMethod, {{"grpc-timeout", "60S"}});
  deaf.Message(1, chatty.SerializeAsString(), /*end_stream=*/true);

  ClientCall mate(*stub_);
  v1::GenerateRequest request = LongAnswer();
  request.mutable_stopping()->set_max_tokens(100);
  mate.Start(request);
  mate.ReadText();
  EXPECT_TRUE(mate.Finish().ok());
  EXPECT_EQ(mate.finished.usage().output_tokens(), 100);

  const auto frames = deaf.ReadStream(1);
  ASSERT_FALSE(frames.empty());
  EXPECT_TRUE(frames.back().type == Http2Peer::kResetStream ||
              (frames.back().flags & Http2Peer::kEndStream) != 0)
      << "still open";
  // Waits for the stream's reset, which comes first.
  for (int i = 0; i < 1000 && Counted("slow_consumer") == before; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(Counted("slow_consumer") - before, 1);
}

}  // namespace
}  // namespace eta::testing
