// A GGUF file opened as a checkpoint, and a checkpoint written as a folder.
#include <sys/stat.h>

#include <algorithm>
#include <cstring>
#include <filesystem>

#include "engine/base/sha256.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/checkpoint/checkpoint_writer.h"
#include "engine/model/model_config.h"
#include "engine/model/model_fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_gguf.h"
#include "tests/testing/engine/tiny_model.h"

namespace eta {
namespace {

namespace fs = std::filesystem;
using eta::testing::TinyGguf;
using eta::testing::TinyModel;
using eta::testing::UseByteLevelVocabulary;
using ::testing::HasSubstr;

constexpr auto kFailedPrecondition = absl::StatusCode::kFailedPrecondition;

class GgufCheckpointTest : public ::testing::Test {
 protected:
  GgufCheckpointTest() { path_ = folder_.Write("tiny.gguf", tiny_.file.Serialize()); }
  std::string Out() const { return folder_.path() + "/out"; }
  static std::string Fingerprint(const Checkpoint& checkpoint) {
    return ModelFingerprint(*ParseModelConfig(checkpoint.config_json()), checkpoint).value();
  }
  std::vector<std::string> Names() const {
    std::vector<std::string> names;
    for (const auto& entry : fs::directory_iterator(folder_.path())) {
      names.push_back(entry.path().filename());
    }
    std::sort(names.begin(), names.end());
    return names;
  }

