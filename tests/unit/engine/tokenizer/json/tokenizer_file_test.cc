#include "engine/tokenizer/json/tokenizer_file.h"

#include <string>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using testing::HasSubstr;

std::string Error(const std::string& text) {
  const auto file = ParseTokenizerFile(text);
  EXPECT_FALSE(file.ok()) << text.substr(0, 100);
  EXPECT_EQ(file.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(file.status().message());
}

std::string OfModel(const std::string& fields) {
  return R"({"model":{"type":"BPE",)" + fields + "}}";
}

constexpr char kToken[] =
    R"({"id":3,"content":"<s>","single_word":false,"lstrip":true,"rstrip":false,"normalized":true,"special":true})";

TEST(TokenizerJsonFile, LongPartsAreTablesAndTheRestIsATree) {
  const auto file = ParseTokenizerFile(absl::StrCat(
      R"({"version":"1.0","added_tokens":[)", kToken,
      R"(],"model":{"merges":["a b",["ab"," c"]],"vocab":{"a":0,"b":7},"type":"BPE"}})"));
  ASSERT_TRUE(file.ok()) << file.status();
  const TokenizerTables& tables = file->tables;
  ASSERT_EQ(tables.vocabulary.size(), 2u);
  EXPECT_EQ(tables.vocabulary[1], "b");
  EXPECT_EQ(tables.ids, (std::vector<int32_t>{0, 7}));
  ASSERT_EQ(tables.merge_left.size(), 2u);
  EXPECT_EQ(tables.merge_left[1], "ab");
  EXPECT_EQ(tables.merge_right[1], " c");
  ASSERT_EQ(tables.added.size(), 1u);
  EXPECT_EQ(tables.added[0].content, "<s>");
  EXPECT_TRUE(tables.added[0].lstrip && tables.added[0].normalized && tables.added[0].special);
  EXPECT_FALSE(tables.added[0].single_word || tables.added[0].rstrip);
  EXPECT_EQ(file->rest.root()["version"], "1.0");
  EXPECT_EQ(file->rest.root()["model"]["type"], "BPE");
  EXPECT_TRUE(file->rest.root()["model"]["vocab"].is_null());
}

// bad input: Tokenizer files | tokenizer.json: cut, not JSON, not UTF-8, lone surrogates, a key
//   twice | INVALID_ARGUMENT, the byte or key named
TEST(TokenizerJsonFile, WhatIsDamagedIsNamed) {
  EXPECT_THAT(Error(""), HasSubstr("is not JSON"));
  EXPECT_THAT(Error("[]"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(Error("1"), HasSubstr("is not a JSON object"));
  EXPECT_THAT(Error(R"({"a":1)"), HasSubstr("is not JSON at byte"));
  EXPECT_THAT(Error("{\"a\":\"\xFF\"}"), HasSubstr("is not UTF-8 at byte 6"));
  EXPECT_THAT(Error(std::string("{}\0", 3)), HasSubstr("NUL"));
  EXPECT_THAT(Error(R"({"a":1,"\u0061":2})"), HasSubstr("has the key 'a' twice"));
  EXPECT_THAT(Error(R"({"model":{"vocab":{},"vocab":{}}})"), HasSubstr("'vocab' twice"));
  EXPECT_THAT(Error(R"({"added_tokens":[],"added_tokens":[]})"), HasSubstr("'added_tokens' twice"));
  EXPECT_THAT(Error(OfModel(R"("vocab":{"\ud800":0})")), HasSubstr("is not JSON"))
      << "a lone surrogate";
  EXPECT_THAT(Error(OfModel(R"("vocab":{"":0})")), HasSubstr("model.vocab: a token must have 1"));
  EXPECT_THAT(Error(OfModel(R"("vocab":{"a":-1})")), HasSubstr("model.vocab: id -1"));
  EXPECT_THAT(Error(OfModel(R"("vocab":{"a":1048576})")), HasSubstr("model.vocab: id 1048576"));
  EXPECT_THAT(Error(OfModel(R"("vocab":{"a":18446744073709551615})")),
              HasSubstr("model.vocab: id"));
  EXPECT_THAT(Error(OfModel(R"("vocab":{"a":1.5})")), HasSubstr("must be a whole number"));
  EXPECT_THAT(Error(OfModel(R"("vocab":{"a":{}})")), HasSubstr("must be a whole number"));
  EXPECT_THAT(Error(OfModel(R"("vocab":7)")), HasSubstr("model.vocab must be an object"));
  EXPECT_THAT(Error(OfModel(R"("merges":{})")), HasSubstr("model.merges must be a list"));
  EXPECT_THAT(Error(OfModel(R"("merges":["ab"])")), HasSubstr("must be two texts"));
  EXPECT_THAT(Error(OfModel(R"("merges":["a b c"])")), HasSubstr("must be two texts"));
  EXPECT_THAT(Error(OfModel(R"("merges":[["a"]])")), HasSubstr("must be two texts"));
  EXPECT_THAT(Error(OfModel(R"("merges":[["a","b","c"]])")), HasSubstr("must be two texts"));
  EXPECT_THAT(Error(OfModel(R"("merges":[["a",1]])")), HasSubstr("must be two texts"));
  EXPECT_THAT(Error(OfModel(R"("merges":[null])")), HasSubstr("must be two texts"));
  EXPECT_THAT(Error(OfModel(R"("merges":[[[]]])")), HasSubstr("must be two texts"));
  EXPECT_THAT(Error(R"({"added_tokens":{}})"), HasSubstr("added_tokens must be a list"));
  EXPECT_THAT(Error(R"({"added_tokens":3})"), HasSubstr("added_tokens must be a list"));
  EXPECT_THAT(Error(R"({"added_tokens":["<s>"]})"), HasSubstr("a list of objects"));
  EXPECT_THAT(Error(R"({"added_tokens":[{"id":1}]})"), HasSubstr("[0].content is missing"));
  EXPECT_THAT(Error(R"({"added_tokens":[{"id":true}]})"), HasSubstr("[0].id is of another type"));
  EXPECT_THAT(Error(R"({"added_tokens":[{"id":-1}]})"), HasSubstr("[0].id must be in"));
  EXPECT_THAT(Error(R"({"added_tokens":[{"special":1}]})"), HasSubstr("[0].special is of another"));
  EXPECT_THAT(Error(R"({"added_tokens":[{"content":""}]})"), HasSubstr("[0].content must have 1"));
  EXPECT_THAT(Error(R"({"added_tokens":[{"id":1,"id":1}]})"), HasSubstr("[0].id is there twice"));
  EXPECT_THAT(Error(R"({"added_tokens":[{"x\n":1}]})"), HasSubstr("'x\\n' is unknown"));
}

// bad input: Tokenizer files | tokenizer.json: over 64 MiB, too many tokens or merges, too long a
//   token, too deep | INVALID_ARGUMENT, the part and its limit named, before memory is taken
TEST(TokenizerJsonFile, ItsSizesAreBounded) {
  EXPECT_THAT(Error(std::string(kMaxTokenizerJsonBytes + 1, ' ')), HasSubstr("is over"));
  EXPECT_THAT(Error(std::string(100, '[')), HasSubstr("is not a JSON object"));
  EXPECT_THAT(Error("{\"a\":" + std::string(100'000, '[')), HasSubstr("is nested over 16 deep"));
  std::string nulls = "{\"a\":[null";
  for (int i = 0; i < 70'000; ++i) nulls += ",null";
  EXPECT_THAT(Error(nulls + "]}"), HasSubstr("holds too much beside"));
  EXPECT_THAT(Error("{\"a\":[\"" + std::string(5'000'000, 'x') + "\",1]}"),
              HasSubstr("holds too much beside"));
  const std::string longest(kMaxTokenBytes + 1, 'x');
  EXPECT_THAT(Error(OfModel("\"vocab\":{\"" + longest + "\":1}")),
              HasSubstr("model.vocab: a token"));
  std::string many = "\"vocab\":{";
  for (size_t i = 0; i <= kMaxVocabulary; ++i)
    absl::StrAppend(&many, i ? "," : "", "\"", i, "\":0");
  EXPECT_THAT(Error(OfModel(many + "}")), HasSubstr("model.vocab: over"));
  std::string merges = "\"merges\":[\"a b\"";
  for (size_t i = 0; i < kMaxMerges; ++i) merges += ",\"a b\"";
  EXPECT_THAT(Error(OfModel(merges + "]")), HasSubstr("model.merges: over"));
}

TEST(TokenizerJsonFile, OtherModelsVocabulariesArePassedOver) {
  const auto file = ParseTokenizerFile(
      R"({"model":{"type":"Unigram","vocab":[["a",-1.5],{"b":[true]}],"unk_id":0}})");
  ASSERT_TRUE(file.ok()) << file.status();
  EXPECT_FALSE(file->tables.has_vocabulary);
  EXPECT_EQ(file->rest.root()["model"]["unk_id"], 0);
}

}  // namespace
}  // namespace eta
