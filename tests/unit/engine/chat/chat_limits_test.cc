// Templates and chats that want too much: each meets a limit that is named, soon.
#include <string>
#include <utility>
#include <vector>

#include "engine/chat/chat_template.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/base/status_reason.h"

namespace eta {
namespace {

using ::testing::HasSubstr;

absl::Status ErrorOf(const std::string& source, const Chat& chat = {}) {
  const auto made = ChatTemplate::Parse(source, {});
  return made.ok() ? (*made)->Render(chat).status() : made.status();
}

std::string Repeated(const std::string& text, size_t count) {
  std::string out;
  for (size_t i = 0; i < count; ++i) out += text;
  return out;
}

void ExpectExhausted(const std::string& source, const std::string& limit) {
  EXPECT_THAT(ErrorOf(source), FailsSaying(absl::StatusCode::kResourceExhausted, limit)) << source;
}

// bad input: Chat templates | loops within loops, work without end | INVALID_ARGUMENT, field
//   `chat`; 4,194,304 steps
TEST(ChatLimits, LoopsWithinLoopsTakeSteps) {
  ExpectExhausted("{% for a in range(9999) %}{% for b in range(9999) %}{% endfor %}{% endfor %}",
                  "limit of 4194304 steps");
  ExpectExhausted("{% for a in range(9999) %}{% set x = 'a' * 99999 %}{% endfor %}", "steps");
  ExpectExhausted("{% set l = range(99999)|list %}{{ l|unique|list }}", "steps");
  ExpectExhausted("{{ ('a' * 20000000)|upper|length }}", "steps");
}

// bad input: Chat templates | a huge `range()` | INVALID_ARGUMENT, field `chat`; 100,000 items
TEST(ChatLimits, ARangeIsAsTheSandboxAllows) {
  EXPECT_TRUE(ErrorOf("{% for a in range(100000) %}{% endfor %}").ok());
  ExpectExhausted("{{ range(100001) }}", "a range of over 100000 items");
  ExpectExhausted("{{ range(-9223372036854775807, 9223372036854775807) }}", "range of over 100000");
}

// bad input: Chat templates | a text that doubles in a loop, repetitions, wide indentations |
//   INVALID_ARGUMENT, field `chat`; 64 MiB at one time
TEST(ChatLimits, ATextThatDoublesMeetsTheLimitOfWhatIsHeld) {
  ExpectExhausted(
      "{% set ns = namespace(x='ab') %}{% for a in range(99) %}{% set ns.x = ns.x ~ ns.x %}"
      "{% endfor %}",
      "limit of 64 MiB");
  ExpectExhausted("{{ 'a' * 9223372036854775807 }}", "64 MiB");
  ExpectExhausted("{{ ('a' * 9999999).replace('a', 'b' * 9999) }}", "limit of");
  ExpectExhausted("{{ range(999)|join('a' * 999999) }}", "64 MiB");
  ExpectExhausted("{{ 'a'|indent(1001) }}", "indentation");
}

// bad input: Chat templates | a text of 100 MB | INVALID_ARGUMENT, field `chat`; 16 MiB, met while
//   it is written
TEST(ChatLimits, ATextHas16MiB) {
  EXPECT_TRUE(ErrorOf("{{ 'a' * 16777216 }}").ok());
  ExpectExhausted("{{ 'a' * 16777217 }}", "longer than the limit of 16 MiB");
  ExpectExhausted("{% for a in range(101) %}{{ 'a' * 999999 }}{% endfor %}", "16 MiB");
}

// bad input: Chat templates | macros that call themselves | INVALID_ARGUMENT, field `chat`; 100
//   deep
TEST(ChatLimits, MacrosCallEachOther100Deep) {
  ExpectExhausted("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "over 100 deep");
  ExpectExhausted(
      "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ f() }}",
      "over 100 deep");
}

// bad input: Chat templates | values in values in values | INVALID_ARGUMENT, field `chat`; 64
//   levels
TEST(ChatLimits, ValuesNest64Deep) {
  ExpectExhausted(
      "{% set ns = namespace(x=1) %}{% for a in range(99) %}{% set ns.x = [ns.x] %}{% endfor %}",
      "over 64 deep");
  ExpectExhausted("{{ " + Repeated("[", 20) + "1" + Repeated("]", 20) + "|map(" +
                      Repeated("'map', ", 40) + "'upper')|list }}",
                  "over 8 deep");
}

// bad input: Chat templates | a namespace that holds itself | nothing, and it is given back
TEST(ChatLimits, NamespacesThatHoldThemselvesGoInTheEnd) {
  EXPECT_TRUE(ErrorOf("{% set ns = namespace() %}{% set ns.x = [ns] %}{{ ns.x|length }}").ok());
  EXPECT_TRUE(ErrorOf("{% set ns = namespace() %}{% for a in range(50000) %}"
                      "{% set ns.x = namespace(prev=ns.x) %}{% endfor %}")
                  .ok());
}

// bad input: Chat templates | brackets, signs, statements nested 100,000 deep | at the start
//   refused, without recursion
TEST(ChatLimits, ExpressionsAndStatementsNestSoDeep) {
  const auto nested = [](size_t depth) {
    return "{{ " + Repeated("(", depth) + "1" + Repeated(")", depth) + " }}";
  };
  EXPECT_TRUE(ErrorOf(nested(60)).ok());
  for (const auto& [source, why] : std::vector<std::pair<std::string, std::string>>{
           {nested(300000), "an expression nests too deep"},
           {Repeated("{% if x %}", 90000), "statements nest over 200 deep"},
           {"{% for " + Repeated("(", 300000) + "x" + Repeated(")", 300000) + " in y %}",
            "a target nests too deep"}}) {
    EXPECT_THAT(std::string(ErrorOf(source).message()), HasSubstr(why));
  }
  for (const std::string& source :
       {nested(500000), "{{ " + Repeated("[", 500000), "{{ " + Repeated("not ", 200000) + "1 }}",
        "{{ " + Repeated("-", 500000) + "1 }}", Repeated("{% if x %}", 90000),
        Repeated("{% for x in x %}", 60000), "{% for " + Repeated("(", 500000),
        "{{ 1" + Repeated(" if 1", 200000) + " }}"}) {
    EXPECT_EQ(ErrorOf(source).code(), absl::StatusCode::kInvalidArgument) << source.substr(0, 20);
  }
}

TEST(ChatLimits, ATemplateHasAMebibyte) {
  EXPECT_TRUE(ErrorOf(std::string(ChatTemplateLimits::kSourceBytes, 'a')).ok());
  const absl::Status status = ErrorOf(std::string(ChatTemplateLimits::kSourceBytes + 1, 'a'));
  EXPECT_THAT(status, FailsSaying(absl::StatusCode::kInvalidArgument, "1048576 bytes"));
}

TEST(ChatLimits, LargeTemplatesCompileSoon) {
  EXPECT_TRUE(ErrorOf(Repeated("{{ a ~ b }}", 90000)).ok());
  EXPECT_TRUE(ErrorOf("{{ 1" + Repeated(" + 1", 200000) + " }}").ok());
  EXPECT_TRUE(ErrorOf("{{ [" + Repeated("1,", 400000) + "]|length }}").ok());
}

// bad input: Chat templates | not UTF-8 | at the start refused, with the byte
TEST(ChatLimits, TextThatIsNotUtf8IsRefusedByField) {
  EXPECT_THAT(std::string(ErrorOf("a\xff").message()), HasSubstr("not UTF-8 at byte 1"));
  EXPECT_THAT(std::string(ErrorOf("\xed\xa0\x80").message()), HasSubstr("not UTF-8 at byte 0"));
  for (const std::string bad : {"\xff", "\xc3", "\xed\xa0\x80", "\xc0\xaf"}) {
    EXPECT_THAT(std::string(ErrorOf("{{ '" + bad + "' }}").message()), HasSubstr("not UTF-8"));
    const Chat chat{
        .messages = {{.role = "user", .content = "a"}, {.role = "user", .content = "a" + bad}}};
    EXPECT_EQ(ErrorOf("x", chat).message(), "messages[1].content is not UTF-8 at byte 1");
  }
}

TEST(ChatLimits, VariablesAreOneObjectWithinItsLimits) {
  const auto with = [](std::string variables) {
    return ErrorOf("x", Chat{.variables_json = std::move(variables)});
  };
  EXPECT_TRUE(with("{}").ok());
  EXPECT_TRUE(with(R"({"a": )" + std::string(15, '[') + std::string(15, ']') + "}").ok());
  for (const std::string& bad :
       {std::string("[]"), std::string("1"), std::string("{"), std::string(R"({"a":1,"a":2})"),
        std::string(R"({"a": "\ud800"})"), std::string("{\"a\": \"\xff\"}"),
        R"({"a": )" + std::string(16, '[') + std::string(16, ']') + "}",
        R"({"a": ")" + std::string(ChatTemplateLimits::kVariablesBytes, 'a') + "\"}",
        std::string(R"({"messages": []})"), std::string(R"({"bos_token": "x"})"),
        std::string(R"({"add_generation_prompt": false})")}) {
    const absl::Status status = with(bad);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument) << bad.substr(0, 40) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr("variables"));
  }
  EXPECT_EQ(with(R"({"a": 9223372036854775808})").code(), absl::StatusCode::kUnimplemented);
  EXPECT_EQ(with(R"({"a": 123456789012345678901234567890})").code(),
            absl::StatusCode::kUnimplemented);
}

}  // namespace
}  // namespace eta
