#include "engine/checkpoint/gguf/gguf_tokenizer.h"

#include <cmath>

#include "engine/checkpoint/gguf/gguf_file.h"
#include "engine/checkpoint/gguf/gguf_vocabulary.h"
#include "engine/checkpoint/piece_table.h"
#include "engine/model/model_config.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "nlohmann/json.hpp"
#include "tests/testing/base/status_reason.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/engine/tiny_gguf.h"

namespace eta {
namespace {

using eta::testing::TinyGguf;
using eta::testing::UseByteLevelVocabulary;
using ::testing::ElementsAre;
using Json = nlohmann::json;

absl::StatusOr<GgufTokenizer> Read(const GgufWriter& file) {
  const std::string bytes = file.Serialize();
  const auto header = ParseGgufHeader(bytes, bytes.size());
  if (!header.ok()) return header.status();
  GgufMetadata metadata(*header);
  return ReadGgufTokenizer(metadata);
}

void ExpectError(const GgufWriter& file, absl::StatusCode code, const std::string& sentence) {
  EXPECT_THAT(Read(file).status(), FailsSaying(code, sentence));
}

GgufWriter ByteLevel() {
  GgufWriter file = TinyGguf().file;
  UseByteLevelVocabulary(file);
  return file;
}

TEST(GgufTokenizerTest, PiecesBecomeASentencePieceModel) {
  const auto tokenizer = Read(TinyGguf().file).value();
  EXPECT_FALSE(tokenizer.files.tokenizer_json);
  ASSERT_TRUE(tokenizer.files.sentencepiece_model);
  const auto table = ParsePieceTable(*tokenizer.files.sentencepiece_model).value();
  ASSERT_EQ(table.pieces.size(), 264u);
  EXPECT_EQ(table.pieces[261].text, "th");
  EXPECT_EQ(table.pieces[261].score, -261.0f);
  EXPECT_EQ(table.pieces[261].type, PieceType::kNormal);
  EXPECT_EQ(table.pieces[68].text, "<0x41>");
  EXPECT_TRUE(table.byte_fallback);
  EXPECT_TRUE(table.add_dummy_prefix);
  EXPECT_EQ(table.unk_id, 0);
  EXPECT_EQ(table.bos_id, 1);
  EXPECT_EQ(table.eos_id, 2);
  EXPECT_EQ(tokenizer.vocab_size, 264);
  EXPECT_EQ(Json::parse(*tokenizer.generation_config_json)["eos_token_id"], Json({2}));
  EXPECT_EQ(Json::parse(*tokenizer.files.tokenizer_config_json)["add_bos_token"], true);
}

TEST(GgufTokenizerTest, PiecesWithoutAPrefixAndWithUnusualTypes) {
  GgufWriter file = TinyGguf().file;
  file.Set("tokenizer.ggml.add_space_prefix", false);
  std::vector<int32_t> types(264, 1);
  types[0] = 2;
  for (int i = 1; i < 3; ++i) types[i] = 3;
  for (int i = 3; i < 259; ++i) types[i] = 6;
  types[259] = 5;
  types[263] = 4;
  file.Set("tokenizer.ggml.token_type", types);
  const auto tokenizer = Read(file).value();
  const auto table = ParsePieceTable(*tokenizer.files.sentencepiece_model).value();
  EXPECT_FALSE(table.add_dummy_prefix);
  EXPECT_EQ(table.pieces[259].type, PieceType::kControl) << "unused: never made from text";
  EXPECT_EQ(table.pieces[263].type, PieceType::kUserDefined);
}

TEST(GgufTokenizerTest, PiecesThatNothingBegins) {
  GgufWriter file = TinyGguf().file;
  file.Set("tokenizer.ggml.add_bos_token", false);
  const auto tokenizer = Read(file).value();
  EXPECT_EQ(tokenizer.bos_id, std::nullopt);
  EXPECT_EQ(ParsePieceTable(*tokenizer.files.sentencepiece_model)->bos_id, -1);
  EXPECT_EQ(Json::parse(*tokenizer.files.tokenizer_config_json)["bos_token"], "<s>");
}

TEST(GgufTokenizerTest, ByteLevelTokensBecomeATokenizerJson) {
  const auto tokenizer = Read(ByteLevel()).value();
  EXPECT_FALSE(tokenizer.files.sentencepiece_model);
  const Json json = Json::parse(*tokenizer.files.tokenizer_json);
  const Json& model = json["model"];
  EXPECT_EQ(model["type"], "BPE");
  EXPECT_EQ(model["vocab"]["th"], 259);
  EXPECT_EQ(model["vocab"]["\xC4\xA0the"], 261);
  EXPECT_EQ(model["vocab"]["<s>"], 1) << "before ordinary tokens: the ids would not fit without it";
  EXPECT_FALSE(model["vocab"].contains("<tool>"));
  EXPECT_EQ(model["merges"], Json({"t h", "th e", "\xC4\xA0 the"}));
  EXPECT_EQ(model["ignore_merges"], false);
  ASSERT_EQ(json["added_tokens"].size(), 5u);
  EXPECT_EQ(json["added_tokens"][3]["content"], "<tool>");
  EXPECT_EQ(json["added_tokens"][3]["special"], false);
  EXPECT_EQ(json["added_tokens"][4]["id"], 263);
  EXPECT_EQ(json["added_tokens"][4]["special"], true);
  EXPECT_EQ(json["pre_tokenizer"]["pretokenizers"].size(), 3u);
  EXPECT_EQ(json["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"], "\\p{N}");
  EXPECT_EQ(json["pre_tokenizer"]["pretokenizers"][2]["type"], "ByteLevel");
  EXPECT_EQ(json["decoder"]["type"], "ByteLevel");
  EXPECT_EQ(json["normalizer"], nullptr);
  EXPECT_EQ(json["post_processor"], nullptr);
  EXPECT_THAT(Json::parse(*tokenizer.generation_config_json)["eos_token_id"], ElementsAre(2, 263));
}

TEST(GgufTokenizerTest, TheUnknownTokenIsCarriedOver) {
  GgufWriter file = ByteLevel();
  const auto model = [&file] { return Json::parse(*Read(file)->files.tokenizer_json)["model"]; };
  EXPECT_EQ(model()["unk_token"], nullptr);
  file.Set("tokenizer.ggml.unknown_token_id", uint32_t{0});
  EXPECT_EQ(model()["unk_token"], "<|pad|>");
  EXPECT_EQ(model()["vocab"]["<|pad|>"], 0);
  file.Set("tokenizer.ggml.unknown_token_id", uint32_t{262});
  EXPECT_EQ(model()["unk_token"], "<tool>");
  EXPECT_EQ(model()["vocab"]["<tool>"], 262) << "where the model looks for it";
  file.Set("tokenizer.ggml.unknown_token_id", uint32_t{263});
  EXPECT_EQ(model()["unk_token"], "<|im_end|>") << "the tokenizer tells whether it is structure";
}

TEST(GgufTokenizerTest, WhatThePreTokenizerImplies) {
  GgufWriter file = ByteLevel();
  file.Set("tokenizer.ggml.pre", "llama-bpe");
  Json json = Json::parse(*Read(file)->files.tokenizer_json);
  EXPECT_EQ(json["model"]["ignore_merges"], true);
  EXPECT_EQ(json["post_processor"]["single"][0]["SpecialToken"]["id"], "<s>");
  EXPECT_EQ(json["post_processor"]["special_tokens"]["<s>"]["ids"], Json({1}));
  file.Set("tokenizer.ggml.add_bos_token", false);
  EXPECT_EQ(Json::parse(*Read(file)->files.tokenizer_json)["post_processor"], nullptr);
  file.Set("tokenizer.ggml.pre", "qwen2");
  EXPECT_EQ(Json::parse(*Read(file)->files.tokenizer_json)["normalizer"]["type"], "NFC");
  file.Remove("tokenizer.ggml.pre");
  EXPECT_EQ(Json::parse(*Read(file)->files.tokenizer_json)["pre_tokenizer"]["pretokenizers"].size(),
            5u);
  file.Set("tokenizer.ggml.add_bos_token", true);
  EXPECT_NE(Json::parse(*Read(file)->files.tokenizer_json)["post_processor"], nullptr);
}

TEST(GgufTokenizerTest, TokensThatOnlyPadTheVocabularyAreLeftOut) {
  GgufWriter file = ByteLevel();
  std::vector<int32_t> types(264, 1);
  types[262] = types[263] = 5;
  file.Set("tokenizer.ggml.token_type", types);
  const Json json = Json::parse(*Read(file)->files.tokenizer_json);
  EXPECT_EQ(json["model"]["vocab"].size(), 262u);
  EXPECT_TRUE(json["added_tokens"].empty());
}

TEST(GgufTokenizerTest, ATokenThatEndsATurnIsControlWhateverTheFileCallsIt) {
  GgufWriter file = ByteLevel();
  std::vector<int32_t> types(264, 1);
  types[263] = 4;
  file.Set("tokenizer.ggml.token_type", types);
  const auto tokenizer = Read(file).value();
  const Json json = Json::parse(*tokenizer.files.tokenizer_json);
  ASSERT_EQ(json["added_tokens"].size(), 1u);
  EXPECT_EQ(json["added_tokens"][0]["special"], true);
}

TEST(GgufTokenizerTest, TheTemplateAndTheEndsOfAnswers) {
  GgufWriter file = ByteLevel();
  file.Set("tokenizer.chat_template", "{{ messages }}");
  file.Set("tokenizer.ggml.eot_token_id", uint32_t{1});
  file.Set("tokenizer.ggml.padding_token_id", uint32_t{0});
  const auto tokenizer = Read(file).value();
  EXPECT_EQ(tokenizer.files.chat_template, "{{ messages }}");
  const Json generation = Json::parse(*tokenizer.generation_config_json);
  EXPECT_THAT(generation["eos_token_id"], ElementsAre(1, 2, 263));
  EXPECT_EQ(generation["pad_token_id"], 0);
}

// gpt-oss: <|end|> ends a message of an answer.
TEST(GgufTokenizerTest, ReturnsAndCallsEndAnswersOfHarmony) {
  GgufWriter file = ByteLevel();
  const auto ends = [&](const std::vector<std::string>& tokens) {
    file.Set("tokenizer.ggml.tokens", tokens);
    file.Set("tokenizer.ggml.token_type", std::vector<int32_t>(tokens.size(), 3));
    file.Set("tokenizer.ggml.eos_token_id", uint32_t{1});
    file.Set("tokenizer.ggml.eot_token_id", uint32_t{2});
    const std::string bytes = file.Serialize();
    const auto header = ParseGgufHeader(bytes, bytes.size()).value();
    GgufMetadata metadata(header);
    return ReadGgufVocabulary(metadata).value().end_ids;
  };
  EXPECT_THAT(ends({"a", "<|return|>", "<|end|>", "<|call|>"}), ElementsAre(1, 3));
  EXPECT_THAT(ends({"a", "<|im_end|>", "<|end|>", "b"}), ElementsAre(1, 2));
}

TEST(GgufTokenizerTest, AllEndsThatAFileListsEndAnswers) {
  GgufWriter file = ByteLevel();
  file.Set("tokenizer.ggml.eos_token_ids", std::vector<int32_t>{262, 2, 1});
  EXPECT_THAT(Json::parse(*Read(file)->generation_config_json)["eos_token_id"],
              ElementsAre(1, 2, 262, 263));
  file.Set("tokenizer.ggml.eos_token_ids", std::vector<int32_t>{2, 264});
  ExpectError(file, kInvalid, "'tokenizer.ggml.eos_token_ids' must be whole numbers in [0, 263]");
  file.Set("tokenizer.ggml.eos_token_ids", std::vector<int32_t>{-1});
  ExpectError(file, kInvalid, "'tokenizer.ggml.eos_token_ids' must be whole numbers");
}

TEST(GgufTokenizerTest, AnEndIsNotPutBehindPrompts) {
  for (GgufWriter file : {ByteLevel(), TinyGguf().file}) {
    const auto plain = Read(file);
    file.Set("tokenizer.ggml.add_eos_token", true);
    const auto tokenizer = Read(file).value();
    EXPECT_EQ(tokenizer.files.tokenizer_json, plain->files.tokenizer_json);
    EXPECT_EQ(tokenizer.files.sentencepiece_model, plain->files.sentencepiece_model);
    EXPECT_EQ(tokenizer.files.tokenizer_config_json, plain->files.tokenizer_config_json);
  }
}

TEST(GgufTokenizerTest, AFileMayHaveNone) {
  GgufWriter file = TinyGguf().file;
  for (const char* model : {"none", "no_vocab"}) {
    file.Set("tokenizer.ggml.model", model);
    const auto tokenizer = Read(file).value();
    EXPECT_FALSE(tokenizer.files.sentencepiece_model || tokenizer.files.tokenizer_json);
    EXPECT_EQ(tokenizer.vocab_size, 0);
  }
}

// bad input: GGUF | tokenizer or pre-tokenizer that is not known | UNIMPLEMENTED, named
TEST(GgufTokenizerTest, WhatIsNotKnownIsRefusedByName) {
  const auto with = [](const std::string& key, const auto& value) {
    GgufWriter file = ByteLevel();
    file.Set(key, value);
    return file;
  };
  ExpectError(with("tokenizer.ggml.model", "bert"), kUnimplemented,
              "'tokenizer.ggml.model' 'bert' is not supported, only gpt2 and llama");
  ExpectError(with("tokenizer.ggml.pre", "kimi-k2"), kUnimplemented,
              "'tokenizer.ggml.pre' 'kimi-k2' is not a pre-tokenizer that is known");
  ExpectError(with("tokenizer.ggml.add_sep_token", true), kUnimplemented,
              "'tokenizer.ggml.add_sep_token' true is not supported");
  ExpectError(with("tokenizer.ggml.add_space_prefix", true), kUnimplemented,
              "'tokenizer.ggml.add_space_prefix' true is not supported");
  GgufWriter pieces = TinyGguf().file;
  pieces.Set("tokenizer.ggml.remove_extra_whitespaces", true);
  ExpectError(pieces, kUnimplemented, "'tokenizer.ggml.remove_extra_whitespaces'");
  pieces.Remove("tokenizer.ggml.remove_extra_whitespaces");
  pieces.Set("tokenizer.ggml.precompiled_charsmap", std::vector<int32_t>{1});
  ExpectError(pieces, kUnimplemented, "'tokenizer.ggml.precompiled_charsmap' is not supported");
}

// bad input: GGUF | tokens empty, not UTF-8, twice; lists that do not fit; merges of one part;
//   special ids outside | INVALID_ARGUMENT, named
TEST(GgufTokenizerTest, ListsThatDoNotFitAreNamed) {
  const auto with = [](const std::string& key, const auto& value) {
    GgufWriter file = ByteLevel();
    file.Set(key, value);
    return file;
  };
  using Texts = std::vector<std::string>;
  ExpectError(with("tokenizer.ggml.tokens", "a"), kInvalid, "must be a list of texts");
  ExpectError(with("tokenizer.ggml.tokens", Texts{}), kInvalid, "a list of 1 to 2^20 texts");
  ExpectError(with("tokenizer.ggml.tokens", Texts{"a", ""}), kInvalid, "entry 1 is empty");
  ExpectError(with("tokenizer.ggml.tokens", Texts{"a", "\xED\xA0\x80"}), kInvalid,
              "entry 1 is not UTF-8");
  ExpectError(with("tokenizer.ggml.tokens", Texts{"a", "b", "a"}), kInvalid,
              "entry 2 is there twice");
  ExpectError(with("tokenizer.ggml.tokens", Texts{std::string(1025, 'a')}), kInvalid,
              "entry 0 is over 1024 bytes");
  ExpectError(with("tokenizer.ggml.token_type", std::vector<int32_t>{1}), kInvalid,
              "must have as many entries as tokenizer.ggml.tokens");
  ExpectError(with("tokenizer.ggml.token_type", std::vector<int32_t>(264, 7)), kInvalid,
              "entry 0 must be in [1, 6]");
  ExpectError(with("tokenizer.ggml.bos_token_id", uint32_t{264}), kInvalid,
              "'tokenizer.ggml.bos_token_id' must be one whole number in [0, 263]");
  for (const char* merge : {"ab", " a b", "a b c", "a ", ""}) {
    ExpectError(with("tokenizer.ggml.merges", Texts{"t h", merge}), kInvalid,
                "'tokenizer.ggml.merges' entry 1 must be two parts with a space between");
  }
  GgufWriter pieces = TinyGguf().file;
  pieces.Set("tokenizer.ggml.scores", std::vector<float>{1.0f});
  ExpectError(pieces, kInvalid, "'tokenizer.ggml.scores' must have as many entries");
  pieces.Set("tokenizer.ggml.scores", std::vector<float>(264, -INFINITY));
  ExpectError(pieces, kInvalid, "'tokenizer.ggml.scores' entry 0 is not finite");
}

}  // namespace
}  // namespace eta
