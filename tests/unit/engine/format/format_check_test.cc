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

// bad input: Formats of answers | a format over 64 KiB, empty, not UTF-8, with a NUL |
//   INVALID_ARGUMENT, the field and the limit named, before anything is compiled
TEST(CheckFormat, TextsHaveLimits) {
  for (const auto& [kind, field] : {std::pair{Kind::kRegex, "format.regex"},
                                    {Kind::kGrammar, "format.grammar"},
                                    {Kind::kJsonSchema, "format.json_schema"},
                                    {Kind::kStructuralTag, "format.structural_tag"}}) {
    const auto said = [kind = kind](const std::string& source) {
      return Refusal({.kind = kind, .source = source});
    };
    EXPECT_EQ(said(""), absl::StrCat(field, ": must not be empty"));
    EXPECT_EQ(said(std::string(1'000'000, 'a')),
              absl::StrCat(field, ": at most 65536 bytes, not 1000000"));
    EXPECT_EQ(said("ab\xff"), absl::StrCat(field, ": is not UTF-8 at byte 2"));
    EXPECT_EQ(said(std::string("a\0b", 3)), absl::StrCat(field, ": has a NUL at byte 1"));
  }
}

// bad input: Formats of answers | no choices, over 1024 of them, over 64 KiB, an empty one, one
//   twice | INVALID_ARGUMENT, field `format.choice`
TEST(CheckFormat, ChoicesHaveLimits) {
  const auto said = [](std::vector<std::string> choices) {
    return Refusal({.kind = Kind::kChoice, .choices = std::move(choices)});
  };
  EXPECT_EQ(said({}), "format.choice: 1 to 1024 choices, not 0");
  std::vector<std::string> many;
  for (int i = 0; i < 1'000'000; ++i) many.push_back(absl::StrCat(i));
  EXPECT_EQ(said(many), "format.choice: 1 to 1024 choices, not 1000000");
  many.resize(kMostChoices);
  EXPECT_EQ(said(many), "");
  EXPECT_EQ(said({"a", ""}), "format.choice: a choice must not be empty");
  EXPECT_EQ(said({"a", "b", "a"}), "format.choice: no choice may be there twice");
  EXPECT_EQ(said({std::string(40'000, 'a'), std::string(40'000, 'b')}),
            "format.choice: at most 65536 bytes in all, not 80000");
}

// bad input: Formats of answers | markers of reasoning over 64 bytes; a begin without an end |
//   INVALID_ARGUMENT, the field named
TEST(CheckFormat, MarkersOfReasoningHaveLimits) {
  const auto said = [](const std::string& begin, const std::string& end) {
    return Refusal(
        {.kind = Kind::kRegex, .source = "a", .reasoning_begin = begin, .reasoning_end = end});
  };
  EXPECT_EQ(said("", "</think>"), "");
  EXPECT_EQ(said("<think>", ""),
            "format.reasoning_end: must be there beside format.reasoning_begin");
  EXPECT_EQ(said(std::string(65, 'a'), "b"), "format.reasoning_begin: at most 64 bytes, not 65");
}

TEST(ByteText, WhatIsWrittenIsRead) {
  const FormatVocabulary vocabulary = SmallVocabulary();
  EXPECT_EQ(ReadVocabulary(BytesOf(vocabulary)), vocabulary);
  const AnswerFormat format = {.kind = Kind::kChoice,
                               .source = std::string("a\0b", 3),
                               .choices = {"x", "\xff", ""},
                               .reasoning_begin = "<",
                               .reasoning_end = ">"};
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
