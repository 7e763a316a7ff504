// The histogram as it is filled: row weights, bins, what falls outside, chunks and orders.

#include "calibration/solvers/score_histogram.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <random>
#include <vector>

#include "tests/testing/base/special_floats.h"
#include "tests/testing/kernels/calibration_reference.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
constexpr ScoreBins kUnitBins = {.count = 16, .low = -8.0, .high = 8.0};

double Total(const HeadScores& scores) {
  return std::accumulate(scores.weights.begin(), scores.weights.end(), 0.0);
}

void ExpectNear(const ScoreHistogram& a, const ScoreHistogram& b) {
  for (int32_t layer = 0; layer < a.num_layers(); ++layer) {
    for (int32_t h = 0; h < a.num_query_heads(); ++h) {
      const HeadScores x = a.head(layer, h);
      const HeadScores y = b.head(layer, h);
      for (size_t i = 0; i < x.weights.size(); ++i) {
        ASSERT_NEAR(x.weights[i], y.weights[i], 1e-12) << "bin " << i;
      }
      EXPECT_EQ(x.rows, y.rows);
      EXPECT_NEAR(x.mean_gate(), y.mean_gate(), 1e-12);
      EXPECT_EQ(x.outside.below, y.outside.below);
      EXPECT_EQ(x.outside.above, y.outside.above);
      EXPECT_EQ(x.outside.not_finite, y.outside.not_finite);
      EXPECT_NEAR(x.outside.below_weight, y.outside.below_weight, 1e-12);
      EXPECT_NEAR(x.outside.above_weight, y.outside.above_weight, 1e-12);
    }
  }
}

TEST(ScoreHistogram, KeysWeighOneOverTheirRow) {
  ScoreHistogram histogram = *ScoreHistogram::Create(2, 3, kUnitBins);
  histogram.AddKeys(1, 2, 4, std::vector<float>{-8.0f, 0.0f, 0.999f, 7.999f});
  histogram.AddKeys(1, 2, 1, std::vector<float>{0.5f});
  const HeadScores head = histogram.head(1, 2);
  EXPECT_EQ(head.weights[0], 0.25);
  EXPECT_EQ(head.weights[8], 1.5);
  EXPECT_EQ(head.weights[15], 0.25);
  EXPECT_EQ(head.outside, OutsideScores());
  for (int32_t layer = 0; layer < 2; ++layer) {
    for (int32_t h = 0; h < 3; ++h) {
      EXPECT_EQ(Total(histogram.head(layer, h)), layer == 1 && h == 2 ? 2.0 : 0.0);
    }
  }
}

TEST(ScoreHistogram, ScoresOutsideAreCountedAndHeldInNoBin) {
  ScoreHistogram histogram = *ScoreHistogram::Create(1, 1, kUnitBins);
  histogram.AddKeys(
      0, 0, 8,
      std::vector<float>{8.0f, std::nextafter(8.0f, 0.0f), std::nextafter(-8.0f, -9.0f), -8.0f,
                         1e30f, kNan, kInfinity, -kInfinity});
  const OutsideScores outside = histogram.head(0, 0).outside;
  EXPECT_EQ(outside.above, 2);
  EXPECT_EQ(outside.above_weight, 0.25);
  EXPECT_EQ(outside.below, 1);
  EXPECT_EQ(outside.below_weight, 0.125);
  EXPECT_EQ(outside.not_finite, 3);
  EXPECT_EQ(Total(histogram.head(0, 0)), 0.25);
}

// Bins of another width than a power of two: the last score below the end still has a bin.
TEST(ScoreHistogram, TheLastBinEndsAtTheRangesEnd) {
  const ScoreBins bins = {.count = 4097, .low = -0.1, .high = 0.7};
  ScoreHistogram histogram = *ScoreHistogram::Create(1, 1, bins);
  float last = 0.7f;
  while (last >= bins.high) last = std::nextafter(last, 0.0f);
  histogram.AddKeys(0, 0, 1, std::vector<float>{last});
  EXPECT_EQ(histogram.head(0, 0).weights.back(), 1.0);
}

