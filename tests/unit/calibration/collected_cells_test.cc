// Cells as sums: what they come to, that the ops of the backends fill them with what the plain
// forms collect from the same scores, and that contradictory ones are refused.

#include "calibration/calibrate/collected_cells.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <string>
#include <vector>

#include "engine/base/error.h"
#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/calibration_reference.h"

namespace eta::testing {
namespace {

using ::testing::HasSubstr;

constexpr ScoreBins kBins = {.count = 16, .low = -8.0, .high = 8.0};
constexpr CalibrationCells kAt(kBins);

// Of 1 layer and 2 heads over one row of 4 keys each: two in bin 3, one below and one above the
// range; the gate open by a quarter; two keys above the threshold.
std::vector<uint64_t> OneRow() {
  std::vector<uint64_t> cells(static_cast<size_t>(2 * kAt.size()));
  for (int64_t head = 0; head < 2; ++head) {
    uint64_t* at = cells.data() + head * kAt.size();
    at[kAt.weight(3)] = 2 * CalibrationWeight(4);
    at[kAt.below()] = at[kAt.above()] = 1;
    at[kAt.below_weight()] = at[kAt.above_weight()] = CalibrationWeight(4);
    at[kAt.gate()] = CalibrationWeight(4);
    at[kAt.needed(300)] = 1;
    at[kAt.needed(kZBeyond)] = 1;
  }
  return cells;
}

TEST(CollectedCells, AddsWhatDevicesCounted) {
  CollectedCells collected = *CollectedCells::Create(1, 2, kBins);
  std::vector<uint64_t> cells = OneRow();
  cells[static_cast<size_t>(kAt.size() + kAt.unconditional())] = 5;
  cells[static_cast<size_t>(kAt.size() + kAt.needed(kZUnreachable))] = 2;
  ASSERT_EQ(collected.Add(cells, 1), absl::OkStatus());
  ASSERT_EQ(collected.Add(OneRow(), 1), absl::OkStatus());
  const HeadScores head = collected.histogram().head(0, 1);
  EXPECT_EQ(head.rows, 2);
  EXPECT_EQ(head.weights[3], 1.0);
  EXPECT_EQ(head.outside,
            (OutsideScores{.below = 2, .above = 2, .below_weight = 0.5, .above_weight = 0.5}));
  EXPECT_EQ(head.mean_gate(), 0.25);
  const HeadKeys& keys = collected.head_z().head(0, 1);
  EXPECT_EQ(keys.needed[300], 2);
  EXPECT_EQ(keys.beyond, 2);
  EXPECT_EQ(keys.unreachable, 2);
  EXPECT_EQ(keys.unconditional, 5);
  EXPECT_EQ(collected.head_z().head(0, 0).total(), 4);
}

TEST(CollectedCells, NoRowsAreNothing) {
  CollectedCells collected = *CollectedCells::Create(1, 2, kBins);
  EXPECT_EQ(collected.Add(std::vector<uint64_t>(static_cast<size_t>(2 * kAt.size())), 0),
            absl::OkStatus());
  EXPECT_EQ(collected.histogram().head(0, 0).rows, 0);
}

TEST(CollectedCells, SizesAreLimited) {
  EXPECT_FALSE(CollectedCells::Create(0, 2, kBins).ok());
  EXPECT_FALSE(CollectedCells::Create(1, 2, {.count = 1, .low = -8.0, .high = 8.0}).ok());
}

struct Wrong {
  const char* what;
  std::function<void(std::vector<uint64_t>& cells, int64_t& rows)> make;
};

class ContradictoryCells : public ::testing::TestWithParam<Wrong> {};

TEST_P(ContradictoryCells, AreRefusedWhole) {
  CollectedCells collected = *CollectedCells::Create(1, 2, kBins);
  std::vector<uint64_t> cells = OneRow();
  int64_t rows = 1;
  GetParam().make(cells, rows);
  const absl::Status status = collected.Add(cells, rows);
  EXPECT_EQ(status.code(), absl::StatusCode::kInternal) << status;
  EXPECT_EQ(GetErrorDetail(status).reason, "CELLS_INCONSISTENT");
  EXPECT_THAT(status.message(), HasSubstr(GetParam().what));
  EXPECT_EQ(collected.histogram().head(0, 0).rows, 0) << "though only head 1 is wrong";
}

// Of head 1.
uint64_t& Cell(std::vector<uint64_t>& cells, int64_t index) {
  return cells[static_cast<size_t>(kAt.size() + index)];
}

INSTANTIATE_TEST_SUITE_P(
    Cells, ContradictoryCells,
    ::testing::Values(
        Wrong{"head 1: weights of",
              [](auto& cells, auto&) { Cell(cells, kAt.weight(4)) = 1ull << 40; }},
        Wrong{"head 1: weights of",
              [](auto& cells, auto&) { Cell(cells, kAt.weight(3)) -= 1ull << 40; }},
        Wrong{"head 1: weights of", [](auto& cells, auto&) { Cell(cells, kAt.weight(3)) = ~0ull; }},
        Wrong{"head 0: weights of", [](auto&, auto& rows) { rows = 2; }},
        Wrong{"head 0: weights of", [](auto&, auto& rows) { rows = 0; }},
        Wrong{"below the range", [](auto& cells, auto&) { Cell(cells, kAt.below()) = 0; }},
        Wrong{"above the range",
              [](auto& cells, auto&) {
                Cell(cells, kAt.weight(3)) += Cell(cells, kAt.above_weight());
                Cell(cells, kAt.above_weight()) = 0;
              }},
        Wrong{"above the range", [](auto& cells, auto&) { Cell(cells, kAt.above()) = 1ull << 40; }},
        Wrong{"not finite", [](auto& cells, auto&) { Cell(cells, kAt.not_finite()) = 1ull << 40; }},
        Wrong{"gates of",
              [](auto& cells, auto&) { Cell(cells, kAt.gate()) = 9 * CalibrationWeight(8); }},
        Wrong{"keys above", [](auto& cells, auto&) { Cell(cells, kAt.needed(7)) = ~0ull; }},
        Wrong{"of them", [](auto& cells, auto&) { cells.pop_back(); }},
        Wrong{"rows", [](auto&, auto& rows) { rows = -1; }},
        Wrong{"rows", [](auto&, auto& rows) { rows = kMaxCalibrationRows + 1; }}));

// Rows with scores that are not finite weigh less than 1; nothing else may.
TEST(CollectedCells, ScoresThatAreNotFiniteHaveNoWeight) {
  CollectedCells collected = *CollectedCells::Create(1, 2, kBins);
  std::vector<uint64_t> cells = OneRow();
  Cell(cells, kAt.weight(3)) -= CalibrationWeight(4);
  Cell(cells, kAt.not_finite()) = 1;
  EXPECT_EQ(collected.Add(cells, 1), absl::OkStatus());
  EXPECT_EQ(collected.histogram().head(0, 1).outside.not_finite, 1);
}

// Two prompts of one KV head and two query heads, whose scores the test computes itself.
AttentionCase Prompts() {
  Random random(5);
  AttentionCase made;
  made.geometry = {.num_kv_heads = 1, .head_dim = 64, .block_size = 16, .dtype = DType::kFloat32};
  made.num_query_heads = 2;
  for (const int32_t rows : {70, 33}) {
    SequenceCase prompt;
    prompt.kind = RowKind::kPrefill;
    prompt.calibrate = true;
    prompt.num_rows = rows;
    prompt.k = Normal(random, rows, 64);
    prompt.v = Normal(random, rows, 64);
    prompt.thresholds = {0.3f, 1.1f};
    prompt.attention = {.offset = 0.125f, .pinned_blocks = 1};
    made.sequences.push_back(prompt);
  }
  made.q = Normal(random, 103, 128);
  return made;
}

struct Plain {
  ScoreHistogram histogram;
  HeadZStatistics head_z;
};

// One query against one prompt's keys 0 .. t.
struct PlainRow {
  const AttentionCase& made;
  const SequenceCase& prompt;
  const float* q;
  int32_t head;
  int32_t t;

