#include "engine/format/guide/reasoning_guide.h"

#include <algorithm>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "gtest/gtest.h"
#include "tests/testing/engine/fake_library.h"

namespace eta {
namespace {

using testing::Has;
using testing::MaskOf;
using testing::SmallVocabulary;
using testing::TextGuide;
using testing::TokenOf;

class ReasoningGuideTest : public ::testing::Test {
 protected:
  ReasoningGuide Guide(const std::string& text, const std::string& begin = "<think>",
                       bool in_reasoning = false) const {
    const MakeMatcher make = [vocabulary = vocabulary_, text] {
      return std::make_unique<TextGuide>(vocabulary, text);
    };
    return ReasoningGuide(std::make_shared<Reasoning>(begin, "</think>", vocabulary_, make), make,
                          in_reasoning);
  }

  int32_t Token(std::string_view text) const { return TokenOf(*vocabulary_, text); }

  // Takes the tokens, each of which the mask must allow.
  ::testing::AssertionResult Takes(ReasoningGuide& guide,
                                   const std::vector<std::string_view>& tokens) const {
    for (const std::string_view text : tokens) {
      const int32_t token = Token(text);
      const bool allowed = Has(MaskOf(guide, *vocabulary_), token);
      const bool taken = guide.Accept(token);
      if (allowed != taken)
        return ::testing::AssertionFailure() << "mask and guide differ: " << text;
      if (!taken) return ::testing::AssertionFailure() << "refused: " << text;
    }
    return ::testing::AssertionSuccess();
  }

  const std::shared_ptr<const FormatVocabulary> vocabulary_ =
      std::make_shared<FormatVocabulary>(SmallVocabulary());
};

TEST_F(ReasoningGuideTest, AnAnswerMayBeginWithReasoning) {
  auto guide = Guide("12");
  ASSERT_TRUE(Takes(guide, {"<think>", "a", "\n", "ab", "[TOOL]"}));
  EXPECT_FALSE(guide.Complete());
  EXPECT_FALSE(Has(MaskOf(guide, *vocabulary_), vocabulary_->ends[0]));
  ASSERT_TRUE(Takes(guide, {"</think>"}));
  EXPECT_FALSE(Has(MaskOf(guide, *vocabulary_), Token("a")));
  ASSERT_TRUE(Takes(guide, {"1", "2"}));
  EXPECT_TRUE(guide.Complete());
  EXPECT_TRUE(Has(MaskOf(guide, *vocabulary_), vocabulary_->ends[0]));
}

TEST_F(ReasoningGuideTest, OrWithoutIt) {
  auto guide = Guide("12");
  ASSERT_TRUE(Takes(guide, {"1", "2"}));
  EXPECT_TRUE(guide.Complete());
  // The marker may stand at the beginning only.
  auto late = Guide("12");
  ASSERT_TRUE(Takes(late, {"1"}));
  EXPECT_FALSE(Has(MaskOf(late, *vocabulary_), Token("<think>")));
}

TEST_F(ReasoningGuideTest, MarkersMayComeInPieces) {
  auto guide = Guide("12");
  ASSERT_TRUE(Takes(guide, {"<", "t", "h", "i", "n", "k", ">", "x", "<", "/", "think", "ab", "</",
                            "think", ">", "1", "2"}));
  EXPECT_TRUE(guide.Complete());
}

TEST_F(ReasoningGuideTest, ATokenMayEndTheReasoningAndBeginTheAnswer) {
  auto guide = Guide("12");
  ASSERT_TRUE(Takes(guide, {"<think>", "</", "think"}));
  EXPECT_TRUE(Has(MaskOf(guide, *vocabulary_), Token(">1")));
  EXPECT_FALSE(Has(MaskOf(guide, *vocabulary_), Token(">x")));
  EXPECT_FALSE(guide.Accept(Token(">x")));
  ASSERT_TRUE(Takes(guide, {">1", "2"}));
  EXPECT_TRUE(guide.Complete());
  guide.Rollback(2);
  ASSERT_TRUE(Takes(guide, {">", "1", "2"}));
  EXPECT_TRUE(guide.Complete());
}

TEST_F(ReasoningGuideTest, AFormatThatBeginsLikeTheMarkerStaysPossible) {
  auto guide = Guide("<th>");
  ASSERT_TRUE(Takes(guide, {"<", "t", "h", ">"}));
  EXPECT_TRUE(guide.Complete());
  auto other = Guide("<th>");
  ASSERT_TRUE(Takes(other, {"<", "t", "h", "i", "n", "k", ">", "</think>", "<", "t", "h", ">"}));
  EXPECT_TRUE(other.Complete());
}

TEST_F(ReasoningGuideTest, ThePromptMayHaveBegunIt) {
  // By a marker that the tokens of the vocabulary need not spell, or by one that is not known.
  for (const char* const begin : {"<think>", "\xe2\x97\x81", ""}) {
    auto guide = Guide("12", begin, /*in_reasoning=*/true);
    const auto first = MaskOf(guide, *vocabulary_);
    EXPECT_FALSE(Has(first, vocabulary_->ends[0]));
    ASSERT_TRUE(Takes(guide, {"a", "</think>", "1", "2"}));
    EXPECT_TRUE(guide.Complete());
    guide.Rollback(4);
    EXPECT_EQ(MaskOf(guide, *vocabulary_), first) << "still in the reasoning";
    ASSERT_TRUE(Takes(guide, {"</think>", "1", "2"}));
  }
  EXPECT_FALSE(Guide("12", "").Complete()) << "without a begin marker there is no other way";
}

TEST_F(ReasoningGuideTest, RollsBackToWhereverItWas) {
  const std::vector<std::string_view> tokens = {"<", "think", ">", "a", "</", "think", ">1", "2"};
  auto guide = Guide("12");
  std::vector<std::vector<uint32_t>> masks;
  std::vector<bool> complete;
  for (const std::string_view token : tokens) {
    masks.push_back(MaskOf(guide, *vocabulary_));
    complete.push_back(guide.Complete());
    ASSERT_TRUE(Takes(guide, {token}));
  }
  for (size_t back = 1; back <= tokens.size(); ++back) {
    guide.Rollback(static_cast<int32_t>(back));
    for (size_t i = tokens.size() - back; i < tokens.size(); ++i) {
      EXPECT_EQ(MaskOf(guide, *vocabulary_), masks[i]) << back << " " << i;
      EXPECT_EQ(guide.Complete(), complete[i]) << back << " " << i;
      ASSERT_TRUE(Takes(guide, {tokens[i]}));
    }
    EXPECT_TRUE(guide.Complete());
  }
}

// Takes no text, for a reason.
class FailingGuide final : public TextMatcher {
 public:
  explicit FailingGuide(std::string reason) : reason_(std::move(reason)) {}

