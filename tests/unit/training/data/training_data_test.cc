// Numbered sequences: their order, their positions, and the tasks among them.
#include "training/data/training_data.h"

#include <algorithm>
#include <numeric>
#include <set>

#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "gmock/gmock.h"
#include "tests/testing/training/text_case.h"

namespace eta::training {
namespace {

using ::testing::AnyOf;
using ::testing::Each;
using ::testing::HasSubstr;
using ::testing::UnorderedElementsAre;

class TrainingDataTest : public TextCase {
 protected:
  static std::vector<int32_t> Row(const TrainingSequences& read, size_t row) {
    const size_t length = read.tokens.size() / static_cast<size_t>(read.count);
    const auto begin = read.tokens.begin() + static_cast<std::ptrdiff_t>(row * length);
    return {begin, begin + static_cast<std::ptrdiff_t>(length)};
  }
};

TEST(SequenceOrder, EveryPassHasEverySequenceOnceAndAnOrderOfItsOwn) {
  SequenceOrder order(50, 3);
  std::vector<std::vector<uint64_t>> passes(2);
  for (uint64_t turn = 0; turn < 100; ++turn) passes[turn / 50].push_back(order.At(turn));
  for (const auto& pass : passes) EXPECT_EQ(std::set(pass.begin(), pass.end()).size(), 50u);
  EXPECT_NE(passes[0], passes[1]);
  SequenceOrder again(50, 3);
  EXPECT_EQ(again.At(77), passes[1][27]) << "whatever came before";
  EXPECT_EQ(again.At(3), passes[0][3]) << "and back";
  SequenceOrder other(50, 4);
  std::vector<uint64_t> others;
  for (uint64_t turn = 0; turn < 50; ++turn) others.push_back(other.At(turn));
  EXPECT_NE(others, passes[0]);
}

TEST_F(TrainingDataTest, APassIsTheWholeText) {
  const auto data = Open({.sequence_tokens = 100}).value();
  const auto cache = OpenTokenCache(Sample(), *tokenizer_, CacheOptions());
  std::vector<int32_t> text(data->text_tokens());
  ASSERT_TRUE(cache->Read(0, text).ok());
  EXPECT_EQ(data->text_sequences(), (text.size() - 1) / 100);
  std::multiset<std::vector<int32_t>> expected;
  for (size_t begin = 0; begin + 101 <= text.size(); begin += 100) {
    expected.emplace(text.begin() + static_cast<std::ptrdiff_t>(begin),
                     text.begin() + static_cast<std::ptrdiff_t>(begin) + 101);
  }
  const auto count = static_cast<int32_t>(data->text_sequences());
  const auto read = data->Read(0, count).value();
  std::multiset<std::vector<int32_t>> seen;
  for (size_t row = 0; row < static_cast<size_t>(count); ++row) seen.insert(Row(read, row));
  EXPECT_EQ(seen, expected);
  EXPECT_THAT(read.answers, Each(0));
  EXPECT_DOUBLE_EQ(data->PassesBefore(static_cast<uint64_t>(count)), 1.0);
}

// Ranks, batches and stops cut the same stream.
TEST_F(TrainingDataTest, ASequenceDependsOnItsNumberAlone) {
  const DataOptions options = {.sequence_tokens = 600, .retrieval_share = 0.3, .seed = 7};
  const auto data = Open(options).value();
  const auto all = data->Read(0, 60).value();
  const auto resumed = Open(options);
  for (const uint64_t first : {37u, 59u, 4u, 12u}) {
    EXPECT_EQ((*resumed)->Read(first, 1).value().tokens, Row(all, first));
  }
  DataOptions other = options;
  other.seed = 8;
  EXPECT_NE((*(*Open(other))->Read(0, 60)).tokens, all.tokens);
}

TEST_F(TrainingDataTest, RetrievalTasksHaveTheirShareAndTheirAnswers) {
  const auto data = Open({.sequence_tokens = 600, .retrieval_share = 0.25}).value();
  const auto read = data->Read(0, 40).value();
  int tasks = 0;
  std::set<std::string> questions;
  for (size_t row = 0; row < 40; ++row) {
    const auto answers = std::span(read.answers).subspan(row * 600, 600);
    if (std::accumulate(answers.begin(), answers.end(), 0) == 0) continue;
    ++tasks;
    const std::vector<int32_t> tokens = Row(read, row);
    EXPECT_EQ(tokens.front(), tokenizer_->beginning().front());
    EXPECT_EQ(tokens.back(), tokenizer_->eos_ids().front());
    // Every stretch of answers ends with a number that stands in the text before.
    for (size_t i = 0; i < 600;) {
      if (answers[i] == 0) {
        ++i;
        continue;
      }
      const size_t begin = i;
      while (i < 600 && answers[i] != 0) ++i;
      const std::string before = tokenizer_->Decode(std::span(tokens).first(begin + 1));
      const std::string answer =
          tokenizer_->Decode(std::span(tokens).subspan(begin + 1, i - begin));
      const size_t digit = answer.find_first_of("0123456789");
      ASSERT_NE(digit, std::string::npos) << answer;
      const size_t end = std::min(answer.find_first_not_of("0123456789", digit), answer.size());
      const std::string number = answer.substr(digit, end - digit);
      EXPECT_THAT(before, AnyOf(HasSubstr(absl::StrCat(" is: ", number, ".")),
                                HasSubstr(absl::StrCat(" = ", number, "."))));
      questions.insert(before.substr(before.rfind("What "), 13));
    }
  }
  EXPECT_EQ(tasks, 10);
  EXPECT_THAT(questions, UnorderedElementsAre("What is the s", "What are the ", "What is the v"));
}

// bad input: eta-train | a text that fills no sequence or window, sequences too short for retrieval
//   tasks | exit code 2, `text`, `held_out` or `retrieval` named |
//   BadTrainTest.TextsThatFillNothing
TEST_F(TrainingDataTest, WhatDoesNotFitIsNamed) {
  const std::string text = Write("short.txt", "Five words are not enough.");
  auto data = Open({.texts = {text}, .sequence_tokens = 100});
  EXPECT_EQ(GetErrorDetail(data.status()).field, "text");
  data = Open({.sequence_tokens = 100, .retrieval_share = 0.1});
  EXPECT_EQ(GetErrorDetail(data.status()).field, "retrieval");
  EXPECT_TRUE(Open({.texts = {text, Sample()}, .sequence_tokens = 100}).ok());
}

}  // namespace
}  // namespace eta::training
