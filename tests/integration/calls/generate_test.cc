// A Generate call from both ends: the test plays the client and the step thread.
#include <algorithm>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/service/service_fixture.h"

namespace eta::testing {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

class GenerateTest : public ServiceTest {};

// True once so much was sent that the client, which does not read, holds the answer up.
bool SaysUntilCongested(PuppetCall& call) {
  for (int i = 0; i < 8192 && !call.Congested(); ++i) {
    call.Say(std::string(8 * 1024, 'x'));
    std::this_thread::sleep_for(milliseconds(1));
  }
  return call.Congested();
}

TEST_F(GenerateTest, AnswersInOrderAndEndsWithOk) {
  ClientCall client(*stub_);
  v1::GenerateRequest request = Ask("Once upon");
  request.set_request_id("story-1");
  request.mutable_sampling()->set_seed(42);
  client.Start(request);
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(std::get<std::string>(call->request().prompt), "Once upon");

  call->Start(/*prompt_tokens=*/5);
  const v1::GenerateResponse started = client.Read();
  ASSERT_TRUE(started.has_started());
  EXPECT_EQ(started.started().model(), "puppet");
  EXPECT_EQ(started.started().request_id(), "story-1");
  EXPECT_EQ(started.started().prompt_tokens(), 5);
  EXPECT_EQ(started.started().seed(), 42u);
  EXPECT_EQ(started.started().attention().mode(), v1::ATTENTION_MODE_DYNAMIC);
  EXPECT_FLOAT_EQ(started.started().attention().z(), 1.5f);
  EXPECT_EQ(started.started().attention().floor(), v1::FLOOR_UNIFORM);
  const auto& metadata = client.context.GetServerInitialMetadata();
  ASSERT_EQ(metadata.count("x-eta-request-id"), 1u);
  EXPECT_EQ(metadata.find("x-eta-request-id")->second, "story-1");

  call->sink().OnPrefill({.done = 2, .total = 5});
  EXPECT_EQ(client.Read().prefill().done(), 2);
  call->Say(" a");
  EXPECT_EQ(client.Read().delta().text(), " a");
  call->Say(" time");
  call->Finish(FinishReason::kEndOfText);
  EXPECT_EQ(client.ReadText(), " time");
  EXPECT_EQ(client.finished.finish_reason(), v1::FINISH_REASON_END_OF_TEXT);
  EXPECT_EQ(client.finished.usage().output_tokens(), 2);
  EXPECT_FALSE(client.finished.attention().has_head_density());
  EXPECT_TRUE(client.Finish().ok());
}

TEST_F(GenerateTest, NamesARequestThatHasNoName) {
  ClientCall client(*stub_);
  client.Start(Ask("hello"));
  const auto call = engine_->TakeAndStart();
  EXPECT_EQ(client.Read().started().request_id(), call->request().id);
  EXPECT_THAT(call->request().id, ::testing::StartsWith("eta-"));
  call->Finish();
}

TEST_F(GenerateTest, SaysWhichFieldIsBad) {
  ClientCall client(*stub_);
  v1::GenerateRequest request = Ask("hello");
  request.set_request_id("bad-1");
  request.mutable_sampling()->set_top_p(1.5f);
  const grpc::Status status = client.Refusal(request);
  EXPECT_EQ(status.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(status.error_message(), ::testing::StartsWith("sampling.top_p: "));
  EXPECT_EQ(ReasonOf(status), "INVALID_FIELD");
  EXPECT_EQ(FieldOf(status), "sampling.top_p");
  EXPECT_EQ(client.Trailer("x-eta-request-id"), "bad-1");
}

TEST_F(GenerateTest, RefusesCallsWhileMemoryIsShort) {
  const TempFolder folder;
  ServerOptions options;
  options.memory.cgroup_root = folder.path();
  options.memory.own_cgroup_file = folder.Write("self", "0::/\n");
  folder.Write("memory.max", "1000");
  folder.Write("memory.current", "951");
  Serve(options);
  ClientCall client(*stub_);
  const grpc::Status status = client.Refusal(Ask("hello"));
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "MEMORY_PRESSURE"));
  EXPECT_NE(client.Trailer("grpc-retry-pushback-ms"), "");
  EXPECT_EQ(engine_->submissions(), 0);
  folder.Write("memory.current", "500");
  EXPECT_TRUE(AwaitPressure(v1::PRESSURE_NONE));
  ExpectGoodCall();
}

TEST_F(GenerateTest, RefusesModelsAndProfilesThatAreNotThere) {
  v1::GenerateRequest request = Ask("hello");
  request.set_model("another");
  grpc::Status status = ClientCall(*stub_).Refusal(request);
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::NOT_FOUND, "MODEL_NOT_FOUND"));
  EXPECT_EQ(MetadataOf(status, "served_model"), "puppet");
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status)->resource_name(), "another");

  request.set_model("puppet");
  request.mutable_attention()->set_profile("wiki-fast");
  status = ClientCall(*stub_).Refusal(request);
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::NOT_FOUND, "PROFILE_NOT_FOUND"));
  EXPECT_EQ(DetailOf<google::rpc::ResourceInfo>(status)->resource_name(), "wiki-fast");

  for (const std::string name : {"../x", ".hidden", "a b", "x';--", "\xd0\xb0", ""}) {
    request.mutable_attention()->set_profile(name);
    status = ClientCall(*stub_).Refusal(request);
    EXPECT_THAT(status, FailsAt(grpc::StatusCode::INVALID_ARGUMENT, "attention.profile")) << name;
  }
  EXPECT_EQ(engine_->submissions(), 0);
  ExpectGoodCall();
}

