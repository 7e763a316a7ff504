// Models in several GGUF files.
#include "engine/checkpoint/gguf/gguf_parts.h"

#include <sys/stat.h>

#include <filesystem>
#include <functional>
#include <map>

#include "engine/base/sha256.h"
#include "engine/checkpoint/checkpoint.h"
#include "engine/model/model_config.h"
#include "engine/model/model_fingerprint.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/gguf_writer.h"
#include "tests/testing/engine/tiny_gguf.h"

namespace eta {
namespace {

namespace fs = std::filesystem;
using eta::testing::PartName;
using eta::testing::SetSplit;
using eta::testing::SplitGguf;
using eta::testing::TinyGguf;
using eta::testing::UseBlocks;
using eta::testing::WriteParts;
using ::testing::HasSubstr;

class GgufPartsTest : public ::testing::Test {
 protected:
  static std::string Fingerprint(const Checkpoint& checkpoint) {
    return ModelFingerprint(*ParseModelConfig(checkpoint.config_json()), checkpoint).value();
  }
  // Of three parts, after a change to them.
  absl::Status Changed(const std::function<void(std::vector<GgufWriter>&)>& change) const {
    std::vector<GgufWriter> parts = SplitGguf(TinyGguf().file, 3);
    change(parts);
    return Checkpoint::Open(WriteParts(folder_, "m", parts)).status();
  }

