// What tokenizers are made of: queues of merges, tables of pairs, and what finds pieces in a text.
#include <cstdint>
#include <limits>
#include <map>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "engine/tokenizer/json/token_automaton.h"
#include "engine/tokenizer/merge_queue.h"
#include "engine/tokenizer/pair_table.h"
#include "engine/tokenizer/piece_matcher.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

// Also with pairs that come after it was their turn, as models give them whose scores do not fall.
TEST(MergeQueue, TakesWhatASortedSetWould) {
  std::mt19937 random(7);
  const auto draw = [&random](uint32_t below) { return static_cast<uint32_t>(random() % below); };
  for (int round = 0; round < 200; ++round) {
    MergeQueue queue;
    std::multiset<std::pair<uint32_t, int32_t>> expected;
    const auto push = [&] {
      const uint32_t rank = 1 + draw(8);
      const auto left = static_cast<int32_t>(draw(50));
      queue.Push(rank, left);
      expected.emplace(rank, left);
    };
    for (uint32_t count = draw(60); count > 0; --count) push();
    while (!expected.empty()) {
      const auto taken = queue.Pop();
      ASSERT_TRUE(taken);
      ASSERT_EQ(std::make_pair(taken->rank, taken->left), *expected.begin());
      expected.erase(expected.begin());
      if (draw(3) == 0) push();
    }
    EXPECT_FALSE(queue.Pop());
  }
}

constexpr int32_t kLast = std::numeric_limits<int32_t>::max();

TEST(PairTable, MakesNothingWhileItIsEmpty) {
  const PairTable table;
  EXPECT_FALSE(table.Find(0, 0));
  EXPECT_FALSE(table.Find(-1, 3));
}

TEST(PairTable, KeepsBothSidesApart) {
  PairTable table;
  table.Insert(1, 2, {.piece = 12, .rank = 5});
  table.Insert(0, 0, {.piece = 0, .rank = 0});
  table.Insert(kLast, kLast, {.piece = kLast, .rank = 7});
  EXPECT_EQ(table.Find(1, 2).piece, 12);
  EXPECT_EQ(table.Find(1, 2).rank, 5U);
  EXPECT_TRUE(table.Find(0, 0));
  EXPECT_EQ(table.Find(kLast, kLast).piece, kLast);
  for (const auto& [left, right] : {std::pair(2, 1), {1, 1}, {2, 2}, {1, 0}, {kLast, 0}}) {
    EXPECT_FALSE(table.Find(left, right)) << left << ", " << right;
  }
}

TEST(PairTable, SymbolsThatAreNoneMakeNothing) {
  PairTable table;
  table.Insert(kLast, kLast, {.piece = 1, .rank = 1});
  EXPECT_FALSE(table.Find(-1, kLast));
  EXPECT_FALSE(table.Find(kLast, -1));
  EXPECT_FALSE(table.Find(-1, -1));
}

TEST(PairTable, APairKeepsWhatItMakes) {
  PairTable table;
  table.Insert(1, 2, {.piece = 12, .rank = 5});
  table.Insert(1, 2, {.piece = 13, .rank = 6});
  EXPECT_EQ(table.Find(1, 2).piece, 12);
}

// Small symbols, so that most pairs are asked for that are not there.
TEST(PairTable, IsAMap) {
  std::mt19937 random(1);
  PairTable table;
  std::map<std::pair<int32_t, int32_t>, int32_t> map;
  const auto symbol = [&] { return static_cast<int32_t>(random() % 200); };
  for (int32_t piece = 0; piece < 10'000; ++piece) {
    const std::pair<int32_t, int32_t> pair(symbol(), symbol());
    map.emplace(pair, piece);
    table.Insert(pair.first, pair.second, {.piece = piece, .rank = 1});
  }
  for (int32_t left = 0; left < 200; ++left) {
    for (int32_t right = 0; right < 200; ++right) {
      const auto known = map.find({left, right});
      ASSERT_EQ(table.Find(left, right).piece, known == map.end() ? -1 : known->second);
    }
  }
}

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