// What float32 arithmetic on a device finds: floor(S * 128) + 8192.
TEST(ScoreHistogram, DefaultBinsAreExactInFloat32) {
  ScoreHistogram histogram = *ScoreHistogram::Create(1, 1);
  std::mt19937_64 random(1);
  std::uniform_real_distribution<float> uniform(-64.0f, 64.0f);
  std::vector<double> expected(static_cast<size_t>(histogram.bins().count));
  const auto add = [&](float score) {
    histogram.AddKeys(0, 0, 1, std::vector<float>{score});
    ++expected[static_cast<size_t>(static_cast<int32_t>(std::floor(score * 128.0f)) + 8192)];
  };
  for (int i = 0; i < 20000; ++i) add(uniform(random));
  for (int32_t edge = -8191; edge < 8192; ++edge) {
    const float score = static_cast<float>(edge) / 128.0f;
    add(score);
    add(edge == 0 ? -1e-14f : std::nextafter(score, -100.0f));
  }
  const HeadScores head = histogram.head(0, 0);
  EXPECT_TRUE(std::equal(expected.begin(), expected.end(), head.weights.begin()));
}

TEST(ScoreHistogram, RowsOfRaggedSequencesWeighOneEach) {
  const std::vector<ScoreTriangle> sequences = {
      RandomTriangle(1, 1, 2, 1), RandomTriangle(2, 37, 2, 1), RandomTriangle(3, 90, 2, 1)};
  const ScoreHistogram histogram = CollectWhole(sequences, {}, 5.0, 0.0);
  const HeadScores head = histogram.head(0, 0);
  EXPECT_EQ(head.rows, 128);
  EXPECT_NEAR(Total(head), 128.0, 1e-12);
  EXPECT_NEAR(head.mean_gate(), MeanGate(sequences, 5.0, 0.0), 1e-12);
}

// Rows cut into chunks of keys that arrive in any order, on several devices, merged.
TEST(ScoreHistogram, ChunksOrdersAndMergesGiveTheSame) {
  const ScoreBins bins = {.count = 512, .low = -4.0, .high = 4.0};  // some scores fall outside
  std::vector<ScoreTriangle> sequences = {RandomTriangle(4, 61, 2, 0), RandomTriangle(5, 8, 2, 0),
                                          RandomTriangle(6, 100, 2, 0)};
  sequences[0].scores[61 * 5] = kNan;
  const ScoreHistogram whole = CollectWhole(std::span(sequences).subspan(1), bins, 5.0, 0.5);
  ASSERT_GT(whole.head(0, 0).outside.below, 0);
  ASSERT_GT(whole.head(0, 0).outside.above, 0);

  struct Chunk {
    int64_t row_keys;
    std::span<const float> scores;
    double gate;
    bool closes_row;
  };
  std::vector<Chunk> chunks;
  for (const ScoreTriangle& sequence : std::span(sequences).subspan(1)) {
    for (int32_t t = 0; t < sequence.tokens; ++t) {
      double gate = 0.0;
      for (const float score : sequence.row(t)) {
        gate += GateOf(score, sequence.thresholds[static_cast<size_t>(t)], 5.0, 0.5);
      }
      for (int32_t begin = 0; begin <= t; begin += 7) {
        const int32_t count = std::min(7, t + 1 - begin);
        chunks.push_back(
            {t + 1, sequence.row(t).subspan(static_cast<size_t>(begin), static_cast<size_t>(count)),
             gate, begin == 0});
      }
    }
  }
  for (const uint64_t seed : {1, 2, 3}) {
    std::shuffle(chunks.begin(), chunks.end(), std::mt19937_64(seed));
    std::vector<ScoreHistogram> devices(3, *ScoreHistogram::Create(1, 1, bins));
    for (size_t i = 0; i < chunks.size(); ++i) {
      ScoreHistogram& device = devices[i % 3];
      device.AddKeys(0, 0, chunks[i].row_keys, chunks[i].scores);
      if (chunks[i].closes_row) device.AddGate(0, 0, chunks[i].row_keys, chunks[i].gate);
    }
    ASSERT_TRUE(devices[0].Merge(devices[1]).ok());
    ASSERT_TRUE(devices[0].Add(0, 0, devices[2].head(0, 0)).ok());
    ExpectNear(devices[0], whole);
  }
  const ScoreHistogram with_nan = CollectWhole(sequences, bins, 5.0, 0.5);
  EXPECT_EQ(with_nan.head(0, 0).outside.not_finite, 1);
}

