// How far two ways of attending are: by hand, row by row, at an even sample of rows.
#include "calibration/solvers/divergence.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <vector>

#include "calibration/calibrate/divergence_rows.h"
#include "calibration/calibrate/perplexity_increase.h"
#include "calibration/solvers/union_target.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;
using ::testing::IsEmpty;
using ::testing::SizeIs;

TEST(KlDivergence, IsThatOfTheSoftmax) {
  const float quarter = std::log(0.25f);
  const float half = std::log(0.5f);
  const std::vector<float> first = {half, quarter, quarter};
  std::vector<float> other = {quarter, half, quarter};
  const double expected = 0.5 * std::log(2.0) - 0.25 * std::log(2.0);
  EXPECT_NEAR(KlDivergence(first, other), expected, 1e-6);
  // Logits may have any offset, and be far apart.
  for (float& logit : other) logit += 300.0f;
  EXPECT_NEAR(KlDivergence(first, other), expected, 1e-4);
  EXPECT_NEAR(KlDivergence(std::vector<float>{0.0f, -200.0f}, std::vector<float>{-200.0f, 0.0f}),
              200.0, 1e-6);
}

TEST(KlDivergence, OfEqualRowsIsNothing) {
  const std::vector<float> row = {1.5f, -3.25f, 12.0f, 0.1f};
  EXPECT_EQ(KlDivergence(row, row), 0.0);
}

TEST(KeptDivergence, ComparesEachRowWithItsOwn) {
  KeptLogits kept = {.vocab_size = 2, .rows = {}};
  KeptDivergence first(kept, /*is_first=*/true);
  first.Add(std::vector<float>{0.0f, 1.0f});
  first.Add(std::vector<float>{});
  first.Add(std::vector<float>{0.0f, 2.0f, 0.0f, 3.0f});
  EXPECT_THAT(first.rows(), IsEmpty());
  KeptDivergence same(kept, /*is_first=*/false);
  same.Add(std::vector<float>{0.0f, 1.0f, 0.0f, 2.0f});
  same.Add(std::vector<float>{0.0f, 3.0f});
  EXPECT_THAT(same.rows(), ElementsAre(0.0f, 0.0f, 0.0f));
  KeptDivergence other(kept, /*is_first=*/false);
  other.Add(std::vector<float>{0.0f, 1.0f, 1.0f, 0.0f});
  const auto expected = static_cast<float>(
      KlDivergence(std::vector<float>{0.0f, 2.0f}, std::vector<float>{1.0f, 0.0f}));
  EXPECT_THAT(other.rows(), ElementsAre(0.0f, FloatNear(expected, 1e-6f)));
}

int64_t Count(const DivergenceRows& rows) {
  return std::accumulate(
      rows.of_sequence.begin(), rows.of_sequence.end(), int64_t{0},
      [](int64_t sum, const auto& of_sequence) { return sum + std::ssize(of_sequence); });
}

DivergenceRows RowsOf(const std::vector<std::vector<int32_t>>& sequences, int32_t vocab_size) {
  const std::vector<std::span<const int32_t>> spans(sequences.begin(), sequences.end());
  return ChooseDivergenceRows(spans, vocab_size);
}

TEST(DivergenceRows, AreAllWhereTheyAreFew) {
  const auto rows = RowsOf({std::vector<int32_t>(10), {7}, std::vector<int32_t>(5)}, 8192);
  EXPECT_THAT(rows.of_sequence, ElementsAre(ElementsAre(5, 6, 7, 8), IsEmpty(), ElementsAre(2, 3)));
  EXPECT_EQ(rows.block, kIntervalBlock);
}

