// What may come in from outside and go wrong, against the server as it is shipped with the model
// that comes with it. Every case gets its exact answer, and a good call works afterwards.
#include <algorithm>
#include <csignal>
#include <limits>
#include <memory>
#include <thread>

#include "absl/strings/str_cat.h"
#include "engine/model_config.h"
#include "engine/tokenizer.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/client_call.h"
#include "tests/testing/error_details.h"
#include "tests/testing/generic_call.h"
#include "tests/testing/http2_peer.h"
#include "tests/testing/http_get.h"
#include "tests/testing/live_figures.h"
#include "tests/testing/metric_samples.h"
#include "tests/testing/server_process.h"
#include "tests/unit/temp_folder.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;
using std::chrono::milliseconds;
using std::chrono::seconds;
using std::chrono::system_clock;

constexpr int kVocabulary = 8192;
constexpr float kNaN = std::numeric_limits<float>::quiet_NaN();
constexpr float kInfinity = std::numeric_limits<float>::infinity();

class BadInputTest : public ::testing::Test {
 protected:
  static void SetUpTestSuite() {
    server_ = new ServerProcess(
        ETA_BINARY_DIR "/eta-server",
        {"--model", ETA_SOURCE_DIR "/models/eta-27m", "--listen", "127.0.0.1:0", "--metrics_listen",
         "127.0.0.1:0", "--max_running", "4", "--max_waiting_requests", "4", "--default_deadline",
         "3s", "--slow_reader_timeout", "1s"});
    const std::string url = server_->AwaitLine("metrics on ");
    metrics_port_ = std::stoi("0" + url.substr(url.rfind(':') + 1));
    address_ = new std::string(server_->AwaitAddress());
  }
  static void TearDownTestSuite() {
    server_->Signal(SIGTERM);
    const ServerProcess::Exit exit = server_->AwaitExit();
    EXPECT_EQ(exit.code, 0) << exit.errors;
    delete server_;
    delete address_;
  }
  void SetUp() override {
    ASSERT_FALSE(address_->empty()) << server_->AwaitExit().errors;
    channel_ = grpc::CreateChannel(*address_, grpc::InsecureChannelCredentials());
    stub_ = v1::EtaService::NewStub(channel_);
  }
  void TearDown() override {
    ClientCall good(*stub_);
    v1::GenerateRequest request = Ask("The capital of France is");
    request.mutable_stopping()->set_max_tokens(4);
    request.mutable_stopping()->set_ignore_eos(true);
    good.Start(request);
    good.ReadText();
    const grpc::Status status = good.Finish();
    EXPECT_TRUE(status.ok()) << "a good call afterwards: " << status.error_message();
    EXPECT_EQ(good.finished.usage().output_tokens(), 4);
  }

  grpc::Status Answer(const v1::GenerateRequest& request) {
    ClientCall call(*stub_);
    call.Start(request);
    call.ReadText();
    return call.Finish();
  }
  // The field that INVALID_ARGUMENT names; else the code.
  std::string BadField(const v1::GenerateRequest& request) {
    const grpc::Status status = Answer(request);
    if (status.error_code() != StatusCode::INVALID_ARGUMENT) {
      return absl::StrCat("code ", static_cast<int>(status.error_code()));
    }
    return FieldOf(status);
  }

  // Calls that the server says ended so.
  static double Counted(const std::string& reason) {
    return MetricSamples(HttpGet(metrics_port_, "/metrics").body)
        .Sum("eta_requests_failed_total", {{"reason", reason}});
  }

  static ServerProcess* server_;
  static std::string* address_;
  static int metrics_port_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::EtaService::Stub> stub_;
};

ServerProcess* BadInputTest::server_ = nullptr;
std::string* BadInputTest::address_ = nullptr;
int BadInputTest::metrics_port_ = 0;

