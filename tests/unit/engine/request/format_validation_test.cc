#include "engine/request/answers/format_validation.h"

#include <string>
#include <vector>

#include "engine/base/error.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

// The field that a refusal names; "ok" if there is none.
std::string FormatField(const AnswerFormat& format) {
  const absl::Status status = ValidateFormat(format);
  if (status.ok()) return "ok";
  EXPECT_EQ(GetErrorDetail(status).reason, "INVALID_FIELD");
  return GetErrorDetail(status).field;
}

std::string ChoiceField(std::vector<std::string> choices) {
  return FormatField({.kind = AnswerFormatKind::kChoice, .choices = std::move(choices)});
}

TEST(FormatValidation, TakesWhatIsWithinItsLimits) {
  EXPECT_EQ(FormatField({.kind = AnswerFormatKind::kJsonObject}), "ok");
  for (const auto kind : {AnswerFormatKind::kJsonSchema, AnswerFormatKind::kRegex,
                          AnswerFormatKind::kGrammar, AnswerFormatKind::kStructuralTag}) {
    EXPECT_EQ(FormatField({.kind = kind, .source = "a"}), "ok");
    EXPECT_EQ(FormatField({.kind = kind, .source = std::string(kMostFormatBytes, 'a')}), "ok");
  }
  EXPECT_EQ(ChoiceField({"yes"}), "ok");
  EXPECT_EQ(ChoiceField({"\xC3\xA9", "e", " e"}), "ok");
  std::vector<std::string> many;
  for (size_t i = 0; i < kMostChoices; ++i) many.push_back(std::to_string(i));
  EXPECT_EQ(ChoiceField(many), "ok");
}

// bad input: Formats of answers | `json_schema`, `regex`, `grammar`, `structural_tag` empty, over
//   64 KiB, not UTF-8 | INVALID_ARGUMENT, the field named | BadInputTest.FormatsOfAnswers
TEST(FormatValidation, NamesSourcesOutsideTheirLimits) {
  const std::pair<AnswerFormatKind, const char*> kinds[] = {
      {AnswerFormatKind::kJsonSchema, "format.json_schema"},
      {AnswerFormatKind::kRegex, "format.regex"},
      {AnswerFormatKind::kGrammar, "format.grammar"},
      {AnswerFormatKind::kStructuralTag, "format.structural_tag"},
  };
  for (const auto& [kind, field] : kinds) {
    EXPECT_EQ(FormatField({.kind = kind}), field);
    EXPECT_EQ(FormatField({.kind = kind, .source = std::string(kMostFormatBytes + 1, 'a')}), field);
    EXPECT_EQ(FormatField({.kind = kind, .source = "a\xff"}), field);
  }
}

// bad input: Formats of answers | no choices, over 1024, over 64 KiB in all; one that is empty, not
//   UTF-8 or there twice | INVALID_ARGUMENT, field `format.choice.choices` or its element |
//   BadInputTest.FormatsOfAnswers
TEST(FormatValidation, NamesTheChoiceThatIsBad) {
  EXPECT_EQ(ChoiceField({}), "format.choice.choices");
  EXPECT_EQ(ChoiceField(std::vector<std::string>(kMostChoices + 1, "a")), "format.choice.choices");
  EXPECT_EQ(ChoiceField({"b", std::string(kMostFormatBytes, 'a')}), "format.choice.choices");
  EXPECT_EQ(ChoiceField({"a", ""}), "format.choice.choices[1]");
  EXPECT_EQ(ChoiceField({"a", "b\xc3"}), "format.choice.choices[1]");
  EXPECT_EQ(ChoiceField({"a", "b", "a"}), "format.choice.choices[2]");
}

// bad input: Chats | tools whose calls would have to be enforced by over 1 MiB | INVALID_ARGUMENT,
//   field `chat.tools`, with the limit | ToolsTest.CallsThatCannotBeEnforcedNameTheTools
TEST(FormatValidation, WhatIsMadeOfToolsMayBeLonger) {
  AnswerFormat format = {.kind = AnswerFormatKind::kStructuralTag,
                         .source = std::string(kMostToolFormatBytes, 'a'),
                         .of_tools = true};
  EXPECT_EQ(FormatField(format), "ok");
  format.source += 'a';
  EXPECT_EQ(FormatField(format), "format.structural_tag");
  EXPECT_EQ(ValidateFormat(format).message(),
            "format.structural_tag: at most 1048576 bytes, made of the parameters of all tools");
}

TEST(FormatValidation, CountsTheBytesOfAllThatIsCompiled) {
  EXPECT_EQ(FormatBytes({.kind = AnswerFormatKind::kJsonObject}), 0);
  EXPECT_EQ(FormatBytes({.kind = AnswerFormatKind::kRegex, .source = "a+"}), 2);
  EXPECT_EQ(FormatBytes({.kind = AnswerFormatKind::kChoice, .choices = {"yes", "no"}}), 5);
}

TEST(FormatValidation, EveryKindHasItsName) {
  EXPECT_EQ(Name(AnswerFormatKind::kJsonSchema), "json_schema");
  EXPECT_EQ(Name(AnswerFormatKind::kChoice), "choice");
  EXPECT_EQ(Name(AnswerFormatKind::kStructuralTag), "structural_tag");
}

}  // namespace
}  // namespace eta
