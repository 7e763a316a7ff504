#include "engine/checkpoint/checkpoint.h"

#include <sys/stat.h>

#include "engine/base/sha256.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"

namespace eta {
namespace {

using testing::HasSubstr;

constexpr auto kNotFound = absl::StatusCode::kNotFound;
constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

class CheckpointTest : public testing::Test {
 protected:
  CheckpointTest() {
    folder_.Write("config.json", "{}");
    folder_.Write("tokenizer.model", "pieces");
  }

  std::string Path(const std::string& name) const { return folder_.path() + "/" + name; }
  void WriteShard(const std::string& name, const std::vector<std::string>& tensors) const {
    std::map<std::string, TensorToWrite> all;
    for (const std::string& tensor : tensors) {
      all[tensor] = {
          DType::kUInt8, {static_cast<int64_t>(tensor.size())}, std::as_bytes(std::span(tensor))};
    }
    ASSERT_TRUE(WriteSafetensors(Path(name), {}, all).ok());
  }
  void WriteIndex(const std::string& weight_map) const {
    folder_.Write("model.safetensors.index.json",
                  R"({"metadata":{"total_size":1},"weight_map":)" + weight_map + "}");
  }
  absl::StatusOr<Checkpoint> Open(const CheckpointOptions& options = {}) const {
    return Checkpoint::Open(folder_.path(), options);
  }
  absl::StatusCode Code(const CheckpointOptions& options = {}) const {
    return Open(options).status().code();
  }
  std::string Message(const CheckpointOptions& options = {}) const {
    return std::string(Open(options).status().message());
  }