TEST_F(GenerateTest, TellsWhenToComeBack) {
  engine_->Refuse(MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                            {.reason = "QUEUE_FULL", .retry_after = milliseconds(1000)}));
  ClientCall client(*stub_);
  const grpc::Status status = client.Refusal(Ask("hello"));
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::RESOURCE_EXHAUSTED, "QUEUE_FULL"));
  EXPECT_TRUE(DetailOf<google::rpc::QuotaFailure>(status).has_value());
  const auto retry = DetailOf<google::rpc::RetryInfo>(status);
  ASSERT_TRUE(retry.has_value());
  const int64_t delay_ms =
      retry->retry_delay().seconds() * 1000 + retry->retry_delay().nanos() / 1000000;
  EXPECT_GE(delay_ms, 800);
  EXPECT_LE(delay_ms, 1200);
  EXPECT_EQ(client.Trailer("grpc-retry-pushback-ms"), std::to_string(delay_ms));
}

TEST_F(GenerateTest, TellsWhenNotToComeBack) {
  engine_->Refuse(MakeError(absl::StatusCode::kResourceExhausted, "the KV pool is too small",
                            {.reason = "KV_POOL_TOO_SMALL"}));
  ClientCall client(*stub_);
  const grpc::Status status = client.Refusal(Ask("hello"));
  EXPECT_EQ(status.error_code(), grpc::StatusCode::RESOURCE_EXHAUSTED);
  EXPECT_FALSE(DetailOf<google::rpc::RetryInfo>(status).has_value());
  EXPECT_EQ(client.Trailer("grpc-retry-pushback-ms"), "-1");
}

TEST_F(GenerateTest, ARefusedCallIsRetriedByTheClientLibrary) {
  grpc::ChannelArguments arguments;
  arguments.SetServiceConfigJSON(R"({"methodConfig": [{"name": [{"service": "eta.v1.EtaService"}],
      "retryPolicy": {"maxAttempts": 3, "initialBackoff": "0.01s", "maxBackoff": "0.1s",
                      "backoffMultiplier": 2, "retryableStatusCodes": ["RESOURCE_EXHAUSTED"]}}]})");
  const auto stub = v1::EtaService::NewStub(NewChannel(arguments));
  engine_->Refuse(MakeError(absl::StatusCode::kResourceExhausted, "the queue is full",
                            {.reason = "QUEUE_FULL", .retry_after = milliseconds(20)}));
  ClientCall client(*stub);
  client.Start(Ask("hello"));
  std::string heard;
  std::thread reader([&] { heard = client.ReadText(); });
  const auto call = engine_->TakeCall();
  if (call != nullptr) {
    call->Start();
    call->Say("second try");
    call->Finish();
  }
  reader.join();
  EXPECT_EQ(heard, "second try") << "clients do not retry once they have seen headers";
  EXPECT_TRUE(client.Finish().ok());
  EXPECT_EQ(engine_->submissions(), 2);
}

TEST_F(GenerateTest, CancellingReachesTheEngine) {
  ClientCall client(*stub_);
  client.Start(Ask("hello"));
  const auto call = engine_->TakeAndStart();
  EXPECT_TRUE(client.Read().has_started());
  client.context.TryCancel();
  EXPECT_TRUE(engine_->AwaitCancel(*call));
  call->Say("nobody hears this");
  call->Fail(absl::CancelledError("cancelled"));
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
  ExpectGoodCall();
}

TEST_F(GenerateTest, CancellingAQueuedRequestReachesTheEngine) {
  ClientCall client(*stub_);
  client.Start(Ask("hello"));
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  client.context.TryCancel();
  EXPECT_TRUE(engine_->AwaitCancel(*call));
  call->Fail(absl::CancelledError("cancelled"));
  EXPECT_EQ(client.Finish().error_code(), grpc::StatusCode::CANCELLED);
}

TEST_F(GenerateTest, TheEngineLearnsTheDeadline) {
  ClientCall client(*stub_);
  client.context.set_deadline(std::chrono::system_clock::now() + seconds(5));
  client.Start(Ask("hello"));
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  const auto left = call->request().deadline - Clock::now();
  EXPECT_GT(left, seconds(1));
  EXPECT_LT(left, milliseconds(5500));
  call->Fail(MakeError(absl::StatusCode::kDeadlineExceeded, "the deadline passed in the queue",
                       {.reason = "DEADLINE_QUEUED"}));
  EXPECT_THAT(client.Finish(), FailsWith(grpc::StatusCode::DEADLINE_EXCEEDED, "DEADLINE_QUEUED"));
}

