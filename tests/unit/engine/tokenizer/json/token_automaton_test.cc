#include "engine/tokenizer/json/token_automaton.h"

#include <random>
#include <string>

#include "gtest/gtest.h"

namespace eta {
namespace {

TEST(TokenAutomaton, KnowsTheLongestTokenOfEveryPlace) {
  std::mt19937 random(3);
  const auto word = [&random](size_t size) {
    std::string text;
    for (size_t i = 0; i < size; ++i) text += static_cast<char>('a' + random() % 3);
    return text;
  };
  for (int round = 0; round < 300; ++round) {
    std::vector<std::string> tokens;
    for (size_t i = 0; i < 1 + random() % 12; ++i) tokens.push_back(word(1 + random() % 5));
    const std::string text = word(random() % 60);
    std::vector<TokenAutomaton::Match> matches;
    TokenAutomaton({tokens.begin(), tokens.end()}).Find(text, 100, matches);
    for (size_t at = 0; at < text.size(); ++at) {
      const std::string* longest = nullptr;
      for (const std::string& token : tokens) {
        const bool longer = longest == nullptr || token.size() > longest->size();
        if (text.compare(at, token.size(), token) == 0 && longer) longest = &token;
      }
      if (longest == nullptr) {
        EXPECT_TRUE(matches.empty() || matches.back().begin != 100 + at);
        continue;
      }
      ASSERT_FALSE(matches.empty());
      EXPECT_EQ(matches.back().begin, 100 + at);
      EXPECT_EQ(matches.back().size, longest->size());
      EXPECT_EQ(tokens[static_cast<size_t>(matches.back().token)], *longest);
      matches.pop_back();
    }
    EXPECT_TRUE(matches.empty());
  }
}

TEST(TokenAutomaton, NoTokensMatchNothing) {
  std::vector<TokenAutomaton::Match> matches;
  TokenAutomaton().Find("abc", 0, matches);
  TokenAutomaton(std::vector<std::string_view>()).Find("abc", 0, matches);
  EXPECT_TRUE(matches.empty());
}

TEST(TokenAutomaton, NestedTokensTakeTimeLinearInTheText) {
  std::vector<std::string> nested;
  for (size_t i = 1; i <= 1000; ++i) nested.emplace_back(i, 'a');
  nested.push_back(std::string(1000, 'a') + "b");
  std::vector<TokenAutomaton::Match> matches;
  const std::string text(size_t{1} << 20, 'a');
  TokenAutomaton({nested.begin(), nested.end()}).Find(text, 0, matches);
  EXPECT_EQ(matches.size(), text.size());
}

}  // namespace
}  // namespace eta
