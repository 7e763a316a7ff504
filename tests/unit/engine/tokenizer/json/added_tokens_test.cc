#include "engine/tokenizer/json/added_tokens.h"

#include <set>

#include "absl/strings/str_cat.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using testing::ElementsAre;

// Stretches of text as they are, tokens as "#id".
std::vector<std::string> Split(const AddedTokens& tokens, const std::string& text,
                               const std::vector<ByteRange>& control,
                               const std::set<int32_t>& withheld = {}) {
  std::vector<std::string> parts;
  tokens.Split(
      text, JoinTouching(control), withheld,
      [&](ByteRange range) { parts.push_back(text.substr(range.begin, range.end - range.begin)); },
      [&parts](int32_t id) { parts.push_back(absl::StrCat("#", id)); });
  return parts;
}

TEST(AddedTokens, ControlTokensCountInTheirRangesAlone) {
  const AddedTokens tokens({{.text = "<s>", .id = 1, .control = true}, {.text = "<t>", .id = 2}});
  const std::string text = "<s>a<s><t>";
  EXPECT_THAT(Split(tokens, text, {}), ElementsAre("<s>a<s>", "#2"));
  EXPECT_THAT(Split(tokens, text, {{0, 10}}), ElementsAre("#1", "a", "#1", "#2"));
  EXPECT_THAT(Split(tokens, text, {{0, 2}}), ElementsAre("<s>a<s>", "#2")) << "not whole";
  EXPECT_THAT(Split(tokens, text, {{0, 1}, {1, 3}}), ElementsAre("#1", "a<s>", "#2"))
      << "touching ranges are one";
  EXPECT_THAT(Split(tokens, text, {{0, 3}, {4, 7}}), ElementsAre("#1", "a", "#1", "#2"));
}

TEST(AddedTokens, WithheldOnesAreCutOutsideOfTheRanges) {
  const AddedTokens tokens({{.text = "<t>", .id = 2}, {.text = "<u>", .id = 3}});
  EXPECT_THAT(Split(tokens, "a<t>b<u><t>", {{8, 11}}, {2}), ElementsAre("a<", "t>b", "#3", "#2"));
  EXPECT_THAT(Split(tokens, "<t><t>", {{0, 3}}, {2}), ElementsAre("#2", "<", "t>"));
}

TEST(AddedTokens, FindsThoseOfTextButPlainOnes) {
  const AddedTokens tokens({{.text = "<s>", .id = 1, .control = true},
                            {.text = "ab", .id = 2},
                            {.text = "bc", .id = 3},
                            {.text = "  ", .id = 4, .plain = true}});
  std::set<int32_t> ids;
  tokens.FindIn("<s>abc  ", ids);
  EXPECT_THAT(ids, ElementsAre(2)) << "where the text is split, from the left on";
}

TEST(AddedTokens, TheLongestThatMayCountIsTaken) {
  const AddedTokens tokens({{.text = "ab", .id = 1},
                            {.text = "abc", .id = 2, .control = true},
                            {.text = "bcd", .id = 3}});
  EXPECT_THAT(Split(tokens, "abcd", {}), ElementsAre("#1", "cd"));
  EXPECT_THAT(Split(tokens, "abcd", {{0, 4}}), ElementsAre("#2", "d"));
  EXPECT_THAT(Split(tokens, "xbcd", {{0, 4}}), ElementsAre("x", "#3"));
}

TEST(AddedTokens, WhiteSpaceBesideThemMayGo) {
  const AddedTokens both({{.text = "<m>", .id = 1, .lstrip = true, .rstrip = true}});
  EXPECT_TRUE(both.strips());
  EXPECT_THAT(Split(both, "a \t<m>\xE3\x80\x80 b", {}), ElementsAre("a", "#1", "b"));
  EXPECT_THAT(Split(both, " <m>  <m> ", {}), ElementsAre("#1", "#1"));
  const AddedTokens left({{.text = "<m>", .id = 1, .lstrip = true}});
  EXPECT_THAT(Split(left, " <m> ", {}), ElementsAre("#1", " "));
  const AddedTokens blank({{.text = " ", .id = 1, .lstrip = true, .rstrip = true}});
  EXPECT_EQ(Split(blank, std::string(100'000, ' '), {}).size(), 100'000u) << "in linear time";
}

TEST(AddedTokens, SingleWordsStandAlone) {
  const AddedTokens tokens({{.text = "cat", .id = 1, .single_word = true}});
  EXPECT_THAT(Split(tokens,
                    "cat,cat concat cats \xC3\xA9"
                    "cat",
                    {}),
              ElementsAre("#1", ",", "#1",
                          " concat cats \xC3\xA9"
                          "cat"));
}

// bad input: Tokenizer files | tokenizer.json: a million added tokens | served
TEST(AddedTokens, AMillionAreNoTrouble) {
  std::vector<SoughtToken> many;
  for (int i = 0; i < 1'000'000; ++i) many.push_back({.text = absl::StrCat("<", i, ">"), .id = i});
  const AddedTokens tokens(std::move(many));
  EXPECT_THAT(Split(tokens, "a<999999><1000000>", {}), ElementsAre("a", "#999999", "<1000000>"));
}

}  // namespace
}  // namespace eta
