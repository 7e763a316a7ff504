#include "engine/tokenizer/text/pattern_translation.h"

#include <vector>

#include "absl/strings/match.h"
#include "engine/tokenizer/text/regex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using testing::ElementsAre;

// All matches of a pattern in a text.
std::vector<std::string> Matches(const std::string& pattern, const std::string& text) {
  const auto regex = Regex::Compile(pattern);
  EXPECT_TRUE(regex.ok()) << pattern << ": " << regex.status();
  if (!regex.ok()) return {};
  RegexRun run(text.size());
  RegexMatches matches(*regex, text, run);
  std::vector<std::string> found;
  while (const auto match = matches.Next()) {
    found.push_back(text.substr(match->begin, match->end - match->begin));
  }
  EXPECT_TRUE(run.status().ok()) << run.status();
  return found;
}

TEST(PatternTranslation, ClassesAreOnigurumas) {
  EXPECT_THAT(Matches(R"(\h+)", "xaF09 g"), ElementsAre("aF09")) << "hexadecimal, no blanks";
  EXPECT_THAT(Matches(R"(\H+)", "aF-g"), ElementsAre("-g"));
  EXPECT_THAT(Matches(R"(\s)", "a\xE1\xA0\x8E\xC2\x85z"), ElementsAre("\xC2\x85"))
      << "U+180E is no white space, U+0085 is";
  EXPECT_THAT(Matches(R"([\S]+)", "a\xE1\xA0\x8E z"), ElementsAre("a\xE1\xA0\x8E", "z"));
  EXPECT_THAT(Matches(R"(\S+)", "a\xE1\xA0\x8E z"), ElementsAre("a\xE1\xA0\x8E", "z"));
  EXPECT_THAT(Matches(R"(\w+)", "e\xCC\x81_9-"), ElementsAre("e\xCC\x81_9")) << "with marks";
  EXPECT_THAT(Matches(R"(\W+)", "e\xCC\x81_9- "), ElementsAre("- "));
  EXPECT_THAT(Matches(R"([\w-]+)", "a-b c"), ElementsAre("a-b", "c"));
  EXPECT_THAT(Matches(R"(\d+|\D)", "1\xD9\xA1x"), ElementsAre("1\xD9\xA1", "x"));
  EXPECT_THAT(Matches(R"([\d\D])", "1"), ElementsAre("1"));
  EXPECT_THAT(Matches(R"(\v)", "a\n\v"), ElementsAre("\v")) << "one character, not all breaks";
  EXPECT_THAT(Matches(R"(\a\e\f\r\n\t)", "\a\x1B\f\r\n\t"), ElementsAre("\a\x1B\f\r\n\t"));
}

TEST(PatternTranslation, AnchorsAreOfLines) {
  EXPECT_THAT(Matches("^.+$", "ab\ncd\r\nef"), ElementsAre("ab", "cd\r", "ef"));
  EXPECT_THAT(Matches(R"(\Aab|cd\Z|cd\z)", "ab\ncd\n"), ElementsAre("ab", "cd"));
  EXPECT_THAT(Matches(R"(\bab\b)", "ab abc ab\xCC\x81"), ElementsAre("ab"));
  EXPECT_THAT(Matches(R"(\Bb)", "ab b"), ElementsAre("b"));
}