  TempFolder folder_;
};

std::string Text(const absl::StatusOr<std::vector<std::byte>>& bytes) {
  return bytes.ok() ? std::string(reinterpret_cast<const char*>(bytes->data()), bytes->size()) : "";
}

TEST_F(CheckpointTest, OneFileIsRead) {
  WriteShard("model.safetensors", {"alpha", "beta"});
  const auto checkpoint = Open().value();
  EXPECT_EQ(checkpoint.config_json(), "{}");
  EXPECT_EQ(checkpoint.tokenizer_files().sentencepiece_model, "pieces");
  EXPECT_EQ(checkpoint.chat_template(), std::nullopt);
  EXPECT_EQ(checkpoint.generation_config_json(), std::nullopt);
  EXPECT_EQ(checkpoint.tensors().size(), 2u);
  EXPECT_EQ(Text(checkpoint.Read("beta")), "beta");
  EXPECT_EQ(checkpoint.Read("gamma").status().code(), kNotFound);
}

TEST_F(CheckpointTest, ShardsReadAsOne) {
  WriteShard("model-1.safetensors", {"alpha", "beta"});
  WriteShard("model-2.safetensors", {"gamma"});
  WriteIndex(R"({"alpha":"model-1.safetensors","beta":"model-1.safetensors",)"
             R"("gamma":"model-2.safetensors"})");
  const auto checkpoint = Open().value();
  EXPECT_EQ(checkpoint.tensors().size(), 3u);
  EXPECT_EQ(Text(checkpoint.Read("alpha")), "alpha");
  EXPECT_EQ(Text(checkpoint.Read("gamma")), "gamma");
}

// bad input: Weights | a missing shard | NOT_FOUND, named
TEST_F(CheckpointTest, MissingFilesAreNamed) {
  EXPECT_EQ(Checkpoint::Open(Path("nowhere")).status().code(), kNotFound);
  EXPECT_EQ(Code(), kNotFound) << "no weights";
  WriteIndex(R"({"alpha":"model-1.safetensors"})");
  EXPECT_EQ(Code(), kNotFound) << "no shard";
  EXPECT_THAT(Message(), HasSubstr("'model-1.safetensors' does not exist"));
  WriteShard("model-1.safetensors", {"alpha"});
  EXPECT_EQ(Code(), absl::StatusCode::kOk);
}

TEST_F(CheckpointTest, AModelMayHaveNoTokenizer) {
  WriteShard("model.safetensors", {"alpha"});
  EXPECT_NE(Open()->tokenizer_fingerprint(), *Sha256Hex(""));
  std::filesystem::remove(Path("tokenizer.model"));
  const auto checkpoint = Open().value();
  EXPECT_EQ(checkpoint.tokenizer_files().sentencepiece_model, std::nullopt);
  EXPECT_EQ(checkpoint.tokenizer_fingerprint(), *Sha256Hex("")) << "profiles need one";
  std::filesystem::create_symlink("nowhere", Path("tokenizer.model"));
  EXPECT_EQ(Code(), kNotFound) << "a broken link is a tokenizer that is lost";
}

TEST_F(CheckpointTest, OfTwoTokenizersTheJsonCountsAndIsPartOfTheFingerprint) {
  WriteShard("model.safetensors", {"alpha"});
  folder_.Write("tokenizer.json", "{}");
  const auto checkpoint = Open().value();
  EXPECT_EQ(checkpoint.tokenizer_files().tokenizer_json, "{}");
  EXPECT_EQ(checkpoint.tokenizer_files().sentencepiece_model, std::nullopt);
  EXPECT_FALSE(checkpoint.sha256().contains("tokenizer.model"));
  EXPECT_EQ(checkpoint.tokenizer_fingerprint(), *Sha256Hex("{}"));
  folder_.Write("tokenizer.json", "{ }");
  EXPECT_NE(Open()->files_fingerprint(), checkpoint.files_fingerprint());
  std::filesystem::remove(Path("tokenizer.json"));
  std::filesystem::create_symlink("nowhere", Path("tokenizer.json"));
  EXPECT_EQ(Code(), kNotFound) << "a broken link is no reason to take the other one";
}

TEST_F(CheckpointTest, FilesThatMayBeThereAreReadAndHashed) {
  WriteShard("model.safetensors", {"alpha"});
  const std::string bare = Open()->files_fingerprint();
  folder_.Write("tokenizer_config.json", R"({"chat_template": "of the config"})");
  folder_.Write("generation_config.json", R"({"eos_token_id": 2})");
  auto checkpoint = Open().value();
  EXPECT_EQ(checkpoint.chat_template(), "of the config");
  EXPECT_EQ(checkpoint.tokenizer_files().tokenizer_config_json,
            R"({"chat_template": "of the config"})");
  EXPECT_EQ(checkpoint.generation_config_json(), R"({"eos_token_id": 2})");
  EXPECT_NE(checkpoint.files_fingerprint(), bare);
  folder_.Write("chat_template.jinja", "of the file");
  EXPECT_EQ(Open()->chat_template(), "of the file");
  for (const char* name :
       {"tokenizer_config.json", "generation_config.json", "chat_template.jinja"}) {
    EXPECT_TRUE(Open()->sha256().contains(name)) << name;
  }
  std::filesystem::remove(Path("chat_template.jinja"));
  folder_.Write("tokenizer_config.json", R"({"chat_template": 1})");
  EXPECT_EQ(Code(), kInvalid);
}

TEST(ChatTemplateOfTheTokenizerConfig, IsATextOrTheDefaultOfSeveral) {
  EXPECT_EQ(*ParseChatTemplate("{}"), std::nullopt);
  EXPECT_EQ(*ParseChatTemplate(R"({"chat_template": null})"), std::nullopt);
  EXPECT_EQ(*ParseChatTemplate(R"({"chat_template": "a"})"), "a");
  EXPECT_EQ(*ParseChatTemplate(R"({"chat_template": [{"name": "tool_use", "template": "b"},
                                                     {"name": "default", "template": "c"}]})"),
            "c");
  for (const char* text :
       {"", "[]", R"({"chat_template": 1})", R"({"chat_template": []})",
        R"({"chat_template": [{"name": "tool_use", "template": "b"}]})",
        R"({"chat_template": [{"name": "default"}]})", R"({"chat_template": {"default": "a"}})",
        R"({"chat_template": "a", "chat_template": "b"})"}) {
    EXPECT_EQ(ParseChatTemplate(text).status().code(), kInvalid) << text;
  }
}

