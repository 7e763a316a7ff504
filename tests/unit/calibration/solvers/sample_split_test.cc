// Samples into sequences, and which of their documents are held out.

#include "calibration/solvers/sample_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>

#include "engine/base/error.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::SizeIs;

constexpr int32_t kBos = 1;
constexpr SplitOptions kTens = {.sequence_tokens = 10, .min_tokens = 10};

// Ids first, first + 1, ...
std::vector<int32_t> Sample(int32_t first, size_t tokens) {
  std::vector<int32_t> sample(tokens);
  std::iota(sample.begin(), sample.end(), first);
  return sample;
}

// Samples of the ids from 1000, 2000, ...
std::vector<std::vector<int32_t>> Samples(const std::vector<size_t>& tokens) {
  std::vector<std::vector<int32_t>> samples;
  for (const size_t count : tokens) {
    samples.push_back(Sample(1000 * (static_cast<int32_t>(samples.size()) + 1), count));
  }
  return samples;
}

// The samples, from 1 on, that have a sequence here.
std::set<int32_t> Origins(const std::vector<std::vector<int32_t>>& sequences) {
  std::set<int32_t> origins;
  for (const auto& sequence : sequences) origins.insert(sequence.front() / 1000);
  return origins;
}

SplitOptions HoldingOut(double share, bool choice = false) {
  SplitOptions options = kTens;
  options.held_out = share;
  options.choice = choice;
  return options;
}

TEST(CutSamples, BeginsEverySequenceAsAPrompt) {
  std::vector<int32_t> with_bos = Sample(100, 9);
  with_bos.insert(with_bos.begin(), kBos);
  const auto cut = CutSamples(std::vector{with_bos, Sample(200, 5)},
                              {.sequence_tokens = 5, .min_tokens = 2, .beginning = {kBos}});
  EXPECT_THAT(cut, ElementsAre(ElementsAre(1, 100, 101, 102, 103),
                               ElementsAre(1, 104, 105, 106, 107), ElementsAre(1, 108),
                               ElementsAre(1, 200, 201, 202, 203), ElementsAre(1, 204)));
}

TEST(CutSamples, BeginsWithAllThatBeginsAPrompt) {
  const std::vector<int32_t> beginning = {kBos, kBos + 1};
  std::vector<int32_t> half_begun = Sample(100, 4);
  half_begun.insert(half_begun.begin(), kBos);
  EXPECT_THAT(CutSamples(std::vector<std::vector<int32_t>>(1, half_begun),
                         {.sequence_tokens = 5, .beginning = beginning}),
              ElementsAre(ElementsAre(1, 2, 1, 100, 101), ElementsAre(1, 2, 102, 103)));
  EXPECT_THAT(CutSamples(std::vector<std::vector<int32_t>>(1, half_begun),
                         {.sequence_tokens = 2, .beginning = beginning}),
              SizeIs(0))
      << "no room for more";
}

TEST(CutSamples, LeavesOutWhatIsTooShort) {
  const SplitOptions options = {.sequence_tokens = 8, .min_tokens = 4};
  EXPECT_THAT(CutSamples(std::vector{Sample(10, 11), Sample(30, 12), Sample(50, 3)}, options),
              ElementsAre(SizeIs(8), SizeIs(8), SizeIs(4)));
  EXPECT_THAT(CutSamples(std::vector<std::vector<int32_t>>(1), options), SizeIs(0));
}

TEST(SplitSamples, HoldsOutDocumentsAndNotSequences) {
  const auto split = SplitSamples(Samples(std::vector<size_t>(8, 40)), HoldingOut(0.25)).value();
  EXPECT_THAT(split.calibration, SizeIs(24));
  EXPECT_THAT(split.held_out, SizeIs(8));
  EXPECT_THAT(split.choice, IsEmpty());
  EXPECT_EQ(split.calibration_documents, 6);
  EXPECT_EQ(split.held_out_documents, 2);
  // Evenly spaced over documents of one length.
  EXPECT_THAT(Origins(split.held_out), ElementsAre(3, 7));
  EXPECT_THAT(Origins(split.calibration), ElementsAre(1, 2, 4, 5, 6, 8));
  EXPECT_EQ(SampleSplit::Tokens(split.calibration), 240);
}

TEST(SplitSamples, SamplesOfOneDocumentStayTogether) {
  const auto samples = Samples(std::vector<size_t>(8, 10));
  const std::vector<int32_t> documents = {7, 7, 5, 5, 7, 7, 5, 5};
  const auto split = SplitSamples(samples, HoldingOut(0.5), documents).value();
  EXPECT_THAT(Origins(split.calibration), ElementsAre(1, 2, 5, 6));
  EXPECT_THAT(Origins(split.held_out), ElementsAre(3, 4, 7, 8));
  EXPECT_EQ(split.calibration_documents, 1);
  const auto one = SplitSamples(samples, HoldingOut(0.5), std::vector<int32_t>(8, 3));
  EXPECT_EQ(GetErrorDetail(one.status()).field, "samples");
}

