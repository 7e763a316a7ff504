#include "engine/format/schema/answer_check.h"

#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/format/schema/schema_check.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

// What is wrong with an answer, and where.
std::string Broken(const std::string& schema, const std::string& answer) {
  EXPECT_EQ(CheckSchema(schema), absl::OkStatus()) << schema;
  const absl::Status status = CheckAnswer(schema, answer);
  if (status.ok()) return "valid";
  const ErrorDetail detail = GetErrorDetail(status);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal);
  EXPECT_EQ(detail.reason, "ANSWER_INVALID");
  return absl::StrCat(std::string(status.message()), detail.unlogged.empty() ? "" : ": ",
                      detail.unlogged);
}

TEST(CheckAnswer, NamesTheKeywordAndTheValue) {
  const auto broken = [](const char* schema, const char* answer) {
    const std::string said = Broken(schema, answer);
    constexpr std::string_view kBegin = "the answer breaks ";
    constexpr std::string_view kMiddle = " of its schema: ";
    const size_t end = said.find(kMiddle);
    if (!said.starts_with(kBegin) || end == std::string::npos) return said;
    return said.substr(kBegin.size(), end - kBegin.size()) + " " +
           said.substr(end + kMiddle.size());
  };
  EXPECT_EQ(broken(R"({"type":"integer"})", "1.5"), "type the root");
  EXPECT_EQ(broken(R"({"type":"integer"})", "1.0"), "valid");
  EXPECT_EQ(broken(R"({"type":"number"})", "1e999"), "valid");
  EXPECT_EQ(broken(R"({"type":["string","null"]})", "true"), "type the root");
  EXPECT_EQ(broken(R"({"const":1})", "true"), "const the root");
  EXPECT_EQ(broken(R"({"const":0.1})", "0.10000000000000001"), "valid");
  EXPECT_EQ(broken(R"({"enum":["a",[1]]})", "[1.0]"), "valid");
  EXPECT_EQ(broken(R"({"enum":["a",[1]]})", "[2]"), "enum the root");
  EXPECT_EQ(broken(R"({"type":"integer","minimum":2})", "1"), "minimum the root");
  EXPECT_EQ(broken(R"({"type":"integer","exclusiveMinimum":2})", "2"), "exclusiveMinimum the root");
  EXPECT_EQ(broken(R"({"type":"integer","maximum":9007199254740992})", "9007199254740993"),
            "maximum the root");
  EXPECT_EQ(broken(R"({"type":"number","exclusiveMaximum":0.5})", "5e-1"),
            "exclusiveMaximum the root");
  EXPECT_EQ(broken(R"({"type":"integer","multipleOf":7})", "77777777777777777777777778"),
            "multipleOf the root");
  EXPECT_EQ(broken(R"({"type":"string","minLength":2})", R"("\ud83d\ude00")"),
            "minLength the root");
  EXPECT_EQ(broken(R"({"type":"string","maxLength":1})", R"("\n")"), "valid");
  EXPECT_EQ(broken(R"({"type":"string","maxLength":1})", R"("ab")"), "maxLength the root");
  EXPECT_EQ(broken(R"({"type":"string","pattern":"b"})", R"("ac")"), "pattern the root");
  EXPECT_EQ(broken(R"({"type":"string","format":"date"})", R"("x")"), "valid");
  EXPECT_EQ(broken(R"({"type":"array","items":{"type":"null"}})", "[null,[1]]"), "type /1");
  EXPECT_EQ(broken(R"({"type":"array","minItems":1})", "[]"), "minItems the root");
  EXPECT_EQ(broken(R"({"type":"array","maxItems":1})", "[1,2]"), "maxItems the root");
  EXPECT_EQ(broken(R"({"type":"array","prefixItems":[{"type":"null"}],"items":false})", "[null,1]"),
            "items the root");
  EXPECT_EQ(broken(R"({"type":"array","prefixItems":[{}],"unevaluatedItems":false})", "[1,2]"),
            "unevaluatedItems the root");
  EXPECT_EQ(broken(R"({"type":"object","properties":{"a/b":{"type":"null"}}})", R"({"a/b":1})"),
            "type /a~1b");
  EXPECT_EQ(broken(R"({"type":"object","required":["a"]})", R"({"b":1})"), "required the root");
  EXPECT_EQ(
      broken(R"({"type":"object","properties":{},"additionalProperties":false})", R"({"b":1})"),
      "additionalProperties the root");
  EXPECT_EQ(
      broken(R"({"type":"object","properties":{},"unevaluatedProperties":false})", R"({"b":1})"),
      "unevaluatedProperties the root");
  EXPECT_EQ(broken(R"({"type":"object","additionalProperties":{"type":"null"}})", R"({"b":[1]})"),
            "type /b");
  EXPECT_EQ(broken(R"({"type":"object","propertyNames":{"pattern":"^x"}})", R"({"y":1})"),
            "pattern /y");
  EXPECT_EQ(broken(R"({"type":"object","patternProperties":{"^x":{"type":"null"}},
                       "additionalProperties":false})",
                   R"({"x1":1})"),
            "type /x1");
  EXPECT_EQ(broken(R"({"type":"object","minProperties":1})", "{}"), "minProperties the root");
  EXPECT_EQ(broken(R"({"type":"object","maxProperties":1})", R"({"a":1,"b":1})"),
            "maxProperties the root");
  EXPECT_EQ(broken(R"({"type":"object","minProperties":1,"maxProperties":1})", R"({"a":1,"a":2})"),
            "valid");
  EXPECT_EQ(
      broken(R"({"anyOf":[{"type":"null"},{"type":"array","items":{"type":"null"}}]})", "[1]"),
      "anyOf the root");
  EXPECT_EQ(broken(R"({"oneOf":[{"type":"null"},{"type":"string"}]})", "1"), "oneOf the root");
  EXPECT_EQ(broken(R"({"oneOf":[{"type":"object","required":["a"],"properties":{}},
                                {"type":"object","required":["b"],"properties":{}}]})",
                   R"({"a":1,"b":1})"),
            "oneOf the root");
  EXPECT_EQ(broken(R"({"$ref":"#/$defs/a","$defs":{"a":{"allOf":[{"type":"null"}]}}})", "1"),
            "type the root");
  EXPECT_EQ(broken(R"({"anyOf":[false,{"type":"null"}]})", "null"), "valid");
}