  double threshold() const {
    return prompt.thresholds[static_cast<size_t>(head)] - double{prompt.attention.offset};
  }
  std::vector<float> Scores() const {
    std::vector<float> scores;
    for (int32_t key = 0; key <= t; ++key) {
      double dot = 0.0;
      for (int i = 0; i < 64; ++i) dot += double{q[i]} * prompt.k.row(key)[i];
      scores.push_back(static_cast<float>(dot / 8.0));
    }
    return scores;
  }
  BlockBound BoundOf(const BlockRecord& record) const {
    double mean = 0.0;
    double variance = 0.0;
    double norm = 0.0;
    for (size_t i = 0; i < 64; ++i) {
      mean += double{q[i]} * record.mu[i];
      variance += double{q[i]} * q[i] * record.sigma[i] * record.sigma[i];
      norm += double{q[i]} * q[i];
    }
    return {.mean = static_cast<float>(mean),
            .deviation = static_cast<float>(std::sqrt(variance)),
            .ceiling = static_cast<float>(std::sqrt(norm) * record.max_norm),
            .scale = 0.125f};
  }
};

void AddRow(const PlainRow& row, size_t s, AttentionStep& step, Plain& plain) {
  const std::vector<float> scores = row.Scores();
  double gate = 0.0;
  for (const float score : scores) gate += GateOf(score, row.threshold(), row.made.beta, 0.0);
  plain.histogram.AddKeys(0, row.head, row.t + 1, scores);
  plain.histogram.AddGate(0, row.head, row.t + 1, gate);
  const int32_t full = (row.t + 1) / 16;
  for (int32_t j = 0; j * 16 <= row.t; ++j) {
    int64_t keys = 0;
    for (int32_t key = j * 16; key <= std::min(row.t, j * 16 + 15); ++key) {
      keys += scores[static_cast<size_t>(key)] >= row.threshold() ? 1 : 0;
    }
    if (j >= full - row.prompt.attention.pinned_blocks) {
      plain.head_z.AddUnconditional(0, row.head, keys);
    } else {
      plain.head_z.AddBlock(0, row.head, row.BoundOf(step.Record(s, j, 0)),
                            static_cast<float>(row.threshold()), keys);
    }
  }
}

// Through the plain forms of the histogram and the statistics, key by key.
Plain CollectPlainly(const AttentionCase& made, AttentionStep& step) {
  Plain plain = {*ScoreHistogram::Create(1, 2), *HeadZStatistics::Create(1, 2)};
  int64_t row = 0;
  for (size_t s = 0; s < made.sequences.size(); ++s) {
    const SequenceCase& prompt = made.sequences[s];
    for (int32_t t = 0; t < prompt.num_rows; ++t, ++row) {
      for (int32_t h = 0; h < 2; ++h) {
        AddRow({made, prompt, made.q.row(row) + h * 64, h, t}, s, step, plain);
      }
    }
  }
  return plain;
}

class CollectedByAnOp : public ::testing::TestWithParam<BackendUnderTest> {};

TEST_P(CollectedByAnOp, IsWhatThePlainFormsCollect) {
  if (!WhyMissing(GetParam()).empty()) GTEST_SKIP() << WhyMissing(GetParam());
  const AttentionCase made = Prompts();
  Device device(GetParam());
  AttentionStep step(device, made);
  CollectedCells collected = *CollectedCells::Create(1, 2);
  ASSERT_EQ(collected.Add(step.Run().cells, 103), absl::OkStatus());

  const Plain plain = CollectPlainly(made, step);
  for (int32_t h = 0; h < 2; ++h) {
    const HeadScores got = collected.histogram().head(0, h);
    const HeadScores want = plain.histogram.head(0, h);
    EXPECT_EQ(got.rows, want.rows);
    EXPECT_NEAR(got.gate_sum, want.gate_sum, 103 * 2e-6);
    double moved = 0.0;
    double ahead = 0.0;
    for (size_t b = 0; b < want.weights.size(); ++b) {
      ahead += got.weights[b] - want.weights[b];
      moved += std::abs(ahead);
    }
    EXPECT_NEAR(ahead, 0.0, 1e-9);
    EXPECT_LT(moved, 0.01 * 103) << "weight in a neighbouring bin";
    const HeadKeys& keys = collected.head_z().head(0, h);
    EXPECT_NEAR(static_cast<double>(keys.total()),
                static_cast<double>(plain.head_z.head(0, h).total()), 1.0);
    EXPECT_GT(keys.total() - keys.unconditional, 100);
    for (const double recall : {0.5, 0.8, 0.95}) {
      EXPECT_NEAR(SmallestZ(keys, recall)->z, SmallestZ(plain.head_z.head(0, h), recall)->z,
                  1.5 / kZStepsPerUnit);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Backends, CollectedByAnOp, ::testing::ValuesIn(AllBackends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
