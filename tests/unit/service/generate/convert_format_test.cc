#include "service/generate/convert_format.h"

#include <string>

#include "engine/base/error.h"
#include "engine/request/answers/format_validation.h"
#include "gtest/gtest.h"
#include "tests/testing/base/text_proto.h"

namespace eta {
namespace {

absl::StatusOr<AnswerFormat> FormatOf(const std::string& text) {
  return ToFormat(FromText<v1::AnswerFormat>(text));
}

TEST(ToFormat, CarriesEveryKind) {
  EXPECT_EQ(FormatOf("json_schema: '{}'").value(),
            (AnswerFormat{.kind = AnswerFormatKind::kJsonSchema, .source = "{}"}));
  EXPECT_EQ(FormatOf("json_object {}").value(),
            (AnswerFormat{.kind = AnswerFormatKind::kJsonObject}));
  EXPECT_EQ(FormatOf("regex: '[0-9]+'").value(),
            (AnswerFormat{.kind = AnswerFormatKind::kRegex, .source = "[0-9]+"}));
  EXPECT_EQ(FormatOf("grammar: 'root ::= \"a\"'").value(),
            (AnswerFormat{.kind = AnswerFormatKind::kGrammar, .source = "root ::= \"a\""}));
  EXPECT_EQ(FormatOf("choice { choices: 'yes' choices: 'no' }").value(),
            (AnswerFormat{.kind = AnswerFormatKind::kChoice, .choices = {"yes", "no"}}));
  EXPECT_EQ(FormatOf("structural_tag: '{}'").value(),
            (AnswerFormat{.kind = AnswerFormatKind::kStructuralTag, .source = "{}"}));
}

TEST(ToFormat, LeavesValuesToValidation) {
  EXPECT_EQ(FormatOf("regex: ''").value().source, "");
  EXPECT_EQ(FormatOf("json_schema: '\\377'").value().source, "\xff");
}

// bad input: Formats of answers | `format` without a kind, or of one that is not known |
//   INVALID_ARGUMENT, field `format` | BadInputTest.FormatsOfAnswers
TEST(ToFormat, NeedsOneKind) {
  EXPECT_EQ(GetErrorDetail(FormatOf("").status()).field, "format");
}

TEST(ToFormat, CountsBeforeItConverts) {
  v1::AnswerFormat format;
  format.mutable_choice();
  EXPECT_EQ(GetErrorDetail(ToFormat(format).status()).field, "format.choice.choices");
  for (size_t i = 0; i <= kMostChoices; ++i) format.mutable_choice()->add_choices("a");
  EXPECT_EQ(GetErrorDetail(ToFormat(format).status()).field, "format.choice.choices");
}

}  // namespace
}  // namespace eta
