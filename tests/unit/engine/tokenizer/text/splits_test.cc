#include "engine/tokenizer/text/splits.h"

#include <functional>
#include <string>
#include <vector>

#include "gmock/gmock.h"
#include "gtest/gtest.h"

namespace eta {
namespace {

using testing::ElementsAre;
using Words = std::vector<std::string>;

Words Cut(const PreTokenizers& stages, const std::string& text, bool begins_text = true) {
  Words words;
  CutRun run(text.size());
  CutByAll(stages, {.text = text, .begins_text = begins_text}, run,
           [&words](TextPiece piece) { words.emplace_back(piece.text); });
  EXPECT_TRUE(run.regex.status().ok()) << run.regex.status();
  return words;
}
Words Cut(PreTokenizerPtr stage, const std::string& text, bool begins_text = true) {
  PreTokenizers stages;
  stages.push_back(std::move(stage));
  return Cut(stages, text, begins_text);
}

TEST(Splits, WhatBecomesOfMatches) {
  const std::string text = "the-final--countdown-";
  const auto by_text = [&](MatchBehavior behavior) {
    return Cut(MakeSplit(std::string("-"), behavior, false), text);
  };
  const auto by_regex = [&](MatchBehavior behavior) {
    return Cut(MakeSplit(*Regex::Compile("-"), behavior, false), text);
  };
  for (const auto& cut : {std::function<Words(MatchBehavior)>(by_text),
                          std::function<Words(MatchBehavior)>(by_regex)}) {
    EXPECT_THAT(cut(MatchBehavior::kRemoved), ElementsAre("the", "final", "countdown"));
    EXPECT_THAT(cut(MatchBehavior::kIsolated),
                ElementsAre("the", "-", "final", "-", "-", "countdown", "-"));
    EXPECT_THAT(cut(MatchBehavior::kMergedWithPrevious),
                ElementsAre("the-", "final-", "-", "countdown-"));
    EXPECT_THAT(cut(MatchBehavior::kMergedWithNext),
                ElementsAre("the", "-final", "-", "-countdown", "-"));
    EXPECT_THAT(cut(MatchBehavior::kContiguous),
                ElementsAre("the", "-", "final", "--", "countdown", "-"));
  }
}

TEST(Splits, InvertedMatchesAreWhatIsLeft) {
  EXPECT_THAT(Cut(MakeSplit(*Regex::Compile("[a-z]+"), MatchBehavior::kRemoved, true), "ab12cd"),
              ElementsAre("ab", "cd"));
  EXPECT_THAT(Cut(MakeSplit(std::string("-"), MatchBehavior::kMergedWithNext, true), "a-b"),
              ElementsAre("a-", "b"));
}

TEST(Splits, ByKindsOfCharacters) {
  EXPECT_THAT(Cut(MakeDigits(true),
                  "a12\xC2\xBD"
                  "b"),
              ElementsAre("a", "1", "2", "\xC2\xBD", "b"));
  EXPECT_THAT(Cut(MakeDigits(false), "a12b3"), ElementsAre("a", "12", "b", "3"));
  EXPECT_THAT(Cut(MakePunctuation(MatchBehavior::kIsolated), "a$b\xE3\x80\x82"),
              ElementsAre("a", "$", "b", "\xE3\x80\x82"));
  EXPECT_THAT(Cut(MakeWhitespaceSplit(), " a  b,c\n"), ElementsAre("a", "b,c"));
  EXPECT_THAT(Cut(MakeWhitespace(), " ab_1,.c\n e\xCC\x81"),
              ElementsAre("ab_1", ",.", "c", "e\xCC\x81"));
}

TEST(Splits, ByteLevelMayPutASpaceBefore) {
  EXPECT_THAT(Cut(MakeByteLevel(true, true), "a b"), ElementsAre(" a", " b"));
  EXPECT_THAT(Cut(MakeByteLevel(true, true), " a"), ElementsAre(" a"));
  EXPECT_THAT(Cut(MakeByteLevel(false, true), "a b's"), ElementsAre("a", " b", "'s"));
  EXPECT_THAT(Cut(MakeByteLevel(false, false), "a b"), ElementsAre("a b"));
}

TEST(Splits, MetaspaceKnowsWhereATextBegins) {
  EXPECT_THAT(Cut(MakeMetaspace("_", PrependScheme::kAlways, true), "a b", false),
              ElementsAre("_a", "_b"));
  EXPECT_THAT(Cut(MakeMetaspace("_", PrependScheme::kFirst, true), "a b", true),
              ElementsAre("_a", "_b"));
  EXPECT_THAT(Cut(MakeMetaspace("_", PrependScheme::kFirst, true), "a b", false),
              ElementsAre("a", "_b"));
  EXPECT_THAT(Cut(MakeMetaspace("_", PrependScheme::kNever, false), "a  b", true),
              ElementsAre("a__b"));
  EXPECT_THAT(Cut(MakeMetaspace("_", PrependScheme::kAlways, true), " a"), ElementsAre("_a"));
}

TEST(Splits, StagesCutWhatTheOnesBeforeLeave) {
  PreTokenizers stages;
  stages.push_back(MakeDigits(true));
  stages.push_back(MakeMetaspace("_", PrependScheme::kFirst, true));
  EXPECT_THAT(Cut(stages, "a 12 b"), ElementsAre("_a", "_", "1", "2", "_b"));
}

TEST(Splits, ABombIsAnError) {
  PreTokenizers stages;
  stages.push_back(MakeSplit(*Regex::Compile("(a+)+b"), MatchBehavior::kIsolated, false));
  const std::string text = std::string(60, 'a') + "-b";
  CutRun run(text.size());
  CutByAll(stages, {.text = text}, run, [](TextPiece) {});
  EXPECT_TRUE(absl::IsInvalidArgument(run.regex.status()));
}

}  // namespace
}  // namespace eta
