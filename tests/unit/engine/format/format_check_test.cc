#include "engine/format/format_check.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/format/helper/byte_text.h"
#include "engine/format/library/choice_grammar.h"
#include "engine/request/answers/format_validation.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/fake_library.h"

namespace eta {
namespace {

using Kind = AnswerFormatKind;
using testing::SmallVocabulary;

// The field and the sentence of the error; empty: there is none.
std::string Refusal(const AnswerFormat& format) {
  const absl::Status status = CheckFormat(format, SmallVocabulary());
  if (status.ok()) return "";
  EXPECT_EQ(GetErrorDetail(status).reason, "INVALID_FIELD");
  const std::string message(status.message());
  EXPECT_TRUE(message.starts_with(GetErrorDetail(status).field + ": ")) << message;
  return message;
}

TEST(CheckFormat, LetsFormatsOfEachKindThrough) {
  EXPECT_EQ(Refusal({.kind = Kind::kJsonObject}), "");
  EXPECT_EQ(Refusal({.kind = Kind::kJsonSchema, .source = R"({"type":"object"})"}), "");
  EXPECT_EQ(Refusal({.kind = Kind::kRegex, .source = "[a-z]+"}), "");
  EXPECT_EQ(Refusal({.kind = Kind::kGrammar, .source = "root ::= \"a\""}), "");
  EXPECT_EQ(Refusal({.kind = Kind::kChoice, .choices = {"yes", "no"}}), "");
  EXPECT_EQ(Refusal({.kind = Kind::kRegex,
                     .source = "a",
                     .reasoning_begin = "<think>",
                     .reasoning_end = "</think>"}),
            "");
}

// bad input: Formats of answers | a format or a choice with a NUL | INVALID_ARGUMENT, the field and
//   the byte named, before anything is compiled
TEST(CheckFormat, TextsHaveNoNul) {
  for (const auto& [kind, field] : {std::pair{Kind::kRegex, "format.regex"},
                                    {Kind::kGrammar, "format.grammar"},
                                    {Kind::kJsonSchema, "format.json_schema"},
                                    {Kind::kStructuralTag, "format.structural_tag"}}) {
    EXPECT_EQ(Refusal({.kind = kind, .source = std::string("a\0b", 3)}),
              absl::StrCat(field, ": has a NUL at byte 1"));
  }
  EXPECT_EQ(Refusal({.kind = Kind::kChoice, .choices = {"a", std::string("bc\0", 3)}}),
            "format.choice.choices[1]: has a NUL at byte 2");
}

// The limits themselves: format_validation_test.cc.
TEST(CheckFormat, HoldsToTheLimitsOfAnyRequest) {
  for (const auto& [kind, field] : {std::pair{Kind::kRegex, "format.regex"},
                                    {Kind::kGrammar, "format.grammar"},
                                    {Kind::kJsonSchema, "format.json_schema"},
                                    {Kind::kStructuralTag, "format.structural_tag"}}) {
    EXPECT_EQ(Refusal({.kind = kind}), absl::StrCat(field, ": must not be empty"));
    EXPECT_EQ(Refusal({.kind = kind, .source = "ab\xff"}),
              absl::StrCat(field, ": is not UTF-8 from byte 2 on"));
  }
  std::vector<std::string> choices;
  for (int i = 0; i < 1'000'000; ++i) choices.push_back(absl::StrCat(i));
  EXPECT_EQ(Refusal({.kind = Kind::kChoice, .choices = choices}),
            "format.choice.choices: at most 1024 choices");
  choices.resize(kMostChoices);
  EXPECT_EQ(Refusal({.kind = Kind::kChoice, .choices = choices}), "");
}

// bad input: Formats of answers | markers of reasoning over 64 bytes, not UTF-8, with a NUL; a
//   begin without an end | INVALID_ARGUMENT, the field named
TEST(CheckFormat, MarkersOfReasoningHaveLimits) {
  const auto said = [](const std::string& begin, const std::string& end) {
    return Refusal(
        {.kind = Kind::kRegex, .source = "a", .reasoning_begin = begin, .reasoning_end = end});
  };
  EXPECT_EQ(said("", "</think>"), "");
  EXPECT_EQ(said("<think>", ""),
            "format.reasoning_end: must be there beside format.reasoning_begin");
  EXPECT_EQ(said(std::string(65, 'a'), "b"), "format.reasoning_begin: at most 64 bytes");
  EXPECT_EQ(said("a\xff", "b"), "format.reasoning_begin: is not UTF-8 from byte 1 on");
  EXPECT_EQ(said("a", std::string("b\0", 2)), "format.reasoning_end: has a NUL at byte 1");
}

TEST(ByteText, WhatIsWrittenIsRead) {
  const FormatVocabulary vocabulary = SmallVocabulary();
  EXPECT_EQ(ReadVocabulary(BytesOf(vocabulary)), vocabulary);
  const AnswerFormat format = {.kind = Kind::kChoice,
                               .source = std::string("a\0b", 3),
                               .choices = {"x", "\xff", ""},
                               .reasoning_begin = "<",
                               .reasoning_end = ">",
                               .of_tools = true};
  const std::string bytes = BytesOf(format);
  EXPECT_EQ(ReadFormat(bytes), format);
  for (size_t size = 0; size < bytes.size(); ++size) {
    EXPECT_EQ(ReadFormat(bytes.substr(0, size)), std::nullopt) << size;
  }
  EXPECT_EQ(ReadFormat(bytes + "x"), std::nullopt);
}

TEST(ChoiceGrammar, QuotesWhatWouldEndALiteral) {
  EXPECT_EQ(ChoiceGrammar({"a", "b\"\\\n"}), "root ::= \"a\" | \"b\\u0022\\u005c\\u000a\"\n");
}

}  // namespace
}  // namespace eta