TEST(DivergenceRows, AreAnEvenSampleWithinTheMemory) {
  const std::vector<std::vector<int32_t>> sequences(16, std::vector<int32_t>(2048));
  for (const int32_t vocab_size : {8192, 152'000, 1 << 20}) {
    const DivergenceRows rows = RowsOf(sequences, vocab_size);
    ASSERT_THAT(rows.of_sequence, SizeIs(16));
    const int64_t count = Count(rows);
    EXPECT_LE(count * vocab_size * int64_t{sizeof(float)}, kMaxPassLogitBytes);
    EXPECT_LE(count, kMaxDivergenceRows);
    EXPECT_GE(
        count,
        std::min<int64_t>(kMaxDivergenceRows, kMaxPassLogitBytes / (vocab_size * int64_t{4})) - 1);
    for (const std::vector<int32_t>& of_sequence : rows.of_sequence) {
      EXPECT_NEAR(static_cast<double>(of_sequence.size()), static_cast<double>(count) / 16.0, 1.0);
      EXPECT_GE(of_sequence.front(), 1024);
      EXPECT_LE(of_sequence.back(), 2046);
      int32_t least = 1 << 20;
      int32_t most = 0;
      for (size_t i = 1; i < of_sequence.size(); ++i) {
        least = std::min(least, of_sequence[i] - of_sequence[i - 1]);
        most = std::max(most, of_sequence[i] - of_sequence[i - 1]);
      }
      EXPECT_LE(most - least, 1);
    }
    EXPECT_GE(count / rows.block, kMinIntervalBlocks) << "enough for an interval";
  }
}

// A made-up model that likes to be pruned: the sparser, the less perplexity.
DecodeMeasurement Pruned(double shift, bool diverges) {
  DecodeMeasurement measured;
  const double loss = 2.0 - 0.01 * std::max(shift, 0.0);
  measured.losses.assign(4096, static_cast<float>(loss));
  measured.perplexity = std::exp(loss);
  if (!diverges) return measured;
  MeasuredDivergence& divergence = measured.divergence.emplace();
  divergence.nats = 0.004 * std::exp(shift);
  divergence.rows.assign(1024, static_cast<float>(divergence.nats));
  divergence.block = 64;
  return measured;
}

TEST(JudgedIncrease, OfAModelThatLikesPruningIsItsDivergence) {
  const DecodeMeasurement full = Pruned(0.0, false);
  const auto search = [&full](bool diverges) {
    return SolvePerplexityShift(full.perplexity, 0.5, {.max_shift = 8.0, .resolution = 1.0 / 64},
                                [&](double shift) -> absl::StatusOr<double> {
                                  const auto measured = Pruned(shift, diverges);
                                  const double increase = JudgedIncrease(full, measured, true);
                                  return full.perplexity * (1.0 + increase / 100.0);
                                })
        .value();
  };
  // By the text nothing would ever be lost: as sparse as the search goes.
  EXPECT_EQ(search(false).shift, 8.0);
  const ShiftResult bounded = search(true);
  EXPECT_NEAR(bounded.shift, std::log(std::log1p(0.005) / 0.004), 1.0 / 32);
  EXPECT_LE(bounded.value, 0.5);
}

TEST(JudgedIncrease, IsTheLargerOfBoth) {
  const DecodeMeasurement full = Pruned(0.0, false);
  DecodeMeasurement measured = Pruned(0.0, true);
  EXPECT_NEAR(JudgedIncrease(full, measured, false), std::expm1(0.004) * 100.0, 1e-6);
  measured.losses.assign(4096, 2.01f);
  measured.perplexity = std::exp(2.01);
  EXPECT_NEAR(JudgedIncrease(full, measured, false), std::expm1(0.01) * 100.0, 1e-6);
  EXPECT_NEAR(JudgedIncrease(full, measured, true), std::expm1(0.01) * 100.0, 1e-3);
}

TEST(IncreaseByDivergence, HasAnIntervalOfItsRows) {
  MeasuredDivergence divergence = {.nats = 0.004, .rows = {}, .block = 64};
  for (int i = 0; i < 1024; ++i) divergence.rows.push_back(i / 64 % 2 == 0 ? 0.002f : 0.006f);
  const PerplexityIncrease increase = IncreaseByDivergence(divergence);
  EXPECT_NEAR(increase.percent, std::expm1(0.004) * 100.0, 1e-9);
  ASSERT_TRUE(increase.interval.has_value());
  // Student's of 16 blocks that wave by 0.002.
  EXPECT_NEAR(increase.interval->high - increase.percent,
              2.131 * 0.2 * std::sqrt(16.0 / 15) / 4 * 1.004, 1e-3);
  divergence.rows.resize(200);
  EXPECT_FALSE(IncreaseByDivergence(divergence).interval.has_value()) << "three blocks";
}

}  // namespace
}  // namespace eta::testing
