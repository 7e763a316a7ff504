// Needles as sentences, and where a window has them.

#include "calibration/needles/needle.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <string_view>
#include <vector>

#include "calibration/needles/retrieval_task.h"

namespace eta::testing {
namespace {

using ::testing::Contains;
using ::testing::ElementsAre;
using ::testing::EndsWith;
using ::testing::MatchesRegex;

absl::StatusOr<std::vector<int32_t>> BytesAsIds(std::string_view text) {
  return std::vector<int32_t>(text.begin(), text.end());
}
std::string TextOf(const std::vector<int32_t>& ids) {
  return {ids.begin(), ids.end()};
}

TEST(SentenceNeedle, StatesANumberAndAsksForIt) {
  const auto needle = SentenceNeedle({"quiet harbor", "1234567"}, BytesAsIds).value();
  EXPECT_EQ(TextOf(needle.statement), " The special magic number for quiet harbor is: 1234567.");
  EXPECT_THAT(TextOf(needle.question), EndsWith("The special magic number for quiet harbor is:"));
  EXPECT_EQ(TextOf(needle.answer), " 1234567");
}

// As of a tokenizer that makes one token of the colon and the space behind it.
TEST(SentenceNeedle, TheAnswerBeginsWhereTheTokensPart) {
  const auto merged = [](std::string_view text) -> absl::StatusOr<std::vector<int32_t>> {
    std::vector<int32_t> ids;
    for (size_t i = 0; i < text.size(); ++i) {
      const bool pair = text.substr(i).starts_with(": ");
      ids.push_back(pair ? 1000 : text[i]);
      if (pair) ++i;
    }
    return ids;
  };
  const auto needle = SentenceNeedle({"quiet harbor", "1234567"}, merged).value();
  EXPECT_THAT(TextOf(needle.question), EndsWith(" is"));
  EXPECT_EQ(needle.answer.front(), 1000);
  EXPECT_EQ(needle.answer.size(), 8u);
}

TEST(SentenceNeedle, TellsWhyThereIsNone) {
  const auto fails = [](std::string_view) -> absl::StatusOr<std::vector<int32_t>> {
    return absl::FailedPreconditionError("ids only");
  };
  EXPECT_EQ(SentenceNeedle({"quiet harbor", "1234567"}, fails).status().message(), "ids only");
}

TEST(NeedleWindow, HasNeedlesAtTheirPlacesAndTheQuestionLast) {
  const Needle first = {.statement = {11, 12}, .question = {13}, .answer = {14, 15}};
  const Needle second = {.statement = {21}, .question = {22, 23}, .answer = {24}};
  const std::vector<int32_t> text = {1, 2, 3, 4};
  const std::vector<PlacedNeedle> places = {{.place = 1, .needle = &first},
                                            {.place = 3, .needle = &second}};
  const NeedleWindow window = MakeNeedleWindow(text, places, second, std::vector<int32_t>{0});
  EXPECT_THAT(window.tokens, ElementsAre(0, 1, 11, 12, 2, 3, 21, 4, 22, 23, 24));
  EXPECT_EQ(window.question, 8);
  EXPECT_EQ(window.answer, 10);
  EXPECT_EQ(window.needles, 2);
  EXPECT_DOUBLE_EQ(window.depth, 0.75);

  const std::vector<PlacedNeedle> ends = {{.place = 0, .needle = &first},
                                          {.place = 4, .needle = &second}};
  EXPECT_THAT(MakeNeedleWindow(text, ends, first, {}).tokens,
              ElementsAre(11, 12, 1, 2, 3, 4, 21, 13, 14, 15));
}

// The wordings that eta-27m was trained on.
TEST(RetrievalTask, SaysAndAsksWhatTheModelKnows) {
  for (uint64_t number = 0; number < 8; ++number) {
    Draws draws(1, DrawPurpose::kRetrievalTrial, number);
    const RetrievalTask values = MakeRetrievalTask(RetrievalKind::kMultiValue, 4, draws);
    ASSERT_EQ(values.sentences.size(), 2u);
    EXPECT_THAT(
        values.sentences[0],
        MatchesRegex(" The first magic number for [a-z]+ [a-z]+ is: [0-9][0-9][0-9][0-9]+."));
    EXPECT_THAT(
        values.sentences[1],
        MatchesRegex(" The second magic number for [a-z]+ [a-z]+ is: [0-9][0-9][0-9][0-9]+."));
    const auto number_of = [&](size_t i) {
      const std::string& sentence = values.sentences[i];
      const size_t at = sentence.find(": ") + 2;
      return sentence.substr(at, sentence.size() - at - 1);
    };
    ASSERT_EQ(values.questions.size(), 1u);
    EXPECT_THAT(values.questions[0].question,
                MatchesRegex(" What are the first and second magic numbers for [a-z]+ [a-z]+ "
                             "mentioned in the text[?] They are:"));
    EXPECT_EQ(values.questions[0].answer, number_of(0) + " and " + number_of(1));

    const RetrievalTask hops = MakeRetrievalTask(RetrievalKind::kTwoHop, 4, draws);
    EXPECT_EQ(hops.sentences.size(), 4u);
    ASSERT_EQ(hops.questions.size(), 1u);
    const RetrievalQuestion& asked = hops.questions[0];
    EXPECT_THAT(asked.question, MatchesRegex(" What is the value of VAR [A-Z][A-Z][A-Z][?] "
                                             "VAR [A-Z][A-Z][A-Z] ="));
    const std::string variable = asked.question.substr(asked.question.find("? ") + 2, 7);
    const std::string other = asked.answer.substr(0, 7);
    EXPECT_THAT(hops.sentences, Contains(" " + variable + " = " + other + "."));
    EXPECT_THAT(hops.sentences, Contains(" " + asked.answer + "."));
  }
}

}  // namespace
}  // namespace eta::testing
