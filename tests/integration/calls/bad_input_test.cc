// Malformed messages and fields, sent to the built server. Every case gets its exact answer.
#include <google/protobuf/text_format.h>

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/model/model_config.h"
#include "engine/tokenizer/tokenizer.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/net/generic_call.h"
#include "tests/testing/net/http2_peer.h"
#include "tests/testing/service/bad_input_fixture.h"

namespace eta::testing {
namespace {

using grpc::StatusCode;

constexpr int kVocabulary = 8192;

TEST_F(BadInputTest, MessagesOverTheLimit) {
  GenericCall call(channel_, kGenerateMethod);
  EXPECT_EQ(call.Exchange(std::string((2 << 20) + 1, 'x')).error_code(),
            StatusCode::RESOURCE_EXHAUSTED);
  v1::GenerateRequest request = Ask("Once");
  request.mutable_format()->set_json_schema(std::string(1 << 20, ' '));
  const grpc::Status status = Answer(request);
  EXPECT_THAT(status, FailsWith(StatusCode::RESOURCE_EXHAUSTED, "MESSAGE_TOO_LARGE"));
  EXPECT_EQ(FieldOf(status), "format.json_schema");
}

TEST_F(BadInputTest, PromptAndAnswerOverTheContext) {
  v1::GenerateRequest request;
  for (int i = 0; i < 20000; ++i) request.mutable_token_ids()->add_ids(100);
  request.mutable_stopping()->set_max_tokens(16000);
  const grpc::Status status = Answer(request);
  EXPECT_THAT(status, FailsWith(StatusCode::INVALID_ARGUMENT, "CONTEXT_TOO_LONG"));
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

TEST_F(BadInputTest, PromptsThatAreTokenizedAlone) {
  const auto field = [&](const v1::TokenizeRequest& request) {
    grpc::ClientContext context;
    v1::TokenizeResponse response;
    const grpc::Status status = stub_->Tokenize(&context, request, &response);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    return FieldOf(status) + ReasonOf(status).substr(0, 7);
  };
  const auto text = [](const std::string& bytes) {
    v1::TokenizeRequest request;
    request.set_text(bytes);
    return request;
  };
  EXPECT_EQ(field({}), "promptINVALID");
  EXPECT_EQ(field(text("")), "textINVALID");
  EXPECT_EQ(field(text("a\xff")), "textINVALID");
  EXPECT_EQ(field(text(std::string(768 * 1024 + 1, 'x'))), "textINVALID");
  EXPECT_EQ(field(text(std::string(700 * 1024, 'x'))), "textCONTEXT");
  v1::TokenizeRequest chat;
  chat.mutable_chat();
  EXPECT_EQ(field(chat), "chat.messagesINVALID");
  chat.set_parse_special(true);
  EXPECT_EQ(field(chat), "parse_specialINVALID");
  chat.clear_parse_special();
  chat.set_add_beginning(false);
  EXPECT_EQ(field(chat), "add_beginningINVALID");
}

TEST_F(BadInputTest, IdsThatReadAsNothing) {
  const auto field = [&](const std::vector<int32_t>& ids) {
    grpc::ClientContext context;
    v1::DetokenizeRequest request;
    request.mutable_token_ids()->mutable_ids()->Add(ids.begin(), ids.end());
    v1::DetokenizeResponse response;
    const grpc::Status status = stub_->Detokenize(&context, request, &response);
    EXPECT_EQ(status.error_code(), StatusCode::INVALID_ARGUMENT);
    return FieldOf(status);
  };
  EXPECT_EQ(field({}), "token_ids.ids");
  EXPECT_EQ(field({5, kVocabulary}), "token_ids.ids[1]");
  EXPECT_EQ(field({-1}), "token_ids.ids[0]");
  EXPECT_EQ(field(std::vector<int32_t>(32769, 5)), "token_ids.ids");
}

TEST_F(BadInputTest, CalibrationsThatCannotBeCancelled) {
  const auto cancel = [&](const std::string& id) {
    grpc::ClientContext context;
    v1::CancelCalibrationRequest request;
    request.set_request_id(id);
    v1::CancelCalibrationResponse response;
    return stub_->CancelCalibration(&context, request, &response);
  };
  for (const std::string& id : {std::string(), std::string("a b"), std::string(65, 'x')}) {
    EXPECT_EQ(cancel(id).error_code(), StatusCode::INVALID_ARGUMENT);
    EXPECT_EQ(FieldOf(cancel(id)), "request_id");
  }
  EXPECT_EQ(cancel("nobody").error_code(), StatusCode::NOT_FOUND);
  EXPECT_EQ(ReasonOf(cancel("nobody")), "CALIBRATION_NOT_FOUND");
}

TEST_F(BadInputTest, FormatsOfAnswers) {
  const auto field = [&](const std::string& format) {
    v1::GenerateRequest request = Ask("Once");
    EXPECT_TRUE(google::protobuf::TextFormat::ParseFromString(format, request.mutable_format()));
    return BadField(request);
  };
  EXPECT_EQ(field(""), "format");
  EXPECT_EQ(field("json_schema: ''"), "format.json_schema");
  EXPECT_EQ(field("regex: '\\377'"), "format.regex");
  EXPECT_EQ(field("grammar: '" + std::string(64 * 1024 + 1, 'a') + "'"), "format.grammar");
  EXPECT_EQ(field("structural_tag: ''"), "format.structural_tag");
  EXPECT_EQ(field("choice {}"), "format.choice.choices");
  EXPECT_EQ(field("choice { choices: 'a' choices: '' }"), "format.choice.choices[1]");
  EXPECT_EQ(field("choice { choices: 'a' choices: 'a' }"), "format.choice.choices[1]");
}

TEST_F(BadInputTest, PromptsThatAreNotUtf8) {
  for (const char* text :
       {"\xc3\x28", "\xc0\xaf", "\xed\xa0\x80", "\xf4\x90\x80\x80", "a\xe2\x82"}) {
    EXPECT_EQ(BadField(Ask(text)), "text");
  }
}

// Nothing is lost on the way in: as many tokens come from these texts as without a server. Nothing
// is lost on the way out.
TEST_F(BadInputTest, ControlCharactersAreData) {
  const std::string folder = ETA_SOURCE_DIR "/models/eta-27m";
  const auto config = ParseModelConfig(ReadFile(folder + "/config.json"));
  ASSERT_TRUE(config.ok()) << config.status();
  const auto tokenizer =
      Tokenizer::Load({.sentencepiece_model = ReadFile(folder + "/tokenizer.model")}, *config);
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
    EXPECT_THAT(status, FailsWith(StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE"));
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
  EXPECT_THAT(none.Finish(), FailsWith(StatusCode::INVALID_ARGUMENT, "MALFORMED_MESSAGE"));
  Http2Peer peer(*address_);
  ASSERT_TRUE(peer.connected());
  v1::GenerateRequest request = Ask("one");
  request.mutable_stopping()->set_max_tokens(1);
  peer.Call(1, kGenerateMethod);
  peer.Message(1, request.SerializeAsString(), /*end_stream=*/false);
  peer.Message(1, request.SerializeAsString(), /*end_stream=*/true);
  EXPECT_EQ(Http2Peer::Header(peer.ReadStream(1), "grpc-status"), "0") << "the first is answered";
}

// There is no n or best_of. A client of another API may send such a field; it is unknown, and one
// call gives one answer.
// bad input: Messages | n, best_of | fields that this API does not have are ignored: one call gives
//   one answer
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

// What a user writes into a prompt ends no turn and begins no text.
TEST_F(BadInputTest, SpecialTokensAreTextUnlessTheRequestSaysOtherwise) {
  const auto prompt_tokens = [this](v1::GenerateRequest request) {
    request.mutable_stopping()->set_max_tokens(1);
    request.mutable_stopping()->set_ignore_eos(true);
    ClientCall call(*stub_);
    call.Start(request);
    call.ReadText();
    EXPECT_TRUE(call.Finish().ok());
    return call.finished.usage().prompt_tokens();
  };
  v1::GenerateRequest request = Ask("<s></s></s>");
  const int32_t as_text = prompt_tokens(request);
  EXPECT_GT(as_text, 4);
  request.set_parse_special(false);
  EXPECT_EQ(prompt_tokens(request), as_text);
  request.set_parse_special(true);
  EXPECT_EQ(prompt_tokens(request), 3);
  request.set_text("</s>\xff");
  EXPECT_EQ(BadField(request), "text");
  request.mutable_token_ids()->add_ids(2);
  EXPECT_EQ(BadField(request), "parse_special");
  request.set_parse_special(false);
  EXPECT_EQ(prompt_tokens(request), 1);
}

// The name that the wire gives each field; tests of validation have all values.
TEST_F(BadInputTest, FieldsOutsideTheirLimitsAreNamed) {
  const std::pair<const char*, const char*> cases[] = {
      {"token_ids { ids: 0 ids: 8192 }", "token_ids.ids[1]"},
      {"sampling { temperature: nan }", "sampling.temperature"},
      {"sampling { top_p: 0 }", "sampling.top_p"},
      {"sampling { top_k: -1 }", "sampling.top_k"},
      {"sampling { min_p: 1.1 }", "sampling.min_p"},
      {"sampling { repetition_penalty: 0 }", "sampling.repetition_penalty"},
      {"sampling { presence_penalty: inf }", "sampling.presence_penalty"},
      {"sampling { frequency_penalty: -2.1 }", "sampling.frequency_penalty"},
      {"sampling { logit_bias { token_id: 8192 bias: 1 } }", "sampling.logit_bias[0].token_id"},
      {"sampling { logit_bias { token_id: 5 bias: nan } }", "sampling.logit_bias[0].bias"},
      {"stopping { max_tokens: 0 }", "stopping.max_tokens"},
      {"stopping { max_tokens: 16385 }", "stopping.max_tokens"},
      {"stopping { stop_strings: ['a', 'b', 'c', 'd', 'e'] }", "stopping.stop_strings"},
      {"stopping { stop_strings: '' }", "stopping.stop_strings[0]"},
      {"stopping { stop_token_ids: 8192 }", "stopping.stop_token_ids[0]"},
      {"attention { sink_blocks: -1 }", "attention.sink_blocks"},
      {"attention { min_mass: nan }", "attention.min_mass"},
      {"attention { reads: 3 }", "attention.reads"},
      {"attention { special_keys: -1 }", "attention.special_keys"},
      {"attention { prefill: 3 }", "attention.prefill"},
      {"attention { min_mass: 0.5 begin: 4 }", "attention.begin"},
      {"attention { begin: BEGIN_FULL }", "attention.begin"},
      {"attention { full {} sink_blocks: 0 }", "attention.sink_blocks"},
      {"attention { full {} reads: READS_OWN }", "attention.reads"},
      {"attention { full {} confirm: false }", "attention.confirm"},
      {"attention { full {} prefill: PREFILL_FULL }", "attention.prefill"},
      {"attention { full {} min_mass: 0.5 }", "attention.min_mass"},
      {"attention { full {} begin: BEGIN_AS_ASKED }", "attention.begin"},
  };
  for (const auto& [fields, named] : cases) {
    v1::GenerateRequest request = Ask("x");
    ASSERT_TRUE(google::protobuf::TextFormat::MergeFromString(fields, &request)) << fields;
    EXPECT_EQ(BadField(request), named) << fields;
  }
}

TEST_F(BadInputTest, EnumValuesFromTheFuture) {
  v1::GenerateRequest request = Ask("x");
  request.set_priority(static_cast<v1::Priority>(99));
  EXPECT_EQ(BadField(request), "priority");
  request = Ask("x");
  request.set_speculation(static_cast<v1::Speculation>(99));
  EXPECT_EQ(BadField(request), "speculation");
}

TEST_F(BadInputTest, UnknownProfilesAndNamesThatNoneCanHave) {
  v1::GenerateRequest request = Ask("x");
  request.mutable_attention()->set_profile("nobody-made-this");
  EXPECT_EQ(Answer(request).error_code(), StatusCode::NOT_FOUND);
  request.mutable_attention()->set_profile("../../etc/passwd");
  EXPECT_EQ(BadField(request), "attention.profile");
}

}  // namespace
}  // namespace eta::testing