  bool Fill(std::span<uint32_t> mask) override {
    std::ranges::fill(mask, 0);
    return true;
  }
  bool Accept(int32_t) override { return false; }
  bool AcceptText(std::string_view) override { return false; }
  void Rollback(int32_t) override {}
  bool Complete() const override { return false; }
  absl::Status failure() const override { return absl::InternalError(reason_); }

 private:
  const std::string reason_;
};

TEST_F(ReasoningGuideTest, TellsTheFailureOfWhatItFollows) {
  int made = 0;
  const MakeMatcher make = [&] { return std::make_unique<FailingGuide>(std::to_string(made++)); };
  const auto reasoning = std::make_shared<Reasoning>("<think>", "</think>", vocabulary_, make);
  made = 0;
  ReasoningGuide guide(reasoning, make, /*in_reasoning=*/false);
  EXPECT_EQ(guide.failure().message(), "0") << "of the answer without reasoning";
  ASSERT_TRUE(Takes(guide, {"<think>", "a", "</think>"}));
  EXPECT_EQ(guide.failure().message(), "1") << "of what follows it";
  guide.Rollback(3);
  EXPECT_EQ(guide.failure().message(), "0");
}

TEST_F(ReasoningGuideTest, WhatIsRefusedChangesNothing) {
  auto guide = Guide("12");
  const auto before = MaskOf(guide, *vocabulary_);
  for (const std::string_view token : {"a", "2", "</think>", "[TOOL]", "</s>"}) {
    EXPECT_FALSE(guide.Accept(Token(token))) << token;
    EXPECT_EQ(MaskOf(guide, *vocabulary_), before) << token;
  }
  EXPECT_FALSE(guide.Accept(-1));
  EXPECT_FALSE(guide.Accept(vocabulary_->size));
  ASSERT_TRUE(Takes(guide, {"1", "2"}));
}

}  // namespace
}  // namespace eta
