#include "engine/tokenizer/text/scanners.h"

#include <random>
#include <string>
#include <vector>

#include "engine/base/utf8.h"
#include "engine/tokenizer/text/regex.h"
#include "engine/tokenizer/text/unicode.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

constexpr const char* kPatterns[] = {
    R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"('(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
    R"([^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+)"};

std::string RandomText(std::mt19937& random) {
  static const std::vector<std::string> kBits = {"'s",
                                                 "'S",
                                                 "'\xC5\xBF",
                                                 "'re",
                                                 "'VE",
                                                 "'ll",
                                                 "'lx",
                                                 "'",
                                                 "a",
                                                 "B",
                                                 "Ab",
                                                 "aB",
                                                 " ",
                                                 "  ",
                                                 "\n",
                                                 "\r\n",
                                                 "\t",
                                                 "\xC2\xA0",
                                                 "\xE1\xA0\x8E",
                                                 "\xE3\x80\x80",
                                                 "1",
                                                 "23",
                                                 "\xD9\xA1",
                                                 "\xC2\xBD",
                                                 ".",
                                                 "/",
                                                 "//\n",
                                                 "$",
                                                 "\xCC\x81",
                                                 "\xCA\xB0",
                                                 "\xC7\x85",
                                                 "\xE4\xB8\xAD",
                                                 "\xF0\x9F\x98\x80",
                                                 "_",
                                                 std::string(1, '\0'),
                                                 "\x7F",
                                                 "\xE2\x80\x8B"};
  std::string text;
  const int parts = std::uniform_int_distribution(0, 40)(random);
  for (int i = 0; i < parts; ++i) {
    if (random() % 8 == 0) {
      const char32_t code = random() % 0x3000;
      // Characters that are newer than PCRE2's Unicode have no class there.
      const auto regex = Regex::Compile(R"(\p{Cn})");
      std::string one;
      AppendUtf8(code, one);
      RegexRun run(one.size());
      if (!run.Find(*regex, one, 0)) text += one;
    } else {
      text += kBits[random() % kBits.size()];
    }
  }
  return text;
}

TEST(Scanners, DoWhatTheirPatternsDo) {
  std::mt19937 random(5);
  for (const char* pattern : kPatterns) {
    const Scanner scanner = FindScanner(pattern);
    ASSERT_NE(scanner, nullptr) << pattern;
    const auto regex = Regex::Compile(pattern).value();
    for (int i = 0; i < 4000; ++i) {
      const std::string text = RandomText(random);
      RegexRun run(text.size());
      RegexMatches matches(regex, text, run);
      for (size_t at = 0; at < text.size();) {
        const size_t end = scanner(text, at);
        ASSERT_EQ(matches.Next(), (ByteRange{at, end})) << pattern << " in " << text;
        at = end;
      }
    }
  }
}

TEST(Scanners, ArePickedByTheWholePattern) {
  EXPECT_EQ(FindScanner(""), nullptr);
  EXPECT_EQ(FindScanner(R"(\s+)"), nullptr);
  EXPECT_EQ(FindScanner(std::string(kGpt2Pattern) + " "), nullptr);
  EXPECT_EQ(FindScanner(kGpt2Pattern), Gpt2Scanner());
}

}  // namespace
}  // namespace eta
