// The tokenizer that a gateway gets: an archive of the files that ours was made from.
#include <zip.h>

#include <map>

#include "engine/base/error.h"
#include "engine/base/sha256.h"
#include "engine/tokenizer/tokenizer.h"
#include "gmock/gmock.h"
#include "nlohmann/json.hpp"
#include "service/server/server.h"
#include "service/vllm/tokenizer_bundle.h"
#include "tests/testing/base/error_details.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/engine_run.h"
#include "tests/testing/engine/tiny_gguf.h"
#include "tests/testing/net/own_connection.h"
#include "tests/testing/service/gateway_fixture.h"

namespace eta::testing {
namespace {

namespace common_pb = ::smg::grpc::common;
using ::testing::ElementsAre;
using ::testing::Key;

// The files of an archive, by name.
std::map<std::string, std::string> Unzipped(const std::string& bytes) {
  std::map<std::string, std::string> files;
  zip_error_t error;
  zip_error_init(&error);
  zip_t* const archive = zip_open_from_source(
      zip_source_buffer_create(bytes.data(), bytes.size(), 0, &error), ZIP_RDONLY, &error);
  if (archive == nullptr) return files;
  for (zip_int64_t i = 0; i < zip_get_num_entries(archive, 0); ++i) {
    const auto place = static_cast<zip_uint64_t>(i);
    zip_stat_t stat;
    if (zip_stat_index(archive, place, 0, &stat) != 0) continue;
    std::string content(stat.size, '\0');
    zip_file_t* const file = zip_fopen_index(archive, place, 0);
    EXPECT_EQ(zip_fread(file, content.data(), content.size()),
              static_cast<zip_int64_t>(content.size()));
    zip_fclose(file);
    files[zip_get_name(archive, place, 0)] = std::move(content);
  }
  zip_discard(archive);
  return files;
}

TEST(TokenizerBundle, HasTheFilesUnderTheNamesThatLibrariesLookFor) {
  const TokenizerFiles files = {.tokenizer_json = std::string(200'000, 'x'),
                                .tokenizer_config_json = R"({"bos_token": "<s>"})",
                                .chat_template = "{{ messages }}"};
  const auto bundle = MakeTokenizerBundle(files).value();
  EXPECT_EQ(bundle.sha256, *Sha256Hex(bundle.zip));
  EXPECT_LT(bundle.zip.size(), 10'000u) << "it is compressed";
  const auto found = Unzipped(bundle.zip);
  EXPECT_THAT(found, ElementsAre(Key("chat_template.jinja"), Key("tokenizer.json"),
                                 Key("tokenizer_config.json")));
  EXPECT_EQ(found.at("tokenizer.json"), *files.tokenizer_json);
  EXPECT_EQ(found.at("tokenizer_config.json"), *files.tokenizer_config_json) << "as it is";
  EXPECT_EQ(found.at("chat_template.jinja"), *files.chat_template);
  EXPECT_EQ(MakeTokenizerBundle(files)->sha256, bundle.sha256) << "the same files, the same bytes";
}

TEST(TokenizerBundle, TheTemplateThatCountsIsTheOnlyOne) {
  const TokenizerFiles files = {.sentencepiece_model = "pieces",
                                .tokenizer_config_json = R"({"chat_template": "old", "x": 1})",
                                .chat_template = "new"};
  const auto found = Unzipped(MakeTokenizerBundle(files)->zip);
  EXPECT_EQ(found.at("tokenizer.model"), "pieces");
  const auto config = nlohmann::json::parse(found.at("tokenizer_config.json"));
  EXPECT_EQ(config, (nlohmann::json{{"chat_template", "new"}, {"x", 1}}));
}

TEST(TokenizerBundle, AModelWithoutATokenizerHasNone) {
  const absl::Status status = MakeTokenizerBundle({}).status();
  EXPECT_TRUE(absl::IsFailedPrecondition(status));
  EXPECT_EQ(GetErrorDetail(status).reason, "UNSUPPORTED_BY_MODEL");
}

struct Download {
  grpc::Status status;
  std::string zip;
  std::vector<std::string> digests;  // of each piece
};

Download Downloaded(Engine& engine) {
  ServerOptions options;
  options.listen = "127.0.0.1:0";
  options.vllm_listen = {"127.0.0.1:0"};
  const auto server = Server::Start(options, {.engine = engine});
  if (!server.ok()) return {.status = grpc::Status(grpc::StatusCode::UNKNOWN, "no server")};
  const auto stub =
      gateway_pb::VllmEngine::NewStub(OwnConnection((*server)->vllm_listeners().at(0)->address()));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  const auto reader = stub->GetTokenizer(&context, common_pb::GetTokenizerRequest());
  Download download;
  for (common_pb::GetTokenizerChunk chunk; reader->Read(&chunk);) {
    download.zip += chunk.data();
    download.digests.push_back(chunk.sha256());
    EXPECT_LE(chunk.data().size(), size_t{64} << 10);
  }
  download.status = reader->Finish();
  return download;
}

// Of a GGUF file, whose tokenizer.json is made of its metadata.
TEST(GetTokenizer, GivesWhatMakesTheSameIds) {
  const TempFolder folder;
  TinyGguf tiny;
  UseByteLevelVocabulary(tiny.file);
  const TinyModel model;
  EngineOptions options = OptionsFor(model);
  options.model_dir = folder.Write("tiny.gguf", tiny.file.Serialize());
  options.keep_tokenizer_files = true;
  const auto engine = Start(options);
  const Download download = Downloaded(*engine);
  ASSERT_TRUE(download.status.ok()) << download.status.error_message();
  ASSERT_FALSE(download.digests.empty());
  EXPECT_EQ(download.digests.back(), *Sha256Hex(download.zip));
  const auto found = Unzipped(download.zip);
  ASSERT_TRUE(found.contains("tokenizer.json"));
  ASSERT_TRUE(found.contains("tokenizer_config.json"));
  const auto tokenizer =
      Tokenizer::Load({.tokenizer_json = found.at("tokenizer.json")}, engine->info().config);
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status();
  for (const std::string text : {"Once upon a time", " it's 1234!\n\n\tif (x) {", "<s>", "a\nb"}) {
    EXPECT_EQ(*(*tokenizer)->Encode(text, /*add_bos=*/true), *engine->Tokenize(text)) << text;
  }
}

TEST(GetTokenizer, SaysWhereThereIsNone) {
  const TinyModel model;
  const auto engine = Start(OptionsFor(model));  // it keeps no files
  const Download download = Downloaded(*engine);
  EXPECT_THAT(download.status,
              FailsWith(grpc::StatusCode::FAILED_PRECONDITION, "UNSUPPORTED_BY_MODEL"));
  EXPECT_EQ(download.zip, "");
}

}  // namespace
}  // namespace eta::testing