TEST(PatternTranslation, QuantifiersAreRubys) {
  EXPECT_THAT(Matches("a{2}", "aaaaa"), ElementsAre("aa", "aa"));
  EXPECT_THAT(Matches("a{,2}b", "aaab"), ElementsAre("aab"));
  EXPECT_THAT(Matches("a{2,}", "aaa"), ElementsAre("aaa"));
  EXPECT_THAT(Matches("a{1,2}+a", "aaa"), ElementsAre("aaa")) << "greedy, not possessive";
  EXPECT_THAT(Matches("a{2}?b", "b aab"), ElementsAre("b", "aab")) << "two or none";
  EXPECT_THAT(Matches("a{1,3}?", "aa"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches("a++b|a*+|a?+c", "aab"), ElementsAre("aab"));
  EXPECT_THAT(Matches("a+?b??", "aab"), ElementsAre("a", "a"));
  EXPECT_THAT(Matches("x{y}{", "x{y}{"), ElementsAre("x{y}{")) << "no interval";
}

TEST(PatternTranslation, GroupsAndOptions) {
  EXPECT_THAT(Matches("(?i:'S|'re)x", "'sx 'REx"), ElementsAre("'sx", "'REx"));
  EXPECT_THAT(Matches("a(?i)b|c", "aB aC ac"), ElementsAre("aB", "aC", "ac"))
      << "up to the end of the group, alternatives included";
  EXPECT_THAT(Matches("(?:a(?i)b)c", "aBc aBC"), ElementsAre("aBc"));
  EXPECT_THAT(Matches("(?i:a(?-i:b))", "Ab AB"), ElementsAre("Ab"));
  EXPECT_THAT(Matches("(?=a)(?!ab)a(?<=a)(?<!b)(?>c+)", "ab ac"), ElementsAre("ac"));
  EXPECT_THAT(Matches("(a)(b)", "ab"), ElementsAre("ab"));
}

TEST(PatternTranslation, CharactersAndProperties) {
  EXPECT_THAT(
      Matches(R"(\x41\x{42}\x{E9}\u00e9\x{1F600}\.)", "AB\xC3\xA9\xC3\xA9\xF0\x9F\x98\x80."),
      ElementsAre("AB\xC3\xA9\xC3\xA9\xF0\x9F\x98\x80."));
  EXPECT_THAT(Matches(R"([\]\-a-c\x{E9}-\x{EA}-])", "]-b\xC3\xA9"),
              ElementsAre("]", "-", "b", "\xC3\xA9"));
  EXPECT_THAT(Matches(R"(\p{Lu}+|\P{L}|\p{^L})", "AB1"), ElementsAre("AB", "1"));
  EXPECT_THAT(Matches(R"(\p{Han}+)", "a\xE4\xB8\xAD\xE3\x80\x82"), ElementsAre("\xE4\xB8\xAD"))
      << "the script alone: U+3002 is used with it";
  EXPECT_THAT(Matches("[^\\s\\p{L}\\p{N}]+", "a-- 1"), ElementsAre("--"));
}

// bad input: Tokenizer files | tokenizer.json: patterns with parts that are not known | refused,
//   the part named
TEST(PatternTranslation, WhatIsNotKnownIsNamed) {
  const std::pair<const char*, const char*> cases[] = {{R"(\R)", R"('\\R')"},
                                                       {R"(a\K)", R"('\\K')"},
                                                       {R"(\G)", R"('\\G')"},
                                                       {R"(\X)", R"('\\X')"},
                                                       {R"(\1)", R"('\\1')"},
                                                       {R"(\k<a>)", R"('\\k')"},
                                                       {R"(\p{Alpha})", "'Alpha'"},
                                                       {R"(\p{L)", "\\p has no name"},
                                                       {R"(\pL)", "\\p has no name"},
                                                       {"(?<a>b)", "'(?<'"},
                                                       {"(?#a)", "'(?#'"},
                                                       {"a(?~b)", "'(?~'"},
                                                       {"(?x:a)", "'(?x'"},
                                                       {"(?m:a)", "'(?m'"},
                                                       {"(?i", "no end"},
                                                       {"[[:alpha:]]", "a class in"},
                                                       {"[a&&b]", "&&"},
                                                       {"[]a]", "] as the first"},
                                                       {R"([\W])", "\\W or \\H"},
                                                       {R"([\b])", "\\b in a class"},
                                                       {R"([a-\d])", "ends in a class"},
                                                       {"[b-a]", "a range is empty"},
                                                       {"[a", "class has no end"},
                                                       {"(a", "group has no end"},
                                                       {"a)", "has not begun"},
                                                       {"*a", "nothing to repeat"},
                                                       {"a**", "nothing to repeat"},
                                                       {"a{2}{3}", "nothing to repeat"},
                                                       {"a\\", "ends in a backslash"},
                                                       {R"([\)", "ends in a backslash"},
                                                       {R"(\x4)", "too few digits"},
                                                       {R"(\xE9)", "no character"},
                                                       {R"(\ud800)", "no character"},
                                                       {R"(\x{110000})", "no character"},
                                                       {R"(\x{})", "1 to 6 digits"},
                                                       {"(?i:ss)", "ss, st, ff"},
                                                       {"(?i:fi)", "ss, st, ff"},
                                                       {"(?i:\xC3\xA9)", "outside of ASCII"},
                                                       {"(?i:[\xC3\xA9])", "outside of ASCII"},
                                                       {"(?i:[a-\xC3\xA9])", "outside of ASCII"},
                                                       {R"((?i:\p{Lu}))", "under (?i)"},
                                                       {R"((?i:[\p{Lu}]))", "under (?i)"},
                                                       {"(?<=a+)b", "lookbehind"},
                                                       {"\xFF", "not UTF-8"}};
  for (const auto& [pattern, part] : cases) {
    const absl::Status status = Regex::Compile(pattern).status();
    EXPECT_FALSE(status.ok()) << pattern;
    EXPECT_THAT(std::string(status.message()), testing::HasSubstr(part)) << pattern;
  }
}

// bad input: Tokenizer files | tokenizer.json: patterns too long | refused
TEST(PatternTranslation, PatternsAreBounded) {
  EXPECT_FALSE(Regex::Compile(std::string(kMaxPatternBytes + 1, 'a')).ok());
  EXPECT_FALSE(Regex::Compile("((a{1000}){1000}){1000}").ok());
  EXPECT_FALSE(Regex::Compile(std::string(8000, '(') + std::string(8000, ')')).ok());
  EXPECT_FALSE(Regex::Compile("a{65536}").ok());
}

}  // namespace
}  // namespace eta
