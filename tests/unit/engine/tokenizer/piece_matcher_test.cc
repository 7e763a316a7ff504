#include "engine/tokenizer/piece_matcher.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace eta {
namespace {

TEST(PieceMatcher, TheLongestOfThoseThatBeginATextWins) {
  const PieceMatcher matcher({{"<|end|>", 7}, {"<", 1}, {"<s>", 2}, {"<s>x", 3}, {"\xC3\xA9", 4}});
  const auto id = [&](const std::string& text) { return matcher.Longest(text).id; };
  EXPECT_EQ(id("<s>"), 2);
  EXPECT_EQ(id("<s>xy"), 3);
  EXPECT_EQ(id("<|end|"), 1) << "a piece that is cut short is none";
  EXPECT_EQ(id("<|end|>"), 7);
  EXPECT_EQ(id("\xC3\xA9"), 4);
  EXPECT_EQ(id("\xC3\xA8"), -1);
  EXPECT_EQ(id("a<s>"), -1);
  EXPECT_EQ(id(std::string(1, '\0')), -1);
  EXPECT_EQ(matcher.Longest("<s>y").size, 3u);
}

TEST(PieceMatcher, OfNoPiecesMatchesNothing) {
  EXPECT_FALSE(PieceMatcher().Longest("a"));
  EXPECT_FALSE(PieceMatcher(std::vector<PieceMatcher::Entry>()).Longest("a"));
}

}  // namespace
}  // namespace eta
