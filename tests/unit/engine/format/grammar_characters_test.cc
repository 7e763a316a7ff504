// Which characters formats take: those of UTF-8 and no other bytes, in sets as JavaScript means
// them.
#include <string>
#include <string_view>
#include <vector>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/engine/fake_library.h"
#include "tests/unit/engine/format/grammar_library_fixture.h"

namespace eta {
namespace {

using Kind = AnswerFormatKind;
using ::testing::HasSubstr;
using ::testing::Not;
using testing::SmallVocabulary;
using testing::TokenOf;

// With a token for each byte that is not ASCII.
FormatVocabulary AllBytes() {
  FormatVocabulary vocabulary = SmallVocabulary();
  for (int byte = 0x80; byte < 0x100; ++byte) {
    const std::string token(1, static_cast<char>(byte));
    if (TokenOf(vocabulary, token) < 0) vocabulary.tokens.push_back(token);
  }
  vocabulary.size = static_cast<int32_t>(vocabulary.tokens.size());
  return vocabulary;
}

class GrammarCharactersTest : public testing::GrammarLibraryFixture {
 protected:
  GrammarCharactersTest() : GrammarLibraryFixture(AllBytes()) {}
};

TEST_F(GrammarCharactersTest, SetsOfRegularExpressionsAreThoseOfJavaScript) {
  Expect({.kind = Kind::kRegex, .source = "a.b"}, {"a.b", "a b", "a\u00e9b"}, {"a\nb", "ab"});
  Expect({.kind = Kind::kRegex, .source = "a[.]b"}, {"a.b"}, {"axb"});
  Expect({.kind = Kind::kRegex, .source = "a\\.b"}, {"a.b"}, {"axb"});
  Expect({.kind = Kind::kRegex, .source = "a[\\].]b"}, {"a]b", "a.b"}, {"axb", "a\\b"});
  Expect({.kind = Kind::kRegex, .source = "a[^\\s_]b"}, {"axb"}, {"a_b", "a b", "a\nb"});
  struct Case {
    const char* regex;
    std::string_view good, bad;  // what may stand between a and b, character by character
  };
  for (const Case& one : {Case{"a.b", " \t\v.", "\n\r"}, Case{"a\\sb", " \t\n\v\f\r", "x"},
                          Case{"a\\Sb", "x_", " \t\n\v\f\r"}, Case{"a[\\s_]b", " _\n", "x"},
                          Case{"a[\\S ]b", "x ", "\n\t"}, Case{"a[\\s\\S]b", "x \n", ""}}) {
    const auto format = Make({.kind = Kind::kRegex, .source = one.regex});
    const auto takes = [&](std::string_view text) { return format->Check(text).ok(); };
    for (const char c : one.good)
      EXPECT_TRUE(takes(std::string{'a', c, 'b'})) << one.regex << " " << int{c};
    for (const char c : one.bad)
      EXPECT_FALSE(takes(std::string{'a', c, 'b'})) << one.regex << " " << int{c};
    const bool spaces = one.good.find('\n') != std::string_view::npos;
    for (const std::string text : {"a\u2028b", "a\u2029b"}) EXPECT_EQ(takes(text), spaces);
  }
  const auto word = Make({.kind = Kind::kRegex, .source = "\\S+"});
  EXPECT_FALSE(word->Check("a\u3000b").ok());
  EXPECT_TRUE(word->Check("a\u3001b").ok());
  Expect({.kind = Kind::kRegex, .source = "\\x41bc"}, {"Abc"}, {"\u41bc"});
  Expect({.kind = Kind::kRegex, .source = "[\\x2da]"}, {"-", "a"}, {"\u02da"});
  Expect({.kind = Kind::kRegex, .source = "[\\u00e9a]"}, {"\u00e9", "a"}, {"\u0e9a"});
  Expect({.kind = Kind::kRegex, .source = "\\u00e91"}, {"\u00e91"}, {"\u0e91"});
  Expect({.kind = Kind::kRegex, .source = "[\\^a]"}, {"^", "a"}, {"b"});
  Expect({.kind = Kind::kRegex, .source = "[\\x5ea]"}, {"^", "a"}, {"b"});
  EXPECT_NE(Refusal({.kind = Kind::kRegex, .source = "..(a"}).find("position 5"),
            std::string::npos);
}

AnswerFormat Tagged(const std::string& content) {
  return {.kind = Kind::kStructuralTag,
          .source = absl::StrCat(R"({"type":"structural_tag","format":{"type":"tag","begin":"<",)",
                                 R"("content":)", content, R"(,"end":">"}})")};
}

TEST_F(GrammarCharactersTest, AreThoseOfUtf8) {
  const std::vector<std::string> good = {"\xc2\x80",     "\xe0\xa0\x80",     "\xed\x9f\xbf",
                                         "\xee\x80\x80", "\xf0\x90\x80\x80", "\xf4\x8f\xbf\xbf"};
  // Halves of surrogate pairs, forms that are too long, and what is beyond Unicode.
  const std::vector<std::string> bad = {"\xed\xa0\x80",
                                        "\xed\xbf\xbf",
                                        "\xc0\x80",
                                        "\xc1\xbf",
                                        "\xe0\x80\x80",
                                        "\xe0\x9f\xbf",
                                        "\xf0\x80\x80\x80",
                                        "\xf0\x8f\xbf\xbf",
                                        "\xf4\x90\x80\x80",
                                        "\xf5\x80\x80\x80",
                                        "\xf7\xbf\xbf\xbf",
                                        "\x80",
                                        "\xff"};
  struct Case {
    AnswerFormat format;
    std::string begin, end;  // of an answer, around one character
  };
  std::vector<Case> cases;
  for (const char* const regex :
       {".", "[^a]", "[^a-z]{1,2}", "\\W", "\\D", "\\S", "[^a]*", "[\\W\\d]+",
        "[\\u{80}-\\u{10ffff}]", "(\\W|[^b])?", "[^a]{0,300}"}) {
    cases.push_back({{.kind = Kind::kRegex, .source = regex}, "", ""});
  }
  for (const char* const set : {"[^a]", "[^a]*", "[\\u0080-\\U0010ffff]", "[^a]{1,200}"}) {
    const std::string grammar = absl::StrCat("root ::= ", set);
    cases.push_back({{.kind = Kind::kGrammar, .source = grammar}, "", ""});
    cases.push_back({Tagged(absl::StrCat(R"({"type":"grammar","grammar":")",
                                         absl::StrReplaceAll(grammar, {{"\\", "\\\\"}}), "\"}")),
                     "<", ">"});
  }
  for (const char* const regex : {".", "[^a]", "\\\\D+"}) {
    cases.push_back(
        {Tagged(absl::StrCat(R"({"type":"regex","pattern":")", regex, "\"}")), "<", ">"});
  }
  for (const char* const schema :
       {R"({"type":"string"})", R"({"type":"string","maxLength":3})",
        R"({"type":"string","minLength":1})", R"({"type":"string","pattern":"^[^a]{1,9}$"})",
        R"({"type":"string","pattern":"^\\W\\D*$"})"}) {
    cases.push_back({{.kind = Kind::kJsonSchema, .source = schema}, "\"", "\""});
  }
  cases.push_back({{.kind = Kind::kJsonObject}, "{\"", "\":1}"});
  for (const Case& one : cases) {
    const auto format = Make(one.format);
    ASSERT_NE(format, nullptr) << one.format.source;
    const auto takes = [&](const std::string& character) {
      return Takes(*format, absl::StrCat(one.begin, character, one.end));
    };
    for (const std::string& character : good) {
      EXPECT_TRUE(takes(character)) << one.format.source << absl::CHexEscape(character);
    }
    for (const std::string& bytes : bad) {
      EXPECT_FALSE(takes(bytes)) << one.format.source << absl::CHexEscape(bytes);
      EXPECT_FALSE(format->Check(absl::StrCat(one.begin, bytes, one.end)).ok());
    }
  }
}