TEST(SplitSamples, GivesTheChoiceDocumentsOfItsOwn) {
  const auto split =
      SplitSamples(Samples(std::vector<size_t>(16, 20)), HoldingOut(0.25, true)).value();
  EXPECT_EQ(split.calibration_documents, 8);
  EXPECT_EQ(split.choice_documents, 4);
  EXPECT_EQ(split.held_out_documents, 4);
  std::set<int32_t> all = Origins(split.calibration);
  all.merge(Origins(split.choice));
  all.merge(Origins(split.held_out));
  EXPECT_THAT(all, SizeIs(16));
  // At most half of what is not held out.
  const auto most =
      SplitSamples(Samples(std::vector<size_t>(20, 10)), HoldingOut(0.9, true)).value();
  EXPECT_EQ(most.calibration_documents, 1);
  EXPECT_EQ(most.choice_documents, 1);
  EXPECT_EQ(most.held_out_documents, 18);
}

TEST(SplitSamples, AChoiceTakesNothingFromWhatIsHeldOut) {
  const auto samples = Samples({10, 30, 20, 10, 20, 40, 30, 70, 10, 50});
  for (const double share : {0.1, 0.25, 0.5}) {
    const auto without = SplitSamples(samples, HoldingOut(share));
    const auto with = SplitSamples(samples, HoldingOut(share, true));
    ASSERT_TRUE(without.ok() && with.ok());
    EXPECT_EQ(with->held_out, without->held_out);
    EXPECT_EQ(with->NotHeldOut(), without->calibration) << "in this order";
    EXPECT_NE(with->calibration, without->calibration);
  }
}

TEST(SplitSamples, SharesAreOfTheTextAndNotOfTheDocuments) {
  // The long one is most of the text: it is calibrated on, the others are held out.
  const auto split = SplitSamples(Samples({10, 300, 20, 10, 20, 40}), HoldingOut(0.25)).value();
  EXPECT_THAT(Origins(split.calibration), ElementsAre(2));
  EXPECT_THAT(Origins(split.held_out), ElementsAre(1, 3, 4, 5, 6));
}

TEST(SplitSamples, EqualDocumentsAreOne) {
  std::vector<std::vector<int32_t>> samples = Samples({20, 20, 20, 20});
  samples.push_back(samples[1]);
  samples.push_back(samples[2]);
  samples.back().push_back(5);  // too short for a sequence more
  samples.push_back(samples[1]);
  const auto split = SplitSamples(samples, HoldingOut(0.25)).value();
  EXPECT_EQ(split.equal_documents, 3);
  EXPECT_EQ(split.calibration_documents, 3);
  EXPECT_EQ(split.held_out_documents, 1);
  EXPECT_THAT(split.calibration, SizeIs(6));
  EXPECT_THAT(split.held_out, SizeIs(2));
}

TEST(SplitSamples, LeavesNoSideEmpty) {
  for (const double share : {0.001, 0.25, 0.9}) {
    for (const auto& lengths : {std::vector<size_t>{10, 10, 10}, std::vector<size_t>{10, 500, 10},
                                std::vector<size_t>{500, 20, 10}}) {
      const auto split = SplitSamples(Samples(lengths), HoldingOut(share, true)).value();
      EXPECT_EQ(split.calibration_documents, 1);
      EXPECT_EQ(split.choice_documents, 1);
      EXPECT_EQ(split.held_out_documents, 1);
    }
  }
}

TEST(SplitSamples, RefusesTooFewDocuments) {
  // One that is long, one that gives no sequence, and a copy.
  std::vector<std::vector<int32_t>> samples = Samples({1000, 9, 0});
  samples.push_back(samples[0]);
  const auto one = SplitSamples(samples, HoldingOut(0.25));
  EXPECT_EQ(one.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetail(one.status()).field, "samples");
  EXPECT_THAT(std::string(one.status().message()), HasSubstr("at least 2 different documents"));
  EXPECT_THAT(std::string(one.status().message()), HasSubstr("are 1, without 1 equal"));
  const auto two = SplitSamples(Samples({30, 30}), HoldingOut(0.25, true));
  EXPECT_THAT(std::string(two.status().message()), HasSubstr("at least 3 different documents"));
}

TEST(SpreadOver, TakesEvenlySpacedSequences) {
  std::vector<std::vector<int32_t>> sequences;
  for (int32_t i = 0; i < 12; ++i) sequences.push_back({i});
  const auto taken = SpreadOver(sequences, 4);
  ASSERT_THAT(taken, SizeIs(4));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(taken[i].front(), static_cast<int32_t>(3 * i));
  EXPECT_THAT(SpreadOver(sequences, 100), SizeIs(12));
}

TEST(KeepSpread, KeepsTheSamePlacesOfAnyList) {
  EXPECT_THAT(KeepSpread(std::vector<int32_t>{0, 1, 2, 3, 4, 5, 6}, 3), ElementsAre(0, 2, 4));
  EXPECT_THAT(KeepSpread(std::vector<int32_t>{0, 1, 2}, 0), ElementsAre(0, 1, 2));
  EXPECT_THAT(KeepSpread(std::vector<int32_t>{0, 1, 2}, 5), ElementsAre(0, 1, 2));
}

}  // namespace
}  // namespace eta::testing