TEST_F(GenerateTest, ACallWithoutDeadlineLeavesItToTheEngine) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, Ask("hello"));
  const auto call = engine_->TakeCall();
  ASSERT_NE(call, nullptr);
  EXPECT_EQ(call->request().deadline, Clock::time_point::max());
  call->Start();
  call->Finish();
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  EXPECT_TRUE(reader->Finish().ok());
}

TEST_F(GenerateTest, AFailureInTheMiddleCountsWhatWasSaid) {
  ClientCall client(*stub_);
  client.Start(Ask("hello"));
  const auto call = engine_->TakeAndStart();
  call->Say("one");
  call->Say("two");
  call->Fail(MakeError(absl::StatusCode::kInternal, "the model produced NaN",
                       {.reason = "NONFINITE_LOGITS"}));
  EXPECT_EQ(client.ReadText(), "onetwo");
  const grpc::Status status = client.Finish();
  EXPECT_THAT(status, FailsWith(grpc::StatusCode::INTERNAL, "NONFINITE_LOGITS"));
  EXPECT_EQ(MetadataOf(status, "output_tokens"), "2");
}

// bad input: Deadlines and clients | a slow reader | paused, after --slow_reader_timeout
//   RESOURCE_EXHAUSTED, SLOW_CONSUMER; others go on |
//   BadClientTest.AReaderThatStopsIsCutOffAndItsBatchMatesAreNot
TEST_F(GenerateTest, ASlowReaderIsCongestedUntilItReadsAndLosesNothing) {
  ClientCall slow(*stub_);
  slow.Start(Ask("a lot, please"));
  const auto call = engine_->TakeAndStart();
  std::string said;
  for (int i = 0; i < 8192 && !call->Congested(); ++i) {
    const std::string chunk = absl::StrCat(i, std::string(8 * 1024, 'x'));
    said += chunk;
    call->Say(chunk);
    std::this_thread::sleep_for(milliseconds(1));
  }
  ASSERT_TRUE(call->Congested());
  ExpectGoodCall();

  std::string heard;
  while (call->Congested()) heard += slow.Read().delta().text();
  call->Say("the end");
  call->Finish();
  heard += slow.ReadText();
  EXPECT_TRUE(slow.Finish().ok());
  EXPECT_TRUE(heard == said + "the end");
}

TEST_F(GenerateTest, NothingComesAfterTheEnd) {
  ClientCall slow(*stub_);
  slow.Start(Ask("a lot, please"));
  const auto call = engine_->TakeAndStart();
  ASSERT_TRUE(SaysUntilCongested(*call));
  call->Finish();
  call->Say("too late");
  EXPECT_EQ(slow.ReadText().find("too late"), std::string::npos);
  EXPECT_TRUE(slow.Finish().ok());
}

TEST_F(GenerateTest, AReaderThatNeverReadsIsLetGo) {
  Limits limits;
  limits.max_congestion = milliseconds(200);
  Serve({}, limits);
  ClientCall deaf(*stub_);
  deaf.Start(Ask("a lot, please"));
  const auto call = engine_->TakeAndStart();
  ASSERT_TRUE(SaysUntilCongested(*call));
  call->Fail(MakeError(absl::StatusCode::kResourceExhausted, "the answer was read too slowly",
                       {.reason = "SLOW_CONSUMER"}));
  const std::weak_ptr<EventSink> sink = call->weak_sink();
  call->Forget();
  for (int i = 0; i < 1000 && !sink.expired(); ++i) std::this_thread::sleep_for(milliseconds(10));
  EXPECT_TRUE(sink.expired());
  ExpectGoodCall();
}

TEST_F(GenerateTest, SixtyFourStreamsAtOnceKeepTheirTextsApart) {
  constexpr int kStreams = 64;
  std::vector<std::string> heard(kStreams);
  std::vector<std::thread> clients;
  for (int i = 0; i < kStreams; ++i) {
    clients.emplace_back([&, i] {
      ClientCall client(*stub_);
      client.Start(Ask(std::to_string(i)));
      heard[i] = client.ReadText();
      EXPECT_TRUE(client.Finish().ok());
    });
  }
  std::vector<std::shared_ptr<PuppetCall>> calls;
  for (int i = 0; i < kStreams; ++i) calls.push_back(engine_->TakeCall());
  ASSERT_EQ(std::count(calls.begin(), calls.end(), nullptr), 0);
  for (const auto& call : calls) call->Start();
  std::string expected_tail;
  for (const auto& call : calls) call->Say(std::get<std::string>(call->request().prompt));
  for (int step = 0; step < 50; ++step) {
    const std::string word = absl::StrCat(",", step);
    expected_tail += word;
    for (const auto& call : calls) call->Say(word);
  }
  for (const auto& call : calls) call->Finish();
  for (std::thread& client : clients) client.join();
  for (int i = 0; i < kStreams; ++i) EXPECT_EQ(heard[i], absl::StrCat(i, expected_tail));
}

}  // namespace
}  // namespace eta::testing
