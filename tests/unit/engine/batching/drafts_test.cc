// Drafts: what a text said before, and how much of it is worth verifying.
#include <gtest/gtest.h>

#include <algorithm>
#include <chrono>
#include <random>
#include <vector>

#include "engine/batching/drafts/draft_attention.h"
#include "engine/batching/drafts/draft_length.h"
#include "engine/batching/drafts/self_length.h"
#include "engine/batching/drafts/suffix_index.h"
#include "engine/request/request_validation.h"

namespace eta {
namespace {

using Tokens = std::vector<int32_t>;

SuffixIndex IndexOf(const Tokens& tokens) {
  SuffixIndex index;
  EXPECT_TRUE(index.Append(tokens).ok());
  return index;
}

struct Proposal {
  int32_t match = 0;
  Tokens draft;
};
Proposal Propose(const SuffixIndex& index, size_t most) {
  Proposal proposal{.draft = Tokens(most, -1)};
  proposal.match = index.Propose(proposal.draft);
  return proposal;
}

TEST(SuffixIndexTest, ProposesWhatFollowedTheNewestTokensBefore) {
  const Proposal proposal = Propose(IndexOf({9, 1, 2, 3, 4, 5, 6, 7, 1, 2, 3}), 3);
  EXPECT_EQ(proposal.match, 3);
  EXPECT_EQ(proposal.draft, (Tokens{4, 5, 6}));
}

TEST(SuffixIndexTest, FewerThanTheLeastTokensAreNoMatch) {
  const Proposal proposal = Propose(IndexOf({9, 1, 2, 4, 5, 6, 7, 1, 2}), 3);
  EXPECT_EQ(proposal.match, 0);
  EXPECT_EQ(proposal.draft, (Tokens{-1, -1, -1})) << "as it was";
  EXPECT_EQ(Propose(IndexOf({}), 3).match, 0);
  EXPECT_EQ(Propose(IndexOf({1, 1, 1}), 3).match, 0);
}

TEST(SuffixIndexTest, TheLongestMatchWinsThenTheNewest) {
  // After "1 2 3": 7 with "5" before, 8 and 9 with "6" before.
  const Tokens text = {5, 1, 2, 3, 7, 0, 6, 1, 2, 3, 8, 0, 6, 1, 2, 3, 9, 0};
  Tokens asked = text;
  asked.insert(asked.end(), {5, 1, 2, 3});
  EXPECT_EQ(Propose(IndexOf(asked), 1).draft, Tokens{7});
  EXPECT_EQ(Propose(IndexOf(asked), 1).match, 4);
  asked = text;
  asked.insert(asked.end(), {4, 1, 2, 3});
  EXPECT_EQ(Propose(IndexOf(asked), 1).draft, Tokens{9});
}

TEST(SuffixIndexTest, ATextThatRepeatsItselfGoesOnDoingSo) {
  EXPECT_EQ(Propose(IndexOf({1, 2, 1, 2, 1, 2}), 7).draft, (Tokens{1, 2, 1, 2, 1, 2, 1}));
  EXPECT_EQ(Propose(IndexOf({4, 4, 4, 4}), 3).draft, (Tokens{4, 4, 4}));
}

// A scan of the whole text, which the index stands for.
Proposal Scan(const Tokens& text, size_t most) {
  const int32_t size = static_cast<int32_t>(text.size());
  int32_t longest = SuffixIndex::kLeastMatch - 1;
  int32_t place = 0;
  for (int32_t end = size - 1; end > 0; --end) {
    int32_t length = 0;
    while (length < std::min(end, SuffixIndex::kLongestMatch) &&
           text[end - 1 - length] == text[size - 1 - length]) {
      ++length;
    }
    if (length > longest) longest = length, place = end;
  }
  if (place == 0) return {.draft = Tokens(most, -1)};
  Tokens going_on(text.begin() + place, text.end());
  while (going_on.size() < most) going_on.push_back(going_on[going_on.size() - (size - place)]);
  going_on.resize(most);
  return {.match = longest, .draft = going_on};
}

TEST(SuffixIndexTest, FindsWhatAScanOfTheWholeTextFinds) {
  std::mt19937 random(3);
  for (const int32_t words : {2, 3, 8, 40}) {
    SuffixIndex index;
    Tokens text;
    for (int i = 0; i < 600; ++i) {
      // Now and then a stretch from before; else a word.
      const int32_t size = static_cast<int32_t>(text.size());
      Tokens next = {static_cast<int32_t>(random() % words)};
      if (size > 40 && random() % 20 == 0) {
        const int32_t from = random() % (size - 40);
        next.assign(text.begin() + from, text.begin() + from + 1 + random() % 40);
      }
      ASSERT_TRUE(index.Append(next).ok());
      text.insert(text.end(), next.begin(), next.end());
      // With more earlier places than are tried, a longer match may be missed.
      if (words < 8 && text.size() > 200) break;
      const Proposal expected = Scan(text, 7);
      const Proposal found = Propose(index, 7);
      ASSERT_EQ(found.match, expected.match) << words << " words, " << text.size() << " tokens";
      ASSERT_EQ(found.draft, expected.draft) << words << " words, " << text.size() << " tokens";
    }
  }
}

// Of 100K tokens each: one token, two in turn, and few tokens by chance, all of whose chains are
// long.
TEST(SuffixIndexTest, HostileTextsStayLinear) {
  std::mt19937 random(5);
  for (const int32_t kind : {0, 1, 2}) {
    SuffixIndex index;
    const auto begin = std::chrono::steady_clock::now();
    Tokens draft(7);
    for (int32_t i = 0; i < 100'000; ++i) {
      const int32_t token = kind == 2 ? static_cast<int32_t>(random() % 4) : kind * (i % 2);
      ASSERT_TRUE(index.Append(std::span(&token, 1)).ok());
      index.Propose(draft);
    }
    EXPECT_EQ(index.size(), 100'000);
    // A few hundredths of a second; a scan for each token would take a minute.
    EXPECT_LT(std::chrono::steady_clock::now() - begin, std::chrono::seconds(5)) << kind;
  }
}

TEST(SuffixIndexTest, TokensOfAnyValueAreTaken) {
  const Tokens text = {-1, INT32_MAX, INT32_MIN, 8, -1, INT32_MAX, INT32_MIN};
  EXPECT_EQ(Propose(IndexOf(text), 1).draft, Tokens{8});
}

constexpr double kRowCost = 0.1;

TEST(DraftLengthTest, WhatIsAcceptedMakesDraftsLong) {
  DraftLength length;
  EXPECT_GT(length.Next(3, 1, kRowCost), 0) << "it begins with a try";
  for (int i = 0; i < 10; ++i) length.Observe(3, 7, 7);
  EXPECT_EQ(length.Next(3, 1, kRowCost), DraftLength::kLong);
  EXPECT_EQ(length.Next(0, 1, kRowCost), 0) << "there is no draft";
}

TEST(DraftLengthTest, WhatIsRefusedEndsThem) {
  DraftLength length;
  int tries = 0;
  while (length.Next(3, 1, kRowCost) > 0 && tries < 100) {
    length.Observe(3, 3, 0);
    ++tries;
  }
  EXPECT_LE(tries, 16);
  EXPECT_GT(length.Next(DraftLength::kLongMatch, 1, kRowCost), 0)
      << "long matches are another kind";
}

TEST(DraftLengthTest, MiddlingDraftsAreShort) {
  DraftLength length;
  for (int i = 0; i < 40; ++i) length.Observe(3, 3, i % 2 == 0 ? 1 : 2);
  EXPECT_EQ(length.Next(3, 1, kRowCost), DraftLength::kShort);
}

TEST(DraftLengthTest, DraftsThatDoNotPayAreTriedAgainEverMoreRarely) {
  DraftLength length;
  for (int i = 0; i < 100; ++i) length.Observe(3, 3, 0);
  std::vector<int> tries;
  for (int i = 0; i < 4000; ++i) {
    if (length.Next(3, 1, kRowCost) == 0) continue;
    tries.push_back(i);
    length.Observe(3, 3, 0);
  }
  ASSERT_GE(tries.size(), 4u);
  EXPECT_LT(tries[0], 32);
  EXPECT_LE(tries.size(), 14u) << "never more than one in a few hundred for long";
  for (size_t i = 2; i < tries.size(); ++i)
    EXPECT_GE(tries[i] - tries[i - 1], tries[i - 1] - tries[i - 2]);
  // A text that begins to repeat itself is found out by such a try, or two.
  int until = 0;
  while (length.Next(3, 1, kRowCost) != DraftLength::kLong && until < 4000) {
    length.Observe(3, 3, 3);
    ++until;
  }
  EXPECT_LT(until, 2000);
}

TEST(DraftLengthTest, CostAndLoadDecideWhatPays) {
  DraftLength length;
  for (int i = 0; i < 40; ++i) length.Observe(3, 7, 7);
  EXPECT_EQ(length.Next(3, 8, 0.02), DraftLength::kLong) << "rows are nearly free";
  EXPECT_EQ(length.Next(3, 9, 0.02), 0) << "too many run";
  EXPECT_EQ(length.Next(3, 1, 1.0), 0) << "a row costs what a step costs";
  for (int i = 0; i < 4000; ++i) ASSERT_EQ(length.Next(3, 1, 1.5), 0) << "nothing to try";
  DraftLength middling;
  for (int i = 0; i < 40; ++i) middling.Observe(3, 3, 1);
  EXPECT_GT(middling.Next(3, 1, 0.15), 0);
  EXPECT_EQ(middling.Next(3, 8, 0.15), 0) << "the same draft beside seven others";
}

// Of 16 streams of 64K tokens with 8-bit keys and values beside weights of 16 bits.
constexpr SelfDraftCosts kLongContexts = {.step = 5.3, .draft = 1.4, .row = 0.1};
constexpr SelfDraftCosts kShortContexts = {.step = 16.5, .draft = 16.2, .row = 0.3};

TEST(SelfLengthTest, GoesByWhatIsAcceptedAndByWhatStepsCost) {
  SelfLength length;
  const int32_t begun = length.Next(kLongContexts);
  EXPECT_GE(begun, 3);
  EXPECT_LE(begun, SelfLength::kMost);
  EXPECT_EQ(length.Next(kShortContexts), 0) << "each step reads the weights";
  for (int i = 0; i < 40; ++i) length.Observe(7, 7);
  EXPECT_EQ(length.Next(kLongContexts), SelfLength::kMost);
  for (int i = 0; i < 4000; ++i) ASSERT_EQ(length.Next(kShortContexts), 0) << "nothing to try";
  for (int i = 0; i < 12; ++i) length.Observe(3, 1);
  EXPECT_LT(length.Next(kLongContexts), begun);
}

TEST(SelfLengthTest, DraftsThatDoNotPayAreTriedAgainEverMoreRarely) {
  SelfLength length;
  for (int i = 0; i < 40; ++i) length.Observe(3, 0);
  int tries = 0;
  for (int i = 0; i < 4000; ++i) {
    if (length.Next(kLongContexts) == 0) continue;
    length.Observe(3, 0);
    ++tries;
  }
  EXPECT_GT(tries, 3);
  EXPECT_LT(tries, 15);
}

ModelConfig PlainConfig() {
  ModelConfig config;
  config.SetAttentionDefaults();
  return config;
}

TEST(DraftAttentionTest, IsSparserThanTheRowsThatItStandsFor) {
  const ModelConfig config = PlainConfig();
  const ResolvedAttention full = ResolveAttention({.mode = AttentionMode::kFull}, config);
  const auto draft = DraftAttention(full, config);
  ASSERT_TRUE(draft);
  EXPECT_FALSE(draft->options.admit_all);
  EXPECT_TRUE(draft->options.relative);
  EXPECT_EQ(draft->options.relative_c, kDraftRelativeC);
  EXPECT_EQ(draft->options.sink_blocks, config.sink_blocks);
  EXPECT_EQ(draft->options.shared_reads, config.shared_reads);
  AttentionChoice choice{.mode = AttentionMode::kDynamic};
  EXPECT_TRUE(DraftAttention(ResolveAttention(choice, config), config)) << "-4.3";
  choice.settings.offset = -2.0f;
  EXPECT_FALSE(DraftAttention(ResolveAttention(choice, config), config)) << "as sparse already";
  choice.settings.offset = 0.0f;
  choice.settings.pinned_blocks = 100;
  EXPECT_EQ(DraftAttention(ResolveAttention(choice, config), config)->options.pinned_blocks, 2);
}

TEST(DraftAttentionTest, OfPredictedThresholdsIsANarrowerBound) {
  ModelConfig config = PlainConfig();
  config.has_predictor = true;
  config.gate = Gate::kSilu;
  AttentionChoice choice{.mode = AttentionMode::kFull};
  choice.settings.offset = 1.0f;
  const auto draft = DraftAttention(ResolveAttention(choice, config), config);
  ASSERT_TRUE(draft);
  EXPECT_EQ(draft->options.z, kDraftZ);
  EXPECT_TRUE(draft->options.uniform_floor);
  choice.mode = AttentionMode::kDynamic;
  EXPECT_FALSE(DraftAttention(ResolveAttention(choice, config), config)) << "hardly wider";
  choice.settings.z = kDraftZ + 1.0f;
  EXPECT_TRUE(DraftAttention(ResolveAttention(choice, config), config));
}

TEST(DraftAttentionTest, IsOfModelsWhoseRowsSelect) {
  ModelConfig config = PlainConfig();
  config.index = IndexKind::kMoment;
  const ResolvedAttention full = ResolveAttention({.mode = AttentionMode::kFull}, config);
  EXPECT_FALSE(DraftAttention(full, config));
}

}  // namespace
}  // namespace eta