// bad input: Weights | index of shards: "../x", an absolute path | INVALID_ARGUMENT
TEST_F(CheckpointTest, ShardNamesCannotLeaveTheFolder) {
  WriteShard("model-1.safetensors", {"alpha"});
  const std::string outside = Path("model-1.safetensors");
  for (const std::string name :
       {"../x.safetensors", "/etc/passwd", "..", ".", "", ".hidden.safetensors", "a/b.safetensors",
        "a\\\\b.safetensors", "a\\u0000.safetensors", "config.json", ".safetensors"}) {
    WriteIndex("{\"alpha\":\"" + name + "\"}");
    EXPECT_EQ(Code(), kInvalid) << name;
  }
  WriteIndex("{\"alpha\":\"" + outside + "\"}");
  EXPECT_EQ(Code(), kInvalid) << "absolute";
  EXPECT_THAT(Message(), HasSubstr("gives tensor 'alpha' a file name that is not allowed"));
}

// bad input: Weights | index of shards: a link to outside | INVALID_ARGUMENT
TEST_F(CheckpointTest, LinksMayNotLeaveTheFolder) {
  const TempFolder outside;
  WriteShard("real.safetensors", {"alpha"});
  std::filesystem::create_symlink("real.safetensors", Path("model.safetensors"));
  EXPECT_EQ(Code(), absl::StatusCode::kOk) << "a link inside the folder";
  std::filesystem::remove(Path("model.safetensors"));
  std::filesystem::rename(Path("real.safetensors"), outside.path() + "/real.safetensors");
  std::filesystem::create_symlink(outside.path() + "/real.safetensors",
                                  Path("model-1.safetensors"));
  WriteIndex(R"({"alpha":"model-1.safetensors"})");
  EXPECT_EQ(Code(), kInvalid);
  EXPECT_THAT(Message(), HasSubstr("'model-1.safetensors' is a link to outside"));
  std::filesystem::create_symlink(outside.path() + "/real.safetensors", Path("model.safetensors"));
  EXPECT_EQ(Code(), kInvalid);
}

TEST_F(CheckpointTest, AFolderReachedThroughALinkIsFine) {
  WriteShard("model.safetensors", {"alpha"});
  const TempFolder other;
  std::filesystem::create_directory_symlink(folder_.path(), other.path() + "/link");
  EXPECT_TRUE(Checkpoint::Open(other.path() + "/link").ok());
}

TEST_F(CheckpointTest, IndexAndShardsMustAgree) {
  WriteShard("model-1.safetensors", {"alpha", "beta"});
  WriteIndex(R"({"alpha":"model-1.safetensors"})");
  EXPECT_EQ(Code(), kInvalid) << "beta is in no list";
  WriteIndex(R"({"alpha":"model-1.safetensors","beta":"model-1.safetensors",)"
             R"("gamma":"model-1.safetensors"})");
  EXPECT_EQ(Code(), kInvalid) << "gamma is in no file";
  WriteShard("model-2.safetensors", {"beta"});
  WriteIndex(R"({"alpha":"model-1.safetensors","beta":"model-2.safetensors"})");
  EXPECT_EQ(Code(), kInvalid) << "beta is in two files";
}

TEST_F(CheckpointTest, ADamagedIndexIsInvalid) {
  WriteShard("model-1.safetensors", {"alpha"});
  for (const std::string index :
       {"", "[]", "{}", R"({"weight_map":[]})", R"({"weight_map":{}})",
        R"({"weight_map":{"alpha":1}})",
        R"({"weight_map":{"alpha":"model-1.safetensors","alpha":"model-1.safetensors"}})",
        R"({"weight_map":{"alpha":"model-1.safetensors"}}x)",
        R"({"weight_map":{"alpha":{"a":{"b":{"c":1}}}}})"}) {
    folder_.Write("model.safetensors.index.json", index);
    EXPECT_EQ(Code(), kInvalid) << index;
  }
}