  TempFolder folder_;
};

TEST_F(GgufPartsTest, AreTheModelThatTheyWereCutFrom) {
  for (const char* architecture : {"llama", "qwen3moe", "gemma3"}) {
    TinyGguf tiny({.architecture = architecture});
    UseBlocks(tiny.file, "blk.0.attn_q.weight", GgmlType::kQ8_0);
    const auto whole = Checkpoint::Open(folder_.Write("whole.gguf", tiny.file.Serialize())).value();
    // Some writers give the first part no tensors.
    for (const size_t first_with_tensors : {0, 1}) {
      const std::string path =
          WriteParts(folder_, "m", SplitGguf(tiny.file, 4, first_with_tensors));
      const auto parts = Checkpoint::Open(path);
      ASSERT_TRUE(parts.ok()) << parts.status();
      EXPECT_EQ(parts->config_json(), whole.config_json());
      EXPECT_EQ(parts->tokenizer_fingerprint(), whole.tokenizer_fingerprint());
      EXPECT_EQ(parts->generation_config_json(), whole.generation_config_json());
      ASSERT_EQ(parts->tensors().size(), whole.tensors().size());
      for (const auto& entry : whole.tensors()) {
        EXPECT_EQ(*parts->Read(entry.first), *whole.Read(entry.first)) << entry.first;
        EXPECT_EQ(parts->ReadStored(entry.first)->bytes, whole.ReadStored(entry.first)->bytes);
      }
      EXPECT_EQ(parts->weights_digests(), whole.weights_digests());
      EXPECT_EQ(Fingerprint(*parts), Fingerprint(whole)) << "to profiles it is one model";
      EXPECT_NE(parts->files_fingerprint(), whole.files_fingerprint());
    }
  }
}

TEST_F(GgufPartsTest, FactorsOfRopeMayLieInAnyPart) {
  TinyGguf tiny;
  tiny.file.tensors.push_back({"rope_freqs.weight", {16}, 0, {}, {}});
  for (int i = 0; i < 16; ++i) tiny.file.tensors.back().data += RawBytes(2.0f);
  const std::string path = WriteParts(folder_, "m", SplitGguf(tiny.file, 7));
  EXPECT_THAT(Checkpoint::Open(path).status(),
              FailsSaying(kUnimplemented, "'rope_freqs.weight' holds other factors"));
}

TEST_F(GgufPartsTest, ACountOfOneIsAModelInOneFile) {
  TinyGguf tiny;
  for (const uint16_t count : {0, 1}) {
    SetSplit(tiny.file, 7, count, 7);
    EXPECT_TRUE(Checkpoint::Open(folder_.Write("tiny.gguf", tiny.file.Serialize())).ok());
  }
}

TEST_F(GgufPartsTest, LinksAreFollowedByTheirNames) {
  const std::vector<GgufWriter> parts = SplitGguf(TinyGguf().file, 2);
  fs::create_directory(folder_.path() + "/names");
  for (size_t i = 0; i < 2; ++i) {
    const std::string blob = folder_.Write("blob" + std::to_string(i), parts[i].Serialize());
    fs::create_symlink(blob, folder_.path() + "/names/" + PartName("m", i, 2));
  }
  const auto checkpoint = Checkpoint::Open(folder_.path() + "/names/" + PartName("m", 0, 2));
  ASSERT_TRUE(checkpoint.ok()) << checkpoint.status();
  EXPECT_EQ(checkpoint->sha256().begin()->first, PartName("m", 0, 2));
}

// bad input: GGUF parts | a part that is missing, another model's, of another number, count or
//   version, with other metadata; one that is not the first | NOT_FOUND or INVALID_ARGUMENT, file
//   and key named
TEST_F(GgufPartsTest, WhatDoesNotFitTogetherIsNamed) {
  const auto expect = [&](absl::StatusCode code, const std::string& sentence,
                          const std::function<void(std::vector<GgufWriter>&)>& change) {
    const absl::Status status = Changed(change);
    EXPECT_THAT(status, FailsSaying(code, sentence)) << status;
  };
  const std::string second = "file 'm-00002-of-00003.gguf': GGUF file: ";
  const std::string first = "file 'm-00001-of-00003.gguf': GGUF file: ";
  expect(absl::StatusCode::kOk, "", [](auto&) {});
  expect(kInvalid, second + "'split.no' is 2, but 1 by its name",
         [](auto& parts) { parts[1] = parts[2]; });
  expect(kInvalid, second + "'split.no' is missing",
         [](auto& parts) { parts[1].Remove("split.no"); });
  expect(kInvalid, second + "'split.count' is 1, but 3 in the first part",
         [](auto& parts) { parts[1].Remove("split.count"); });
  expect(kInvalid, second + "'split.count' is 4, but 3 in the first part",
         [](auto& parts) { parts[1].SetRaw("split.count", 2, RawBytes(uint16_t{4})); });
  expect(kInvalid, second + "'split.tensors.count' is not what the first part says",
         [](auto& parts) { parts[1].SetRaw("split.tensors.count", 5, RawBytes(int32_t{5})); });
  expect(kInvalid, second + "'llama.rope.freq_base' is not what the first part says",
         [](auto& parts) { parts[1].Set("llama.rope.freq_base", 5.0f); });
  expect(kInvalid, second + "'llama.logit_scale' is not what the first part says",
         [](auto& parts) { parts[1].Set("llama.logit_scale", 5.0f); });
  expect(absl::StatusCode::kOk, "", [](auto& parts) {
    parts[1].Set("general.architecture", "llama");
    parts[1].Set("general.alignment", uint32_t{32});
  });
  expect(kInvalid, second + "version 2, but the first part has version 3",
         [](auto& parts) { parts[1].version = 2; });
  expect(absl::StatusCode::kUnimplemented, second + "version 9 is not supported",
         [](auto& parts) { parts[1].version = 9; });
  expect(kInvalid, second + "has no tensors", [](auto& parts) { parts[1] = {}; });
  expect(kInvalid, first + "'split.no' is 1: a model is given by its first part, of number 0",
         [](auto& parts) { parts[0] = parts[1]; });

  const std::string path = WriteParts(folder_, "n", SplitGguf(TinyGguf().file, 3));
  fs::remove(folder_.path() + "/n-00002-of-00003.gguf");
  EXPECT_THAT(
      Checkpoint::Open(path).status(),
      FailsSaying(absl::StatusCode::kNotFound, "file 'n-00002-of-00003.gguf' does not exist"));
  fs::rename(path, folder_.path() + "/n.gguf");
  EXPECT_THAT(Checkpoint::Open(folder_.path() + "/n.gguf").status(),
              FailsSaying(kInvalid,
                          "file 'n.gguf': GGUF file: 'split.count' is 3: the name of the first "
                          "part must end with -00001-of-00003.gguf"));
}

// bad input: GGUF parts | a count of over 1000 or below 0; tensors that are missing, twice, or not
//   as many as the parts say | INVALID_ARGUMENT, file and key or tensor named
TEST_F(GgufPartsTest, CountsAreChecked) {
  const std::string first = "file 'm-00001-of-00003.gguf': GGUF file: ";
  const auto count = [](std::vector<GgufWriter>& parts, uint32_t type, const std::string& bytes) {
    parts[0].SetRaw("split.count", type, bytes);
  };
  for (const auto& [type, bytes] : std::map<uint32_t, std::string>{{2, RawBytes(uint16_t{1001})},
                                                                   {5, RawBytes(int32_t{-1})},
                                                                   {10, RawBytes(UINT64_MAX)},
                                                                   {4, RawBytes(uint32_t{1000000})},
                                                                   {6, RawBytes(3.0f)}}) {
    EXPECT_THAT(
        Changed([&](auto& parts) { count(parts, type, bytes); }),
        FailsSaying(kInvalid, first + "'split.count' must be one whole number in [0, 1000]"))
        << type;
  }
  const auto tensors = [](int32_t stated) {
    return [stated](std::vector<GgufWriter>& parts) {
      for (GgufWriter& part : parts) part.SetRaw("split.tensors.count", 5, RawBytes(stated));
    };
  };
  const size_t all = TinyGguf().file.tensors.size();
  EXPECT_THAT(Changed(tensors(20)),
              FailsSaying(kInvalid, first + "'split.tensors.count' is 20, but the 3 parts have " +
                                        std::to_string(all)));
  EXPECT_THAT(Changed(tensors(0)),
              FailsSaying(kInvalid, "'split.tensors.count' must be one whole"));
  EXPECT_THAT(Changed([](auto& parts) { parts[2].tensors.pop_back(); }),
              FailsSaying(kInvalid, "but the 3 parts have " + std::to_string(all - 1)));
  EXPECT_THAT(Changed([](auto& parts) { parts[2].tensors.push_back(parts[1].tensors.front()); }),
              FailsSaying(kInvalid,
                          "file 'm-00003-of-00003.gguf': GGUF file: tensor 'output_norm.weight' is "
                          "in file 'm-00002-of-00003.gguf' too"));
}

// bad input: GGUF parts | one of them damaged, not on the list of digests, changed, or writable by
//   every user | the error of a model in one file, the part named
TEST_F(GgufPartsTest, EachIsCheckedAsAFileOfItsOwn) {
  const std::vector<GgufWriter> parts = SplitGguf(TinyGguf().file, 3);
  const std::string path = WriteParts(folder_, "m", parts);
  std::map<std::string, std::string> digests;
  for (size_t i = 0; i < 3; ++i) digests[PartName("m", i, 3)] = *Sha256Hex(parts[i].Serialize());
  const auto checkpoint = Checkpoint::Open(path, {.expected_sha256 = digests}).value();
  EXPECT_EQ(checkpoint.sha256(), digests);
  digests.erase(PartName("m", 1, 3));
  EXPECT_THAT(Checkpoint::Open(path, {.expected_sha256 = digests}).status(),
              FailsSaying(absl::StatusCode::kFailedPrecondition,
                          "'m-00002-of-00003.gguf' is not on the list"));

  const std::string third = folder_.path() + "/" + PartName("m", 2, 3);
  chmod(third.c_str(), 0646);
  EXPECT_THAT(Checkpoint::Open(path).status(),
              FailsSaying(absl::StatusCode::kFailedPrecondition,
                          "'m-00003-of-00003.gguf' may be written by every user"));
  chmod(third.c_str(), 0644);
  const std::string bytes = parts[2].Serialize();
  folder_.Write(PartName("m", 2, 3), bytes.substr(0, bytes.size() - 40));
  EXPECT_EQ(checkpoint.Read("model.norm.weight").ok(), true) << "it is in another part";
  EXPECT_THAT(Checkpoint::Open(path).status(),
              FailsSaying(absl::StatusCode::kDataLoss,
                          "file 'm-00003-of-00003.gguf': GGUF file ends before the end of tensor"));
  size_t lost = 0;
  for (const auto& entry : checkpoint.tensors()) {
    const absl::Status read = checkpoint.Read(entry.first).status();
    if (read.ok()) continue;
    ++lost;
    EXPECT_THAT(read, FailsSaying(absl::StatusCode::kDataLoss, PartName("m", 2, 3)));
  }
  EXPECT_EQ(lost, parts[2].tensors.size());

  fs::create_directory(folder_.path() + "/open");
  fs::remove(third);
  fs::create_symlink("open/blob", third);
  folder_.Write("open/blob", bytes);
  chmod((folder_.path() + "/open").c_str(), 0707);
  EXPECT_THAT(Checkpoint::Open(path).status(),
              FailsSaying(absl::StatusCode::kFailedPrecondition, "may be written by every user"));
}

TEST(GgufModelName, IsTheFilesWithoutEnding) {
  const std::pair<const char*, const char*> cases[] = {
      {"a.gguf", "a"},
      {"a-00001-of-00003.gguf", "a"},
      {"a-00002-of-00003.gguf", "a-00002-of-00003"},
      {"-00001-of-00003.gguf", "-00001-of-00003"},
      {"a-00001-of-0000x.gguf", "a-00001-of-0000x"},
      {"a-00001-of-00003", "a-00001-of-00003"},
      {"blob", "blob"},
      {".gguf", ""},
  };
  for (const auto& [file, name] : cases) EXPECT_EQ(GgufModelName(file), name);
}

}  // namespace
}  // namespace eta