// The library looks past the end of a rule by other means than it follows the rule.
TEST_F(GrammarCharactersTest, TokensBehindTheEndsOfRulesAreThoseOfUtf8Too) {
  FormatVocabulary vocabulary = vocabulary_;
  const std::vector<std::string> parts = {
      "\xed\xa0", "\xed\x9f",     "\xc0",     "\xe0\x80", "\xe0\xa0", "\xf0\x8f",     "\xf4\x90",
      "\xf4\x8f", "\xed\xa0\x80", "\xc3\xa9", "\xc3",     "\xed",     "\xee\x80\x80", "\xf5"};
  for (const std::string& part : parts) {
    vocabulary.tokens.push_back(absl::StrCat("b", part));
    vocabulary.tokens.push_back(absl::StrCat("bbb", part));
  }
  vocabulary.size = static_cast<int32_t>(vocabulary.tokens.size());
  const auto library = MakeGrammarLibrary(vocabulary);
  ASSERT_TRUE(library.ok()) << library.status();
  for (const char* const rest :
       {"[^a]", "[^a]*", "[^\\u0080-\\u00ff]", "[\\u0080-\\U0010ffff]*", "[^b]{2,200}"}) {
    for (const char* const word : {"\"b\"", "\"b\" word | \"b\"", "[bc]{1,3}", "[^a]{1,3}"}) {
      const AnswerFormat format = {
          .kind = Kind::kGrammar,
          .source = absl::StrCat("root ::= word ", rest, " \"a\"\nword ::= ", word, "\n")};
      const auto compiled = (*library)->Compile(format);
      ASSERT_TRUE(compiled.ok()) << format.source << compiled.status();
      const auto read = (*library)->Read(format, *compiled);
      ASSERT_TRUE(read.ok()) << read.status();
      testing::IsFollowedExactly(**read, vocabulary);
      if (HasFailure()) FAIL() << format.source;
    }
  }
}