// bad input: Weights | digest not on the list | FAILED_PRECONDITION |
//   PinnedModel.IsServedOnlyWithTheDigestsThatAreListed
TEST_F(CheckpointTest, OnlyListedDigestsAreAccepted) {
  WriteShard("model.safetensors", {"alpha"});
  CheckpointOptions options;
  for (const char* name : {"config.json", "tokenizer.model", "model.safetensors"}) {
    options.expected_sha256[name] = *Sha256Hex(ReadFile(Path(name)));
  }
  EXPECT_EQ(Code(options), absl::StatusCode::kOk);
  options.expected_sha256["config.json"][0] ^= 1;
  EXPECT_EQ(Code(options), kFailedPrecondition) << "another digest";
  EXPECT_THAT(Message(options),
              HasSubstr("'config.json' does not have the expected SHA-256 digest"));
  options.expected_sha256.erase("config.json");
  EXPECT_EQ(Code(options), kFailedPrecondition) << "not listed";
  EXPECT_THAT(Message(options),
              HasSubstr("'config.json' is not on the list of expected SHA-256 digests"));
}

TEST_F(CheckpointTest, FilesThatEveryUserMayWriteAreRefused) {
  WriteShard("model.safetensors", {"alpha"});
  for (const std::string name : {"tokenizer.model", "model.safetensors"}) {
    ASSERT_EQ(chmod(Path(name).c_str(), 0666), 0);
    EXPECT_EQ(Code(), kFailedPrecondition);
    EXPECT_THAT(Message(), HasSubstr("'" + name + "' may be written by every user"));
    ASSERT_EQ(chmod(Path(name).c_str(), 0644), 0);
  }
}

TEST_F(CheckpointTest, FoldersThatEveryUserMayWriteAreRefusedWithStickyBitToo) {
  WriteShard("model.safetensors", {"alpha"});
  for (const mode_t mode : {0777, 01777}) {
    ASSERT_EQ(chmod(folder_.path().c_str(), mode), 0);
    EXPECT_EQ(Code(), kFailedPrecondition) << mode;
  }
  ASSERT_EQ(chmod(folder_.path().c_str(), 0775), 0);
  EXPECT_EQ(Code(), absl::StatusCode::kOk);
}

TEST_F(CheckpointTest, TheFingerprintTellsEveryContentApart) {
  WriteShard("model.safetensors", {"alpha"});
  const std::string fingerprint = Open()->files_fingerprint();
  EXPECT_EQ(fingerprint.size(), 64u);
  EXPECT_EQ(Open()->files_fingerprint(), fingerprint);
  for (const char* name : {"config.json", "tokenizer.model", "model.safetensors"}) {
    std::string contents = ReadFile(Path(name));
    const std::string original = contents;
    contents.back() ^= 1;  // of the weights, the last data byte
    folder_.Write(name, contents);
    ASSERT_TRUE(Open().ok());
    EXPECT_NE(Open()->files_fingerprint(), fingerprint) << name;
    folder_.Write(name, original);
  }
  EXPECT_EQ(Open()->files_fingerprint(), fingerprint);
  EXPECT_EQ(Open()->tokenizer_fingerprint(), *Sha256Hex(ReadFile(Path("tokenizer.model"))));
}

TEST(Sha256, AgreesWithThePublishedVectors) {
  EXPECT_EQ(*Sha256Hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(*Sha256Hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  Sha256 hash;
  hash.Update("a");
  hash.Update("bc");
  EXPECT_EQ(*hash.Hex(), *Sha256Hex("abc"));
}

}  // namespace
}  // namespace eta