TEST_F(BadInputTest, MessagesOverTheLimit) {
  GenericCall call(channel_, kGenerateMethod);
  EXPECT_EQ(call.Exchange(std::string((1 << 20) + 1, 'x')).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
}

TEST_F(BadInputTest, PromptAndAnswerOverTheContext) {
  v1::GenerateRequest request;
  for (int i = 0; i < 20000; ++i) request.mutable_token_ids()->add_ids(100);
  request.mutable_stopping()->set_max_tokens(16000);
  const grpc::Status status = Answer(request);
  EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
  EXPECT_EQ(ReasonOf(status), "CONTEXT_TOO_LONG");
  EXPECT_EQ(MetadataOf(status, "prompt_tokens"), "20000");
  EXPECT_EQ(MetadataOf(status, "max_tokens"), "16000");
  EXPECT_EQ(MetadataOf(status, "max_context"), "32768");
}

TEST_F(BadInputTest, EmptyPrompts) {
  EXPECT_EQ(BadField(v1::GenerateRequest()), "prompt");
  EXPECT_EQ(BadField(Ask("")), "text");
  v1::GenerateRequest request;
  request.mutable_token_ids();
  EXPECT_EQ(BadField(request), "token_ids.ids");
}

TEST_F(BadInputTest, PromptsThatAreNotUtf8) {
  for (const char* text :
       {"\xc3\x28", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xe2\x82"}) {
    EXPECT_EQ(BadField(Ask(text)), "text");
  }
}

// Nothing of them is lost on the way in, where as many tokens come from them as without a server,
// and nothing on the way out.
TEST_F(BadInputTest, ControlCharactersAreData) {
  const std::string folder = ETA_SOURCE_DIR "/models/eta-27m";
  const auto config = ParseModelConfig(ReadFile(folder + "/config.json"));
  ASSERT_TRUE(config.ok()) << config.status();
  const auto tokenizer = Tokenizer::Load(ReadFile(folder + "/tokenizer.model"), *config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  const std::string text("a\0b\x01\x1b[2J\x7f\r\n", 11);
  const auto ids = (*tokenizer)->Encode(text, /*add_bos=*/true);
  ASSERT_TRUE(ids.ok()) << ids.status();

  v1::GenerateRequest by_text = Ask(text), by_ids;
  by_ids.mutable_token_ids()->mutable_ids()->Add(ids->begin(), ids->end());
  std::vector<std::string> answers;
  for (v1::GenerateRequest* request : {&by_text, &by_ids}) {
    request->mutable_stopping()->set_max_tokens(8);
    request->mutable_stopping()->set_ignore_eos(true);
    request->mutable_sampling()->set_temperature(0);
    ClientCall call(*stub_);
    call.Start(*request);
    answers.push_back(call.ReadText());
    EXPECT_TRUE(call.Finish().ok());
    EXPECT_EQ(call.finished.usage().prompt_tokens(), static_cast<int64_t>(ids->size()));
  }
  EXPECT_EQ(answers[0], answers[1]);

  for (const char c : {'\0', '\x01', '\x1b', '\x7f', '\r', '\n'}) {
    v1::GenerateRequest request = Ask("x");
    request.mutable_stopping()->set_max_tokens(3);
    v1::LogitBias* wanted = request.mutable_sampling()->add_logit_bias();
    wanted->set_token_id((*tokenizer)->Encode(std::string(1, c), /*add_bos=*/false)->back());
    wanted->set_bias(100);
    ClientCall call(*stub_);
    call.Start(request);
    EXPECT_EQ(call.ReadText(), std::string(3, c));
    EXPECT_TRUE(call.Finish().ok());
  }
}

TEST_F(BadInputTest, BytesThatAreNoMessage) {
  std::string truncated = Ask("a prompt of some length").SerializeAsString();
  truncated.resize(truncated.size() - 4);
  std::string nested;
  for (int depth = 0; depth < 120; ++depth) nested = absl::StrCat("\x7b", nested, "\x7c");
  for (const std::string& bytes : {std::string("\xff\xff\xff"), truncated, nested}) {
    const grpc::Status status = GenericCall(channel_, kGenerateMethod).Exchange(bytes);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(ReasonOf(status), "MALFORMED_MESSAGE");
  }
}

TEST_F(BadInputTest, UnknownFieldsByTheHundredThousand) {
  v1::GenerateRequest request = Ask("hello");
  request.mutable_stopping()->set_max_tokens(1);
  std::string bytes = request.SerializeAsString();
  while (bytes.size() < 900 * 1024) bytes += "\xa0\x06\x01";
  EXPECT_TRUE(GenericCall(channel_, kGenerateMethod).Exchange(bytes).ok());
}

TEST_F(BadInputTest, CompressedMessages) {
  GenericCall call(channel_, kGenerateMethod);
  call.context().set_compression_algorithm(GRPC_COMPRESS_GZIP);
  EXPECT_EQ(call.Exchange(std::string(64 << 20, '\0')).error_code(), StatusCode::UNIMPLEMENTED);
}

TEST_F(BadInputTest, UnknownMethods) {
  for (const std::string& method :
       {std::string("/eta.v1.EtaService/Nope"), std::string("/nobody/Nope")}) {
    EXPECT_EQ(GenericCall(channel_, method).Exchange("").error_code(), StatusCode::UNIMPLEMENTED);
  }
}

TEST_F(BadInputTest, CallsWithNoMessageOrTwo) {
  GenericCall none(channel_, kGenerateMethod);
  none.Start();
  none.SendsDone();
  EXPECT_EQ(none.Read(), std::nullopt);
  EXPECT_EQ(ReasonOf(none.Finish()), "MALFORMED_MESSAGE");
  Http2Peer peer(*address_);
  ASSERT_TRUE(peer.connected());
  v1::GenerateRequest request = Ask("one");
  request.mutable_stopping()->set_max_tokens(1);
  peer.Call(1, kGenerateMethod);
  peer.Message(1, request.SerializeAsString(), /*end_stream=*/false);
  peer.Message(1, request.SerializeAsString(), /*end_stream=*/true);
  EXPECT_EQ(Http2Peer::Header(peer.ReadStream(1), "grpc-status"), "0") << "the first is answered";
}

// There is no n or best_of: whatever a client of another API sends for it is an unknown field, and
// one call gives one answer.
TEST_F(BadInputTest, SeveralAnswersOfOneCallAreNotOffered) {
  for (const char* name : {"n", "best_of", "num_beams"}) {
    EXPECT_EQ(v1::GenerateRequest::descriptor()->FindFieldByName(name), nullptr);
    EXPECT_EQ(v1::SamplingParams::descriptor()->FindFieldByName(name), nullptr);
  }
  v1::GenerateRequest request = Ask("one");
  request.mutable_stopping()->set_max_tokens(2);
  request.mutable_stopping()->set_ignore_eos(true);
  request.GetReflection()->MutableUnknownFields(&request)->AddVarint(1000, 64);
  ClientCall call(*stub_);
  call.Start(request);
  call.ReadText();
  EXPECT_TRUE(call.Finish().ok());
  EXPECT_EQ(call.finished.usage().output_tokens(), 2);
}

TEST_F(BadInputTest, TokensOutsideTheVocabulary) {
  for (const int32_t bad : {-1, kVocabulary, std::numeric_limits<int32_t>::max()}) {
    v1::GenerateRequest request;
    request.mutable_token_ids()->add_ids(0);
    request.mutable_token_ids()->add_ids(bad);
    EXPECT_EQ(BadField(request), "token_ids.ids[1]");
    request = Ask("x");
    request.mutable_stopping()->add_stop_token_ids(bad);
    EXPECT_EQ(BadField(request), "stopping.stop_token_ids[0]");
  }
}

TEST_F(BadInputTest, SamplingOutsideItsRanges) {
  using Set = void (v1::SamplingParams::*)(float);
  struct Case {
    std::string field;
    Set set;
    std::vector<float> bad;
  };
  const std::vector<Case> cases = {
      {"temperature", &v1::SamplingParams::set_temperature, {-0.1f, 2.1f}},
      {"top_p", &v1::SamplingParams::set_top_p, {0.0f, 1.1f}},
      {"min_p", &v1::SamplingParams::set_min_p, {-0.1f, 1.1f}},
      {"repetition_penalty", &v1::SamplingParams::set_repetition_penalty, {0.0f, 11.0f}},
      {"presence_penalty", &v1::SamplingParams::set_presence_penalty, {-2.1f, 2.1f}},
      {"frequency_penalty", &v1::SamplingParams::set_frequency_penalty, {-2.1f, 2.1f}},
  };
  for (const Case& test : cases) {
    std::vector<float> bad = test.bad;
    bad.insert(bad.end(), {kNaN, kInfinity, -kInfinity});
    for (const float value : bad) {
      v1::GenerateRequest request = Ask("x");
      (request.mutable_sampling()->*test.set)(value);
      EXPECT_EQ(BadField(request), "sampling." + test.field) << value;
    }
  }
  v1::GenerateRequest request = Ask("x");
  request.mutable_sampling()->set_top_k(-1);
  EXPECT_EQ(BadField(request), "sampling.top_k");
}

TEST_F(BadInputTest, AnswersWithoutALengthOrTooLong) {
  for (const int32_t bad : {-1, 0, 16385, std::numeric_limits<int32_t>::max()}) {
    v1::GenerateRequest request = Ask("x");
    request.mutable_stopping()->set_max_tokens(bad);
    EXPECT_EQ(BadField(request), "stopping.max_tokens");
  }
}

TEST_F(BadInputTest, StopStringsTooManyEmptyOrLong) {
  v1::GenerateRequest request = Ask("x");
  for (int i = 0; i < 5; ++i) request.mutable_stopping()->add_stop_strings("s");
  EXPECT_EQ(BadField(request), "stopping.stop_strings");
  request.mutable_stopping()->clear_stop_strings();
  request.mutable_stopping()->add_stop_strings("");
  EXPECT_EQ(BadField(request), "stopping.stop_strings[0]");
  request.mutable_stopping()->set_stop_strings(0, std::string(65, 's'));
  EXPECT_EQ(BadField(request), "stopping.stop_strings[0]");
}

TEST_F(BadInputTest, LogitBiasesTooManyOrNotNumbers) {
  const auto with = [this](int32_t id, float bias) {
    v1::GenerateRequest request = Ask("x");
    v1::LogitBias* entry = request.mutable_sampling()->add_logit_bias();
    entry->set_token_id(id);
    entry->set_bias(bias);
    return BadField(request);
  };
  EXPECT_EQ(with(kVocabulary, 1.0f), "sampling.logit_bias[0].token_id");
  EXPECT_EQ(with(-1, 1.0f), "sampling.logit_bias[0].token_id");
  EXPECT_EQ(with(5, kNaN), "sampling.logit_bias[0].bias");
  v1::GenerateRequest request = Ask("x");
  for (int i = 0; i < 257; ++i) {
    v1::LogitBias* entry = request.mutable_sampling()->add_logit_bias();
    entry->set_token_id(i);
    entry->set_bias(0.0f);
  }
  EXPECT_EQ(BadField(request), "sampling.logit_bias");
}

TEST_F(BadInputTest, EnumValuesFromTheFuture) {
  v1::GenerateRequest request = Ask("x");
  request.set_priority(static_cast<v1::Priority>(99));
  EXPECT_EQ(BadField(request), "priority");
}

TEST_F(BadInputTest, UnknownProfilesAndNamesThatNoneCanHave) {
  v1::GenerateRequest request = Ask("x");
  request.mutable_attention()->set_profile("nobody-made-this");
  EXPECT_EQ(Answer(request).error_code(), StatusCode::NOT_FOUND);
  request.mutable_attention()->set_profile("../../etc/passwd");
  EXPECT_EQ(BadField(request), "attention.profile");
}

TEST_F(BadInputTest, MoreRequestsThanFit) {
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
  std::this_thread::sleep_for(seconds(1));  // refusals come at once
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

TEST_F(BadInputTest, DeadlinesThatHavePassedCostNoStep) {
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

TEST_F(BadInputTest, DeadlinesTooShortForTheWork) {
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
  const grpc::Status status = call.Finish();
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_EQ(ReasonOf(status), "DEADLINE_TOO_SHORT");
}

TEST_F(BadInputTest, DeadlinesTooShortForTheWaitForASeat) {
  std::vector<std::unique_ptr<ClientCall>> calls;
  const auto start = [&] {
    calls.push_back(std::make_unique<ClientCall>(*stub_));
    calls.back()->Start(LongAnswer());
  };
  const auto has_seat = [](ClientCall& call) {
    EXPECT_TRUE(call.Read().has_started());
    return call.Read().has_delta();
  };
  for (int i = 0; i < 4; ++i) {
    start();
    EXPECT_TRUE(has_seat(*calls.back()));
  }
  start();
  std::this_thread::sleep_for(seconds(2));
  calls.front()->context.TryCancel();
  EXPECT_TRUE(has_seat(*calls.back())) << "now the server knows how often one comes free";
  ClientCall late(*stub_);
  late.context.set_deadline(system_clock::now() + milliseconds(500));
  const grpc::Status status = late.Refusal(LongAnswer());
  EXPECT_EQ(status.error_code(), StatusCode::RESOURCE_EXHAUSTED) << status.error_message();
  EXPECT_EQ(ReasonOf(status), "DEADLINE_TOO_SHORT");
  for (const auto& call : calls) {
    call->context.TryCancel();
    call->ReadText();
    EXPECT_EQ(call->Finish().error_code(), StatusCode::CANCELLED);
  }
}

TEST_F(BadInputTest, CallsWithoutADeadlineGetTheServers) {
  grpc::ClientContext context;
  const auto reader = stub_->Generate(&context, LongAnswer());
  v1::GenerateResponse message;
  while (reader->Read(&message)) {
  }
  const grpc::Status status = reader->Finish();
  EXPECT_EQ(status.error_code(), StatusCode::DEADLINE_EXCEEDED);
  EXPECT_EQ(ReasonOf(status), "DEADLINE_DECODING");
  EXPECT_NE(MetadataOf(status, "output_tokens"), "0");
}

TEST_F(BadInputTest, ClientsThatCancelOrVanish) {
  ClientCall call(*stub_);
  call.Start(LongAnswer());
  EXPECT_TRUE(call.Read().has_started());
  call.context.TryCancel();
  call.ReadText();
  EXPECT_EQ(call.Finish().error_code(), StatusCode::CANCELLED);
  for (int round = 0; round < 5; ++round) {  // more than fit: each must free what it held
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

TEST_F(BadInputTest, AReaderThatStopsIsCutOffAndItsBatchMatesAreNot) {
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
  // The stream is reset first.
  for (int i = 0; i < 1000 && Counted("slow_consumer") == before; ++i) {
    std::this_thread::sleep_for(milliseconds(10));
  }
  EXPECT_EQ(Counted("slow_consumer") - before, 1);
}

}  // namespace
}  // namespace eta::testing