// bad input: Formats of answers | a regular expression or grammar that names half of a surrogate
//   pair or what is beyond Unicode, or has a set without a character | INVALID_ARGUMENT, field
//   `format.regex` or `format.grammar`, with its place
TEST_F(GrammarCharactersTest, WhatIsNoCharacterIsRefused) {
  for (const char* const regex : {"\\ud83d\\ude00", "\\ud800", "a|\\u{dfff}", "[\\ud800-\\udfff]",
                                  "[^\\ude00]", "x[a\\u{d800}]"}) {
    EXPECT_THAT(Refusal({.kind = Kind::kRegex, .source = regex}),
                HasSubstr("Half of a surrogate pair"))
        << regex;
  }
  for (const char* const set : {"\"\\ud800\"", "[\\ud800-\\udfff]", "[^\\ude00]",
                                "\"a\" | \"\\xdc00\"", "\"\\U0000d900\""}) {
    EXPECT_THAT(Refusal({.kind = Kind::kGrammar, .source = absl::StrCat("root ::= ", set)}),
                HasSubstr("Half of a surrogate pair"))
        << set;
  }
  EXPECT_THAT(Refusal({.kind = Kind::kRegex, .source = "\\u{110000}"}),
              HasSubstr("Beyond the characters of Unicode"));
  EXPECT_THAT(Refusal({.kind = Kind::kGrammar, .source = "root ::= \"\\U00110000\""}),
              HasSubstr("Beyond the characters of Unicode"));
  for (const char* const regex :
       {"[^\\s\\S]", "a[^\\W\\w]|b", "[^\\0-\\u{10ffff}]", "[^\\0-\\ud7ff\\ue000-\\u{10ffff}]"}) {
    EXPECT_THAT(Refusal({.kind = Kind::kRegex, .source = regex}), HasSubstr("without a character"))
        << regex;
  }
  EXPECT_THAT(Refusal({.kind = Kind::kGrammar, .source = "root ::= \"a\" | []"}),
              HasSubstr("without a character"));
  const std::string tagged =
      Refusal(Tagged(R"({"type":"grammar","grammar":"root ::= \"\\ud800\""})"));
  EXPECT_THAT(tagged, HasSubstr("Half of a surrogate pair"));
  EXPECT_THAT(tagged, Not(HasSubstr("Check failed")));
}

TEST(GrammarCharacters, ABrokenAnswerIsNoneWhateverTheLibrarySays) {
  const std::string broken = "a\xed\xa0\x80";
  const auto library = testing::MakeFakeLibrary(SmallVocabulary());
  ASSERT_TRUE(library.ok());
  const auto check = [&](Kind kind) -> std::string {
    const AnswerFormat format = {.kind = kind, .source = broken, .choices = {broken}};
    return std::string((*(*library)->Read(format, "compiled " + broken))->Check(broken).message());
  };
  for (const Kind kind :
       {Kind::kJsonSchema, Kind::kJsonObject, Kind::kRegex, Kind::kGrammar, Kind::kChoice}) {
    EXPECT_EQ(check(kind), "the answer is not what its format asks for: it is not UTF-8 at byte 1");
  }
  EXPECT_EQ(check(Kind::kStructuralTag), "");
}

// They go on for ever.
TEST_F(GrammarCharactersTest, AGrammarWithoutATextIsRefused) {
  for (const char* const rules :
       {"root ::= root", "root ::= \"a\" root", "root ::= [a-z] b\nb ::= \"b\" root",
        "root ::= a{2}\na ::= \"a\" a"}) {
    EXPECT_EQ(Refusal({.kind = Kind::kGrammar, .source = rules}), "no text fits it") << rules;
  }
  for (const char* const rules :
       {"root ::= \"a\" root | \"b\"", "root ::= \"b\" b{0,2}\nb ::= \"b\" b",
        "root ::= \"a\"? | root"}) {
    EXPECT_NE(Make({.kind = Kind::kGrammar, .source = rules}), nullptr) << rules;
  }
}

}  // namespace
}  // namespace eta
