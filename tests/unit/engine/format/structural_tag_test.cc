#include "engine/format/structural_tag.h"

#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/format/schema/schema_check.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/fake_library.h"

namespace eta {
namespace {

using testing::SmallVocabulary;
using testing::TokenOf;

std::string Enforceable(const std::string& schema) {
  return EnforceableSchema(schema).value_or("");
}

StructuralTag Read(const std::string& text) {
  auto tag = ReadStructuralTag(text, SmallVocabulary());
  EXPECT_TRUE(tag.ok()) << tag.status();
  return tag.value_or(StructuralTag());
}

std::string Refusal(const std::string& text) {
  return std::string(ReadStructuralTag(text, SmallVocabulary()).status().message());
}

TEST(StructuralTag, SchemasAreSaidAnewWithTheirKeysInOrderAndBoundedWhiteSpace) {
  const std::string schema =
      R"({"type":"object","properties":{"z":{"type":"null"},"a":{"type":"null"}}})";
  const std::string head =
      R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":)";
  const StructuralTag tag = Read(head + schema + R"(,"max_whitespace_cnt":1000}})");
  EXPECT_EQ(tag.json, head + Enforceable(schema) + R"(,"max_whitespace_cnt":2}})");
  EXPECT_FALSE(tag.by_tokens);
  EXPECT_TRUE(tag.tokens.empty());
}

TEST(StructuralTag, SpecialTokensAreNamedByTheirIds) {
  const int32_t tool = TokenOf(SmallVocabulary(), "[TOOL]");
  const int32_t begin = TokenOf(SmallVocabulary(), "<s>");
  const StructuralTag tag =
      Read(R"({"type":"structural_tag","format":{"type":"sequence","elements":[)"
           R"({"type":"token","token":"[TOOL]"},)"
           R"({"type":"any_tokens","exclude_tokens":["<s>","a"]}]}})");
  EXPECT_EQ(
      tag.json,
      absl::StrCat(R"({"type":"structural_tag","format":{"type":"sequence","elements":[)"
                   R"({"type":"token","token":)",
                   tool, R"(},{"type":"any_tokens","exclude_tokens":[)", begin, R"(,"a"]}]}})"));
  EXPECT_TRUE(tag.by_tokens);
  EXPECT_EQ(tag.tokens, std::vector{tool});  // what is excluded is no part of an answer
}

TEST(StructuralTag, DispatchByTokensNamesThem) {
  const int32_t tool = TokenOf(SmallVocabulary(), "[TOOL]");
  EXPECT_EQ(Read(R"({"type":"structural_tag","format":{"type":"token_dispatch","rules":)"
                 R"([["[TOOL]",{"type":"const_string","value":"x"}]]}})")
                .tokens,
            std::vector{tool});
  // Rules of texts are texts.
  EXPECT_TRUE(Read(R"({"type":"structural_tag","format":{"type":"dispatch","rules":)"
                   R"([["[TOOL]",{"type":"const_string","value":"x"}]]}})")
                  .tokens.empty());
}

TEST(StructuralTag, TheOlderFormIsOneOfTriggeredTags) {
  EXPECT_EQ(
      Read(R"({"structures":[{"begin":"<f>","schema":{"type":"null"},"end":"</f>"}],)"
           R"("triggers":["<f"]})")
          .json,
      R"({"type":"structural_tag","format":{"type":"triggered_tags","triggers":["<f"],)"
      R"("tags":[{"type":"tag","begin":"<f>","content":{"type":"json_schema","json_schema":)" +
          Enforceable(R"({"type":"null"})") + R"(,"max_whitespace_cnt":2},"end":"</f>"}]}})");
}

TEST(StructuralTag, MayBeAsLongAsTheToolsOfAChat) {
  std::string tools;
  for (int i = 0; i < 128; ++i) {
    absl::StrAppend(&tools, i == 0 ? "" : ",", R"({"type":"json_schema","json_schema":)",
                    R"({"type":"object","description":")", std::string(2000, 'd'), R"("}})");
  }
  const StructuralTag tag = Read(
      absl::StrCat(R"({"type":"structural_tag","format":{"type":"or","elements":[)", tools, "]}}"));
  EXPECT_LT(tag.json.size(), 64'000) << "what binds nothing is left out";
}

// bad input: Formats of answers | a structural tag that is no JSON object, has a key twice, nests
//   over 64 deep, or holds a schema that cannot be enforced | INVALID_ARGUMENT, field
//   `format.structural_tag`
TEST(StructuralTag, WhatIsNoneIsRefused) {
  for (
      const std::string& text :
      {std::string("{"), std::string("[]"), std::string(R"({"a":1,"a":2})"),
       std::string(100'000, '['), R"({"a":)" + std::string(65, '[') + std::string(65, ']') + "}",
       std::string(R"({"structures":1,"triggers":[]})"),
       std::string(R"({"structures":[{"begin":"x"}],"triggers":[]})"),
       std::string(
           R"({"type":"structural_tag","format":{"type":"json_schema","json_schema":{"not":{}}}})")}) {
    const auto read = ReadStructuralTag(text, SmallVocabulary());
    EXPECT_EQ(read.status().code(), absl::StatusCode::kInvalidArgument) << text.substr(0, 80);
    EXPECT_EQ(GetErrorDetail(read.status()).field, "format.structural_tag");
    EXPECT_TRUE(Refusal(text).starts_with("format.structural_tag: ")) << Refusal(text);
  }
}

}  // namespace
}  // namespace eta
