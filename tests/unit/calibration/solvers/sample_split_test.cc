// Samples into sequences, and which of them are held out.

#include "calibration/solvers/sample_split.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>

#include "engine/base/error.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::SizeIs;

constexpr int32_t kBos = 1;

// Ids first, first + 1, ...
std::vector<int32_t> Sample(int32_t first, size_t tokens) {
  std::vector<int32_t> sample(tokens);
  std::iota(sample.begin(), sample.end(), first);
  return sample;
}

TEST(CutSamples, BeginsEverySequenceAsAPrompt) {
  std::vector<int32_t> with_bos = Sample(100, 9);
  with_bos.insert(with_bos.begin(), kBos);
  const auto cut = CutSamples(std::vector{with_bos, Sample(200, 5)},
                              {.sequence_tokens = 5, .min_tokens = 2, .bos_id = kBos});
  EXPECT_THAT(cut, ElementsAre(ElementsAre(1, 100, 101, 102, 103),
                               ElementsAre(1, 104, 105, 106, 107), ElementsAre(1, 108),
                               ElementsAre(1, 200, 201, 202, 203), ElementsAre(1, 204)));
}

TEST(CutSamples, LeavesOutWhatIsTooShort) {
  const SplitOptions options = {.sequence_tokens = 8, .min_tokens = 4, .bos_id = -1};
  EXPECT_THAT(CutSamples(std::vector{Sample(10, 11), Sample(30, 12), Sample(50, 3)}, options),
              ElementsAre(SizeIs(8), SizeIs(8), SizeIs(4)));
  EXPECT_THAT(CutSamples(std::vector<std::vector<int32_t>>(1), options), SizeIs(0));
}

TEST(SplitSamples, HoldsOutTheShareSpreadOverTheSamples) {
  // Four samples of four sequences each: a quarter is one of each.
  std::vector<std::vector<int32_t>> samples;
  for (int32_t i = 0; i < 4; ++i) samples.push_back(Sample(1000 * (i + 1), 40));
  const auto split =
      SplitSamples(samples, {.sequence_tokens = 10, .min_tokens = 10, .held_out = 0.25});
  ASSERT_TRUE(split.ok()) << split.status();
  EXPECT_THAT(split->calibration, SizeIs(12));
  ASSERT_THAT(split->held_out, SizeIs(4));
  for (size_t i = 0; i < 4; ++i) {
    EXPECT_EQ(split->held_out[i].front() / 1000, static_cast<int32_t>(i + 1));
    EXPECT_EQ(split->calibration[3 * i].front() / 1000, static_cast<int32_t>(i + 1));
  }
  EXPECT_EQ(SampleSplit::Tokens(split->calibration), 120);
}

TEST(SplitSamples, LeavesAtLeastOneOnEachSide) {
  for (const double share : {0.001, 0.25, 0.9}) {
    const auto two = SplitSamples(std::vector<std::vector<int32_t>>{Sample(0, 20)},
                                  {.sequence_tokens = 10, .min_tokens = 10, .held_out = share});
    ASSERT_TRUE(two.ok()) << two.status();
    EXPECT_THAT(two->calibration, SizeIs(1));
    EXPECT_THAT(two->held_out, SizeIs(1));
  }
}

TEST(SplitSamples, RefusesTooLittleText) {
  const auto one = SplitSamples(std::vector<std::vector<int32_t>>{Sample(0, 19)},
                                {.sequence_tokens = 10, .min_tokens = 10, .held_out = 0.25});
  EXPECT_EQ(one.status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(GetErrorDetail(one.status()).field, "samples");
  EXPECT_THAT(std::string(one.status().message()), HasSubstr("give 1"));
}

TEST(SpreadOver, TakesEvenlySpacedSequences) {
  std::vector<std::vector<int32_t>> sequences;
  for (int32_t i = 0; i < 12; ++i) sequences.push_back({i});
  const auto taken = SpreadOver(sequences, 4);
  ASSERT_THAT(taken, SizeIs(4));
  for (size_t i = 0; i < 4; ++i) EXPECT_EQ(taken[i].front(), static_cast<int32_t>(3 * i));
  EXPECT_THAT(SpreadOver(sequences, 100), SizeIs(12));
}

}  // namespace
}  // namespace eta::testing