TEST(CheckAnswer, WhatIsNoJsonIsSaidToBeNone) {
  EXPECT_EQ(Broken("{}", R"({"a":1)"), "the answer is not JSON at byte 6");
  EXPECT_EQ(Broken("{}", "\"a\x01\""), "the answer is not JSON at byte 2");
  EXPECT_EQ(Broken("{}", "\"\xed\xa0\x80\""), "the answer is not UTF-8 at byte 1");
  EXPECT_EQ(Broken("{}", ""), "the answer is not JSON at byte 0");
  EXPECT_EQ(Broken("{}", R"("\ud83d")"), "valid");
}

// A value that several branches hold is tried with each once, not once for each way down.
TEST(CheckAnswer, ChoicesWithinChoicesTakeNoPowers) {
  const std::string schema = R"({"$defs":{"n":{"anyOf":[
      {"type":"object","properties":{"p":{"$ref":"#/$defs/n"},"q":{"const":1}},"required":["q"]},
      {"type":"object","properties":{"p":{"$ref":"#/$defs/n"},"q":{"const":2}},"required":["q"]}]}},
      "$ref":"#/$defs/n"})";
  std::string answer = R"({"q":2})";
  for (int i = 0; i < 200; ++i) answer = absl::StrCat(R"({"p":)", answer, R"(,"q":2})");
  EXPECT_EQ(Broken(schema, answer), "valid");
  answer.replace(answer.find("{\"q\":2}"), 7, "{\"q\":3}");
  EXPECT_EQ(Broken(schema, answer), "the answer breaks anyOf of its schema: the root");
}

TEST(CheckAnswer, DeepAnswersAreCheckedWithoutRecursion) {
  constexpr size_t kDeep = 300'000;
  const std::string schema = R"({"anyOf":[{"type":"array","items":{"$ref":"#"}},{"type":"null"}]})";
  std::string answer(kDeep, '[');
  answer.append(kDeep, ']');
  EXPECT_EQ(Broken(schema, answer), "valid");
  answer.insert(kDeep, "1");
  EXPECT_EQ(Broken(schema, answer), "the answer breaks anyOf of its schema: the root");
}

}  // namespace
}  // namespace eta
