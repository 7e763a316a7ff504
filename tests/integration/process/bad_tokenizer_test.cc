// A damaged tokenizer.json: the server ends with exit code 2 and one error that names the cause,
// and never listens. Texts that are hard for its patterns cost their own calls alone. Rows 126 to
// 131 of the table of bad inputs.
#include <csignal>
#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/engine/tokenizer_json.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;
using json = nlohmann::json;

TokenizerJson Plain() {
  return TokenizerJson({"a", "b", "ab"}, {{"a", "b"}});
}

void Write(const TinyModel& model, const std::string& tokenizer) {
  std::ofstream(model.path() + "/tokenizer.json", std::ios::binary) << tokenizer;
}

ServerProcess Serve(const TinyModel& model) {
  return ServerProcess(ETA_BINARY_DIR "/eta-server", {"--model", model.path(), "--listen",
                                                      "127.0.0.1:0", "--kv_pool_bytes", "64MiB"});
}

struct Damage {
  std::string name;
  std::function<void(TokenizerJson&)> apply;
  std::string cause;
};

class BadTokenizerTest : public ::testing::TestWithParam<Damage> {};

void ExpectBadStart(const std::string& tokenizer, const std::string& cause) {
  const TinyModel model;
  Write(model, tokenizer);
  ServerProcess server = Serve(model);
  EXPECT_EQ(server.AwaitAddress(), "") << "it listens";
  server.Signal(SIGTERM);  // otherwise a server that took the file would stay
  const ServerProcess::Exit exit = server.AwaitExit();
  EXPECT_EQ(exit.code, 2);
  EXPECT_THAT(exit.errors, HasSubstr(cause));
}

TEST_P(BadTokenizerTest, IsRefusedInOneLine) {
  TokenizerJson file = Plain();
  GetParam().apply(file);
  ExpectBadStart(file.Dump(), GetParam().cause);
}

json Split(const std::string& pattern) {
  return {{"type", "Split"},
          {"pattern", {{"Regex", pattern}}},
          {"behavior", "Isolated"},
          {"invert", false}};
}

const Damage kDamages[] = {
    {"AnotherModel", [](TokenizerJson& file) { file.root["model"]["type"] = "Unigram"; },
     "Unigram"},
    {"AnUnknownNormalizer",
     [](TokenizerJson& file) {
       file.root["normalizer"] = {{"type", "Precompiled"}, {"precompiled_charsmap", "AA=="}};
     },
     "Precompiled"},
    {"AnUnknownField", [](TokenizerJson& file) { file.root["colour"] = 1; },
     "tokenizer.json: 'colour'"},
    {"ADecoderOfSeveralTokens",
     [](TokenizerJson& file) {
       file.root["decoder"] = {
           {"type", "Sequence"},
           {"decoders",
            {{{"type", "Fuse"}},
             {{"type", "Replace"}, {"pattern", {{"String", "a"}}}, {"content", "b"}}}}};
     },
     "decoder"},
    {"AMergeOfATokenThatIsNotThere",
     [](TokenizerJson& file) { file.root["model"]["merges"] = {"a z"}; }, "model.merges"},
    {"AMergeIntoATokenThatIsNotThere",
     [](TokenizerJson& file) { file.root["model"]["merges"] = {"b a"}; }, "model.merges"},
    {"AnIdOverTheLargest", [](TokenizerJson& file) { file.root["model"]["vocab"]["z"] = 1 << 20; },
     "model.vocab: id 1048576"},
    {"AnIdTwice", [](TokenizerJson& file) { file.root["model"]["vocab"]["z"] = 0; }, "model.vocab"},
    {"MoreTokensThanRows", [](TokenizerJson& file) { file.root["model"]["vocab"]["z"] = 8192; },
     "vocab_size"},
    {"AnAddedTokenInAnothersPlace", [](TokenizerJson& file) { file.Add("<s>", 1); },
     "is another token in model.vocab"},
    {"AnAddedTokenWithoutText",
     [](TokenizerJson& file) {
       file.root["added_tokens"] = {{{"id", 9}, {"content", ""}}};
     },
     "added_tokens[0].content"},
    {"APatternThatDoesNotCompile",
     [](TokenizerJson& file) { file.root["pre_tokenizer"] = Split("(a"); }, "pre_tokenizer"},
    {"APatternThatIsNotKnown",
     [](TokenizerJson& file) { file.root["pre_tokenizer"] = Split("a(?~b)"); }, "pre_tokenizer"},
    {"PartsByTheScore",
     [](TokenizerJson& file) {
       file.root["normalizer"] = {{"type", "Sequence"},
                                  {"normalizers", json(40, json{{"type", "NFC"}})}};
     },
     "normalizer"},
};

INSTANTIATE_TEST_SUITE_P(Damages, BadTokenizerTest, ::testing::ValuesIn(kDamages),
                         [](const auto& test) { return test.param.name; });

TEST(BadTokenizer, BytesThatAreNoJsonAreRefusedInOneLine) {
  const std::string good = Plain().Dump();
  ExpectBadStart("", "is not JSON at byte");
  ExpectBadStart(good.substr(0, good.size() / 2), "is not JSON at byte");
  ExpectBadStart("{\"a\":\"\xED\xA0\x80\"}", "is not UTF-8");
  ExpectBadStart(R"({"model":{"type":"BPE","vocab":{"\ud800":0}}})", "is not JSON");
  ExpectBadStart(R"({"a":1,"a":2})", "has the key 'a' twice");
  ExpectBadStart("{\"a\":" + std::string(100'000, '['), "is nested over 16 deep");
}

TEST(BadTokenizer, SizesPastTheLimitsAreRefusedInOneLine) {
  ExpectBadStart(std::string((size_t{64} << 20) + 1, ' '), "tokenizer.json");
  ExpectBadStart(R"({"model":{"type":"BPE","vocab":{")" + std::string(100'000, 'x') + "\":1}}}",
                 "model.vocab: a token");
}

TEST(HardPattern, CostsItsOwnCallAlone) {
  const TinyModel model;
  TokenizerJson file = Plain();
  file.root["pre_tokenizer"] = Split("(a+)+b");
  Write(model, file.Dump());
  ServerProcess server = Serve(model);
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  const auto ask = [&](const std::string& text) {
    v1::GenerateRequest request;
    request.set_text(text);
    request.mutable_stopping()->set_max_tokens(1);
    ClientCall call(*stub);
    call.Start(request);
    call.ReadText();
    return call.Finish();
  };
  const grpc::Status bomb = ask(std::string(80, 'a') + "-b");
  EXPECT_EQ(bomb.error_code(), grpc::StatusCode::INVALID_ARGUMENT);
  EXPECT_THAT(bomb.error_message(), HasSubstr("a pattern of the model's tokenizer"));
  EXPECT_TRUE(ask("ab").ok());
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
}

}  // namespace
}  // namespace eta::testing