TEST(ScoreHistogram, RefusesShapesOutOfLimits) {
  const auto message = [](int32_t layers, int32_t heads, const ScoreBins& bins) {
    const auto made = ScoreHistogram::Create(layers, heads, bins);
    EXPECT_EQ(made.status().code(), absl::StatusCode::kInvalidArgument);
    return std::string(made.status().message());
  };
  EXPECT_THAT(message(0, 1, {}), HasSubstr("num_layers"));
  EXPECT_THAT(message(1, -1, {}), HasSubstr("num_query_heads"));
  EXPECT_THAT(message(1, 1, {.count = 15}), HasSubstr("bins"));
  EXPECT_THAT(message(1, 1, {.count = kMaxScoreBins + 1}), HasSubstr("bins"));
  EXPECT_THAT(message(65536, 65536, {}), HasSubstr("bins"));
  EXPECT_THAT(message(1, 1, {.count = 16, .low = 1.0, .high = 1.0}), HasSubstr("range"));
  EXPECT_THAT(message(1, 1, {.count = 16, .low = kNan, .high = 1.0}), HasSubstr("range"));
  EXPECT_THAT(message(1, 1, {.count = 16, .low = 0.0, .high = kInfinity}), HasSubstr("range"));
}

TEST(ScoreHistogram, RefusesIncrementsThatAreNotSums) {
  ScoreHistogram histogram = *ScoreHistogram::Create(2, 2, kUnitBins);
  std::vector<double> weights(16, 1.0);
  const auto refused = [&](const HeadScores& scores, int32_t layer = 1, int32_t head = 0) {
    const absl::Status status = histogram.Add(layer, head, scores);
    EXPECT_EQ(status.code(), absl::StatusCode::kInvalidArgument);
    EXPECT_EQ(Total(histogram.head(1, 0)), 0.0);
    return std::string(status.message());
  };
  EXPECT_THAT(refused({.weights = std::span(weights).first(15)}), HasSubstr("scores[1][0]"));
  EXPECT_THAT(refused({.weights = weights, .rows = -1}), HasSubstr("rows"));
  EXPECT_THAT(refused({.weights = weights, .gate_sum = kNan}), HasSubstr("gate_sum"));
  EXPECT_THAT(refused({.weights = weights, .outside = {.below = -1}}), HasSubstr("outside"));
  EXPECT_THAT(refused({.weights = weights}, 2, 0), HasSubstr("layer 2"));
  EXPECT_THAT(refused({.weights = weights}, 0, 2), HasSubstr("head 2"));
  weights[3] = -1.0;
  EXPECT_THAT(refused({.weights = weights}), HasSubstr("weights"));
  weights[3] = kInfinity;
  EXPECT_THAT(refused({.weights = weights}), HasSubstr("weights"));
  EXPECT_FALSE(histogram.Merge(*ScoreHistogram::Create(2, 2)).ok());
  EXPECT_FALSE(histogram.Merge(*ScoreHistogram::Create(1, 2, kUnitBins)).ok());
}

}  // namespace
}  // namespace eta::testing