  TempFolder folder_;
  TinyGguf tiny_;
  std::string path_;
};

TEST_F(GgufCheckpointTest, AFileIsPresentedAsAFolderIs) {
  const auto checkpoint = Checkpoint::Open(path_).value();
  const auto config = ParseModelConfig(checkpoint.config_json()).value();
  EXPECT_TRUE(ValidateTensors(config, checkpoint.tensors()).ok());
  EXPECT_TRUE(checkpoint.tokenizer_files().sentencepiece_model);
  EXPECT_TRUE(checkpoint.generation_config_json());
  EXPECT_EQ(checkpoint.chat_template(), std::nullopt);
  const std::string digest = *Sha256Hex(tiny_.file.Serialize());
  EXPECT_EQ(checkpoint.sha256(), (std::map<std::string, std::string>{{"tiny.gguf", digest}}));
  EXPECT_EQ(checkpoint.weights_digests().weights.size(), 1u);
  EXPECT_EQ(checkpoint.tokenizer_fingerprint(),
            *Sha256Hex(*checkpoint.tokenizer_files().sentencepiece_model));
  EXPECT_EQ(checkpoint.files_fingerprint().size(), 64u);
  EXPECT_EQ(checkpoint.Read("model.norm.weight").value().size(), 64 * sizeof(float));
}

// bad input: GGUF | tensors missing, of another shape than the metadata say | FAILED_PRECONDITION,
//   by the names of Hugging Face
TEST_F(GgufCheckpointTest, TensorsThatDoNotFitHaveHuggingFacesNames) {
  tiny_.file.RemoveTensor("blk.1.ffn_up.weight");
  tiny_.file.Set("llama.feed_forward_length", uint32_t{95});
  folder_.Write("tiny.gguf", tiny_.file.Serialize());
  const auto checkpoint = Checkpoint::Open(path_).value();
  const absl::Status status =
      ValidateTensors(*ParseModelConfig(checkpoint.config_json()), checkpoint.tensors());
  EXPECT_THAT(status,
              FailsSaying(kFailedPrecondition, "'model.layers.1.mlp.up_proj.weight' is missing"));
  EXPECT_THAT(std::string(status.message()), HasSubstr("has shape [96, 64], expected [95, 64]"));
}

// bad input: GGUF | not on the list of digests | FAILED_PRECONDITION
TEST_F(GgufCheckpointTest, OnlyListedDigestsAreAccepted) {
  const std::string digest = *Sha256Hex(tiny_.file.Serialize());
  EXPECT_TRUE(Checkpoint::Open(path_, {.expected_sha256 = {{"tiny.gguf", digest}}}).ok());
  const auto other = Checkpoint::Open(path_, {.expected_sha256 = {{"other.gguf", digest}}});
  EXPECT_EQ(other.status().code(), kFailedPrecondition);
  EXPECT_THAT(std::string(other.status().message()),
              HasSubstr("'tiny.gguf' is not on the list of expected SHA-256 digests"));
  const auto changed =
      Checkpoint::Open(path_, {.expected_sha256 = {{"tiny.gguf", std::string(64, '0')}}});
  EXPECT_EQ(changed.status().code(), kFailedPrecondition);
}

// bad input: GGUF | writable by every user, or in such a folder | FAILED_PRECONDITION
TEST_F(GgufCheckpointTest, WhatEveryUserMayWriteIsRefused) {
  chmod(path_.c_str(), 0646);
  EXPECT_THAT(Checkpoint::Open(path_).status(),
              FailsSaying(kFailedPrecondition, "'tiny.gguf' may be written by every user"));
  chmod(path_.c_str(), 0644);
  EXPECT_TRUE(Checkpoint::Open(path_).ok());
  chmod(folder_.path().c_str(), 0707);
  EXPECT_THAT(std::string(Checkpoint::Open(path_).status().message()),
              HasSubstr("the folder of the checkpoint's file may be written by every user"));
}

TEST_F(GgufCheckpointTest, InAStickyFolderNobodyElseMayReplaceIt) {
  chmod(folder_.path().c_str(), 01777);
  EXPECT_TRUE(Checkpoint::Open(path_).ok()) << "as in /tmp";
  if (geteuid() == 0) {
    ASSERT_EQ(chown(path_.c_str(), 12345, 12345), 0);
    EXPECT_EQ(Checkpoint::Open(path_).status().code(), kFailedPrecondition) << "somebody else's";
    ASSERT_EQ(chown(path_.c_str(), 0, 0), 0);
    ASSERT_EQ(chown(folder_.path().c_str(), 12345, 12345), 0);
    EXPECT_EQ(Checkpoint::Open(path_).status().code(), kFailedPrecondition)
        << "the folder's owner may rename what is in it";
  }
}

TEST_F(GgufCheckpointTest, ErrorsNameTheFileThatWasRead) {
  const auto checkpoint = Checkpoint::Open(path_).value();
  EXPECT_EQ(checkpoint.Naming(absl::InvalidArgumentError("config.json: head_dim 3")).message(),
            "the GGUF file (read as config.json): head_dim 3");
  const absl::Status other = absl::NotFoundError("tokenizer_config.json: x");
  EXPECT_EQ(checkpoint.Naming(other).message(), "the GGUF file (read as tokenizer_config.json): x");
  EXPECT_TRUE(checkpoint.Naming(absl::OkStatus()).ok());
}

TEST_F(GgufCheckpointTest, ALinkIsFollowedAndKeepsItsName) {
  fs::rename(path_, folder_.path() + "/blob");
  fs::create_symlink("blob", path_);
  EXPECT_TRUE(Checkpoint::Open(path_).value().sha256().contains("tiny.gguf"));
}

// bad input: GGUF | changed while it is read | DATA_LOSS
TEST_F(GgufCheckpointTest, AFileThatChangesAfterItWasOpenedIsDataLoss) {
  const auto checkpoint = Checkpoint::Open(path_).value();
  folder_.Write("tiny.gguf", "GGUF");
  EXPECT_EQ(checkpoint.Read("model.norm.weight").status().code(), absl::StatusCode::kDataLoss);
}

void ExpectEqual(const Checkpoint& a, const Checkpoint& b) {
  EXPECT_EQ(a.config_json(), b.config_json());
  EXPECT_EQ(a.tokenizer_files().sentencepiece_model, b.tokenizer_files().sentencepiece_model);
  EXPECT_EQ(a.tokenizer_files().tokenizer_json, b.tokenizer_files().tokenizer_json);
  EXPECT_EQ(a.tokenizer_files().tokenizer_config_json, b.tokenizer_files().tokenizer_config_json);
  EXPECT_EQ(a.chat_template(), b.chat_template());
  EXPECT_EQ(a.generation_config_json(), b.generation_config_json());
  ASSERT_EQ(a.tensors().size(), b.tensors().size());
  for (const auto& [name, info] : a.tensors()) {
    EXPECT_EQ(*a.Read(name), *b.Read(name)) << name;
    EXPECT_EQ(info.shape, b.tensors().at(name).shape);
    EXPECT_EQ(info.dtype, b.tensors().at(name).dtype);
  }
}

TEST_F(GgufCheckpointTest, IsWrittenAsAFolderThatIsTheSameModel) {
  for (const bool byte_level : {false, true}) {
    if (byte_level) UseByteLevelVocabulary(tiny_.file);
    tiny_.file.Set("tokenizer.chat_template", "{{ bos_token }}");
    folder_.Write("tiny.gguf", tiny_.file.Serialize());
    const auto checkpoint = Checkpoint::Open(path_).value();
    fs::remove_all(Out());
    const absl::Status written = WriteCheckpoint(checkpoint, Out(), std::nullopt);
    ASSERT_TRUE(written.ok()) << written;
    const auto read = Checkpoint::Open(Out()).value();
    ExpectEqual(checkpoint, read);
    EXPECT_EQ(Fingerprint(read), Fingerprint(checkpoint));
    EXPECT_EQ(Names(), (std::vector<std::string>{"out", "tiny.gguf"}));
  }
}

TEST_F(GgufCheckpointTest, TheModelIsTensorsVocabularyAndShape) {
  const auto fingerprint = [this] {
    folder_.Write("tiny.gguf", tiny_.file.Serialize());
    const auto checkpoint = Checkpoint::Open(path_);
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return checkpoint.ok() ? Fingerprint(*checkpoint) : "";
  };
  const std::string model = fingerprint();
  tiny_.file.Set("tokenizer.chat_template", "{{ bos_token }}");
  EXPECT_EQ(fingerprint(), model) << "how a chat becomes a prompt is no part of it";
  tiny_.file.Set("general.name", "another name");
  EXPECT_EQ(fingerprint(), model);
  char& byte = tiny_.file.At("output_norm.weight").data[3];
  byte = static_cast<char>(byte ^ 1);
  EXPECT_NE(fingerprint(), model);
  byte = static_cast<char>(byte ^ 1);
  EXPECT_EQ(fingerprint(), model);
  UseByteLevelVocabulary(tiny_.file);
  EXPECT_NE(fingerprint(), model);
}

TEST_F(GgufCheckpointTest, AnImportedFolderIsAnotherModelOnceItsWeightsAreOthers) {
  const std::string model = Fingerprint(*Checkpoint::Open(path_));
  ASSERT_TRUE(WriteCheckpoint(*Checkpoint::Open(path_), Out(), std::nullopt).ok());
  const auto imported = [this] {
    const auto checkpoint = Checkpoint::Open(Out());
    EXPECT_TRUE(checkpoint.ok()) << checkpoint.status();
    return Fingerprint(*checkpoint);
  };
  EXPECT_EQ(imported(), model);
  // Imported once more it is still the same.
  ASSERT_TRUE(WriteCheckpoint(*Checkpoint::Open(Out()), Out() + "2", std::nullopt).ok());
  EXPECT_EQ(Fingerprint(*Checkpoint::Open(Out() + "2")), model);
  std::string weights = ReadFile(Out() + "/model.safetensors");
  weights.back() = static_cast<char>(weights.back() ^ 1);
  folder_.Write("out/model.safetensors", weights);
  EXPECT_NE(imported(), model);
  weights.back() = static_cast<char>(weights.back() ^ 1);
  folder_.Write("out/model.safetensors", weights);
  EXPECT_EQ(imported(), model);
  fs::remove_all(Out());
  ASSERT_TRUE(WriteCheckpoint(*Checkpoint::Open(path_), Out(), DType::kFloat16).ok());
  EXPECT_NE(imported(), model) << "rounded weights";
}

TEST_F(GgufCheckpointTest, AnImportRecordThatMakesNoSenseIsRefusedByItsField) {
  ASSERT_TRUE(WriteCheckpoint(*Checkpoint::Open(path_), Out(), std::nullopt).ok());
  const auto sound = nlohmann::json::parse(ReadFile(Out() + "/eta_import.json"));
  const auto refused = [&](const std::string& pointer, const nlohmann::json& value) {
    auto changed = sound;
    changed[nlohmann::json::json_pointer(pointer)] = value;
    folder_.Write("out/eta_import.json", changed.dump());
    const absl::Status status = Checkpoint::Open(Out()).status();
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    return std::string(status.message());
  };
  EXPECT_THAT(refused("/format", "x"), HasSubstr("eta_import.json: format"));
  EXPECT_THAT(refused("/read/weights", nlohmann::json::array({"x"})), HasSubstr("read.weights"));
  EXPECT_THAT(refused("/read/weights", nlohmann::json::array({1})), HasSubstr("read.weights"));
  EXPECT_THAT(refused("/read/weights", nlohmann::json::array()),
              HasSubstr("read.weights: must be at least one"));
  EXPECT_THAT(refused("/read/weights", {std::string(64, 'b'), std::string(64, 'a')}),
              HasSubstr("read.weights: must be sorted"));
  EXPECT_THAT(refused("/written/index_metric", "x"), HasSubstr("written.index_metric"));
  EXPECT_THAT(refused("/written/extra", 1), HasSubstr("extra"));
}

TEST_F(GgufCheckpointTest, AFolderIsWrittenToo) {
  const TinyModel model({.dtype = DType::kBFloat16, .shards = 3});
  const auto checkpoint = Checkpoint::Open(model.path()).value();
  fs::create_directory(Out());
  ASSERT_TRUE(WriteCheckpoint(checkpoint, Out() + "/", std::nullopt).ok());
  const auto read = Checkpoint::Open(Out()).value();
  ExpectEqual(checkpoint, read);
}

TEST_F(GgufCheckpointTest, WeightsAreRoundedToTheTypeThatIsAskedFor) {
  const auto checkpoint = Checkpoint::Open(path_).value();
  for (const DType dtype : {DType::kFloat16, DType::kBFloat16, DType::kFloat32}) {
    fs::remove_all(Out());
    ASSERT_TRUE(WriteCheckpoint(checkpoint, Out(), dtype).ok());
    const auto read = Checkpoint::Open(Out()).value();
    for (const auto& [name, values] : tiny_.tensors) {
      EXPECT_EQ(read.tensors().at(name).dtype, dtype);
      const auto data = *read.Read(name);
      ASSERT_EQ(data.size(), values.size() * SizeOf(dtype));
      for (size_t i = 0; i < values.size(); ++i) {
        ASSERT_EQ(LoadElement(dtype, data.data(), static_cast<int64_t>(i)),
                  RoundTo(dtype, values[i]));
      }
    }
  }
}

TEST_F(GgufCheckpointTest, WhatCannotBeWrittenLeavesNothingBehind) {
  const float large = 1e6f;
  std::memcpy(tiny_.file.At("output_norm.weight").data.data() + 12, &large, sizeof(large));
  folder_.Write("tiny.gguf", tiny_.file.Serialize());
  const auto checkpoint = Checkpoint::Open(path_).value();
  const absl::Status status = WriteCheckpoint(checkpoint, Out(), DType::kFloat16);
  EXPECT_THAT(status, FailsSaying(absl::StatusCode::kOutOfRange,
                                  "'model.norm.weight': element 3 is too large for float16"));
  EXPECT_EQ(Names(), std::vector<std::string>{"tiny.gguf"});

  fs::create_directory(Out());
  folder_.Write("out/mine", "kept");
  EXPECT_EQ(WriteCheckpoint(checkpoint, Out(), std::nullopt).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(WriteCheckpoint(checkpoint, path_, std::nullopt).code(),
            absl::StatusCode::kAlreadyExists);
  EXPECT_EQ(ReadFile(Out() + "/mine"), "kept");
  EXPECT_EQ(Names(), (std::vector<std::string>{"out", "tiny.gguf"}));
  EXPECT_FALSE(WriteCheckpoint(checkpoint, folder_.path() + "/no/such/folder", std::nullopt).ok());
}

}  // namespace
}  // namespace eta
