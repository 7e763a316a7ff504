// Files of a model as the built server takes them. A damaged one of each kind ends it with exit
// code 2 and one error that names the cause: what else is refused, tests of the readers say.
#include <array>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/sha256.h"
#include "gmock/gmock.h"
#include "grpcpp/create_channel.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_gguf.h"
#include "tests/testing/engine/tiny_model.h"
#include "tests/testing/engine/tokenizer_json.h"
#include "tests/testing/net/client_call.h"
#include "tests/testing/process/model_server.h"
#include "tests/testing/process/server_process.h"

namespace eta::testing {
namespace {

namespace fs = std::filesystem;

constexpr char kWeights[] = "model.safetensors";

std::string PathOf(const TinyModel& model, const std::string& file) {
  return absl::StrCat(model.path(), "/", file);
}

void Cut(const std::string& path, uintmax_t bytes) {
  fs::resize_file(path, fs::file_size(path) - bytes);
}

std::vector<int32_t> AnswerOfModel(const std::string& model) {
  ServerProcess server = ServeModel(model);
  const std::string address = server.AwaitAddress();
  EXPECT_NE(address, "") << server.AwaitExit().errors;
  std::vector<int32_t> answer = AnswerOf(address);
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
  return answer;
}

TEST(BadModelTest, WeightsAreRefusedInOneLine) {
  const TinyModel model;
  Cut(PathOf(model, kWeights), 1);
  ExpectBadStart(ServeModel(model.path()),
                 "'model.safetensors': safetensors file ends before its last tensor");
}

TEST(BadModelTest, AConfigIsRefusedInOneLine) {
  const TinyModel model;
  const std::string path = PathOf(model, "config.json");
  auto config = nlohmann::json::parse(ReadFile(path));
  config["model_type"] = "mixtral";
  std::ofstream(path) << config.dump();
  ExpectBadStart(ServeModel(model.path()), "config.json: model_type 'mixtral' is not supported");
}

TEST(BadModelTest, ATokenizerIsRefusedInOneLine) {
  TokenizerJson file({"a", "b", "ab"}, {{"a", "b"}});
  file.root["colour"] = 1;
  const TinyModel model({.tokenizer_json = file.Dump()});
  ExpectBadStart(ServeModel(model.path()), "tokenizer.json: 'colour'");
}

TEST(BadModelTest, AGgufFileIsRefusedInOneLine) {
  const TempFolder folder;
  const std::string path = folder.Write("bad.gguf", TinyGguf().file.Serialize().substr(0, 500));
  ExpectBadStart(ServeModel(path), "'bad.gguf': GGUF file ends inside its head");
  TinyGguf tiny;
  UseBlocks(tiny.file, "blk.1.ffn_up.weight", GgmlType::kQ8_0);
  tiny.file.At("blk.1.ffn_up.weight").data.replace(34, 2, "\xFF\x7F");
  folder.Write("bad.gguf", tiny.file.Serialize());
  ExpectBadStart(ServeModel(path), "mlp.up_proj.weight: block 1: a scale is NaN or infinite");
}

TEST(BadModelTest, AnIndexMetricIsRefusedInOneLine) {
  const TinyModel model({.has_predictor = false, .index_metric = true});
  Cut(PathOf(model, "index_metric.safetensors"), 4);
  ExpectBadStart(ServeModel(model.path(), {"--index=moment"}), "'index_metric.safetensors'");
}

TEST(GoodModel, IsServed) {
  EXPECT_EQ(AnswerOfModel(TinyModel().path()).size(), 4u);
}

TEST(PinnedModel, IsServedOnlyWithTheDigestsThatAreListed) {
  const TinyModel model;
  std::vector<std::string> pins;
  for (const char* name : {"config.json", kWeights, "tokenizer.model"}) {
    pins.insert(
        pins.end(),
        {"--sha256", absl::StrCat(name, "=", Sha256Hex(ReadFile(PathOf(model, name))).value())});
  }
  {
    ServerProcess server = ServeModel(model.path(), pins);
    EXPECT_NE(server.AwaitAddress(), "") << server.AwaitExit().errors;
  }
  pins.resize(pins.size() - 2);
  ExpectBadStart(ServeModel(model.path(), pins),
                 "'tokenizer.model' is not on the list of expected SHA-256 digests");
}

TEST(LoadedModel, DoesNotChangeWithItsFiles) {
  const TinyModel model;
  ServerProcess server = ServeModel(model.path());
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const std::vector<int32_t> answer = AnswerOf(address);
  EXPECT_EQ(answer.size(), 4u);
  const std::string weights = PathOf(model, kWeights);
  std::ofstream(weights, std::ios::binary) << std::string(fs::file_size(weights), '\x7f');
  EXPECT_EQ(AnswerOf(address), answer) << "overwritten";
  for (const char* name : {"config.json", kWeights, "tokenizer.model"}) {
    fs::resize_file(PathOf(model, name), 3);
  }
  EXPECT_EQ(AnswerOf(address), answer) << "truncated";
  server.Signal(SIGTERM);
  EXPECT_EQ(server.AwaitExit().code, 0);
  ExpectBadStart(ServeModel(model.path()), "");
}

// No request with such numbers is answered with text.
TEST(NonfiniteWeights, AreServedWhereTheFlagAllowsThem) {
  const TinyModel model({.tied = false, .nan_embedding = 300});
  ExpectBadStart(ServeModel(model.path()), "is NaN or infinite");
  ServerProcess server = ServeModel(model.path(), {"--allow_nonfinite_weights"});
  const std::string address = server.AwaitAddress();
  ASSERT_NE(address, "") << server.AwaitExit().errors;
  const auto stub =
      v1::EtaService::NewStub(grpc::CreateChannel(address, grpc::InsecureChannelCredentials()));
  v1::GenerateRequest request;
  request.mutable_token_ids()->add_ids(300);
  ClientCall call(*stub);
  call.Start(request);
  call.ReadText();
  EXPECT_EQ(call.Finish().error_code(), grpc::StatusCode::INTERNAL);
  EXPECT_EQ(AnswerOf(address).size(), 4u) << "others are not affected";
}

// The file and the folder that eta-eval makes of it give the same tokens.
TEST(GoodGguf, IsServedAsTheFolderThatItIsImportedTo) {
  const TempFolder folder;
  const std::string path = folder.Write("tiny.gguf", TinyGguf().file.Serialize());
  const std::string out = folder.path() + "/out";
  ServerProcess import(ETA_BINARY_DIR "/eta-eval", {"import", path, out});
  EXPECT_EQ(import.AwaitExit().code, 0);
  const std::vector<int32_t> answer = AnswerOfModel(path);
  EXPECT_EQ(answer.size(), 4u);
  EXPECT_EQ(AnswerOfModel(out), answer);
}

TEST(GoodGguf, OfBlocksIsServed) {
  const TempFolder folder;
  TinyGguf tiny;
  UseBlocks(tiny.file, std::array{GgmlType::kQ4_0, GgmlType::kQ8_0, GgmlType::kQ5_1});
  const std::string path = folder.Write("tiny.gguf", tiny.file.Serialize());
  const std::vector<int32_t> answer = AnswerOfModel(path);
  EXPECT_EQ(answer.size(), 4u);
  EXPECT_EQ(AnswerOfModel(path), answer);
}

TEST(GoodIndexMetric, OfEtaEvalIsServed) {
  const TinyModel model({.has_predictor = false});
  const std::string command =
      absl::StrCat(ETA_BINARY_DIR "/eta-eval index-metric --model=", model.path(),
                   " --text=" ETA_SOURCE_DIR
                   "/deploy/samples/needle.txt --context=64 --windows=2 > /dev/null 2>&1");
  ASSERT_EQ(std::system(command.c_str()), 0);
  EXPECT_NE(std::system(command.c_str()), 0) << "it does not replace the file";
  EXPECT_EQ(AnswerOfModel(model.path()).size(), 4u);
}

}  // namespace
}  // namespace eta::testing
