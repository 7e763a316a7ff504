// What calibration counts, on every backend: against the reference where no rounding can move a
// key, and by hand.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <initializer_list>

#include "tests/testing/base/special_floats.h"
#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/cell_differences.h"

namespace eta::testing {
namespace {

using ::testing::Combine;
using ::testing::Range;
using ::testing::ValuesIn;

template <typename T>
T Pick(Random& random, std::initializer_list<T> choices) {
  return *(choices.begin() + Uniform(random, 0, static_cast<int64_t>(choices.size()) - 1));
}

// Multiples of `unit`, `most` of them at most in size.
HostTensor OnGrid(Random& random, int64_t rows, int64_t cols, float unit, int64_t most) {
  HostTensor tensor(rows, cols);
  for (float& x : tensor.data) x = unit * static_cast<float>(Uniform(random, -most, most));
  return tensor;
}

// Every score is a multiple of s/8, up to rounding; edges and thresholds lie halfway between two.
// The values are exact in any type of cache.
AttentionCase GridCase(uint64_t seed, DType dtype) {
  Random random(seed);
  AttentionCase made;
  made.seed = seed;
  KvGeometry& geometry = made.geometry;
  geometry.num_kv_heads = static_cast<int32_t>(Uniform(random, 1, 3));
  geometry.head_dim = Pick(random, {64, 64, 96, 128});
  geometry.block_size = Pick(random, {16, 32, 64, 128});
  geometry.sub_block = Pick(random, {0, 4});
  geometry.dtype = dtype;
  made.num_query_heads =
      geometry.num_kv_heads * static_cast<int32_t>(Uniform(random, 1, seed % 4 == 0 ? 16 : 5));
  made.gate = Uniform(random, 0, 4) == 0 ? Gate::kNone : Gate::kSilu;
  made.beta = Pick(random, {1.0f, 5.0f});
  const double step = made.softmax_scale() / 8.0;
  made.bins.count = Pick(random, {16, 100, 2000});
  made.bins.low = (-0.5 - static_cast<double>(Uniform(random, 10, 600))) * step;
  made.bins.high = made.bins.low + made.bins.count * 3.0 * step;

  const int64_t cols = int64_t{geometry.num_kv_heads} * geometry.head_dim;
  int64_t rows = 0;
  for (int64_t s = Uniform(random, 1, 4); s > 0; --s) {
    SequenceCase sequence;
    sequence.kind = Uniform(random, 0, 3) == 0 ? RowKind::kDecode : RowKind::kPrefill;
    sequence.calibrate = Uniform(random, 0, 4) != 0;
    sequence.num_rows = static_cast<int32_t>(
        sequence.kind == RowKind::kPrefill ? Uniform(random, 1, geometry.block_size / 2 + 12) : 1);
    sequence.position =
        static_cast<int32_t>(Uniform(random, 0, 3) == 0 ? 0 : Uniform(random, 0, 250));
    sequence.attention = {.offset = Pick(random, {0.0f, 0.25f, -0.5f}),
                          .pinned_blocks = static_cast<int32_t>(Uniform(random, 0, 3)),
                          .admit_all = Uniform(random, 0, 3) == 0};
    sequence.k = OnGrid(random, sequence.num_keys(), cols, 0.25f, 4);
    const HostTensor drift = OnGrid(random, sequence.num_keys(), cols, 0.25f, 3);
    for (int32_t t = 0; t < sequence.num_keys(); ++t) {
      const float* shift = drift.row(t / geometry.block_size);
      for (int64_t i = 0; i < cols; ++i) sequence.k.row(t)[i] += shift[i];
    }
    sequence.v = Normal(random, sequence.num_keys(), cols);
    for (int32_t h = 0; h < made.num_query_heads; ++h) {
      const double effective = (static_cast<double>(Uniform(random, -60, 120)) + 0.5) * step;
      sequence.thresholds.push_back(static_cast<float>(effective + sequence.attention.offset));
    }
    rows += sequence.num_rows;
    made.sequences.push_back(std::move(sequence));
  }
  made.q = OnGrid(random, rows, int64_t{made.num_query_heads} * geometry.head_dim, 0.5f, 4);
  return made;
}

class CalibrationCounts : public ::testing::TestWithParam<std::tuple<BackendUnderTest, int>> {
 protected:
  BackendUnderTest backend() const { return std::get<0>(GetParam()); }
  uint64_t seed() const { return static_cast<uint64_t>(std::get<1>(GetParam())); }
  void SetUp() override {
    if (!WhyMissing(backend()).empty()) GTEST_SKIP() << WhyMissing(backend());
  }
};

TEST_P(CalibrationCounts, AreTheReferencesWhereNoRoundingCanMoveAKey) {
  const bool narrow = seed() % 4 == 0 && backend().name == "cuda";
  const DType dtypes[] = {DType::kFloat32, DType::kFloat16, DType::kBFloat16};
  const AttentionCase made =
      GridCase(seed(), narrow ? DType::kFloat8E4M3 : dtypes[seed() % std::size(dtypes)]);
  SCOPED_TRACE(made.Describe());
  Device judge({"reference"});
  Device device(backend(), /*num_threads=*/1 + static_cast<int>(seed() % 3));
  EXPECT_EQ(CellDifferences(made, AttentionStep(device, made).Run().cells,
                            AttentionStep(judge, made).Run().cells, kClearCells),
            "");
}

INSTANTIATE_TEST_SUITE_P(Kernels, CalibrationCounts,
                         Combine(ValuesIn(JudgedBackends()), Range(1, 13)), [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" +
                                  std::to_string(std::get<1>(test.param));
                         });

// One head of 64 dimensions over blocks of 16 keys; key t is `scores[t]` along every row's query,
// so that S = scores[t] for every row.
AttentionCase Prompt(const std::vector<float>& scores, float threshold) {
  AttentionCase made;
  made.geometry = {.num_kv_heads = 1,
                   .head_dim = 64,
                   .block_size = 16,
                   .sub_block = 4,
                   .dtype = DType::kFloat32};
  made.bins = {.count = 32, .low = -8.0, .high = 8.0};
  SequenceCase prompt;
  prompt.kind = RowKind::kPrefill;
  prompt.calibrate = true;
  prompt.num_rows = static_cast<int32_t>(scores.size());
  prompt.k = HostTensor(prompt.num_rows, 64);
  prompt.v = HostTensor(prompt.num_rows, 64);
  made.q = HostTensor(prompt.num_rows, 64);
  for (int32_t t = 0; t < prompt.num_rows; ++t) {
    prompt.k.row(t)[0] = scores[static_cast<size_t>(t)];
    made.q.row(t)[0] = 8.0f;
  }
  prompt.thresholds = {threshold};
  prompt.attention = {.pinned_blocks = 0};
  made.sequences = {prompt};
  return made;
}

// The same with the first `before` keys already in the cache: rows for the others only.
AttentionCase From(AttentionCase made, int32_t before) {
  SequenceCase& prompt = made.sequences[0];
  prompt.position = before;
  prompt.num_rows -= before;
  made.q.rows -= before;
  made.q.data.erase(made.q.data.begin(), made.q.data.begin() + before * made.q.cols);
  return made;
}

class Calibration : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!WhyMissing(GetParam()).empty()) GTEST_SKIP() << WhyMissing(GetParam());
  }
  std::vector<uint64_t> Cells(const AttentionCase& made, int num_threads = 2) const {
    Device device(GetParam(), num_threads);
    return AttentionStep(device, made).Run().cells;
  }
};

// Cells of one head by their names.
struct Named {
  Named(const AttentionCase& made, const std::vector<uint64_t>& all, int64_t head = 0)
      : at(made.bins),
        cells(all.begin() + head * at.size(), all.begin() + (head + 1) * at.size()) {}
  uint64_t operator[](int64_t cell) const { return cells[static_cast<size_t>(cell)]; }
  double gate() const { return static_cast<double>((*this)[at.gate()]) / kCalibrationUnit; }
  std::vector<int32_t> bins() const {  // those that hold weight
    std::vector<int32_t> found;
    for (int32_t b = 0; b < at.bins; ++b) {
      if ((*this)[at.weight(b)] != 0) found.push_back(b);
    }
    return found;
  }

  CalibrationCells at;
  std::vector<uint64_t> cells;
};

uint64_t Weights(std::initializer_list<int64_t> row_keys) {
  uint64_t sum = 0;
  for (const int64_t keys : row_keys) sum += CalibrationWeight(keys);
  return sum;
}

using ::testing::ElementsAre;

TEST_P(Calibration, EveryKeyOfARowWeighsItsShareOfTheRow) {
  const AttentionCase made = Prompt({-3.25f, 2.0f, 7.9f}, 0.0f);
  const Named cells(made, Cells(made));
  EXPECT_THAT(cells.bins(), ElementsAre(9, 20, 31));  // bins of 1/2 from -8
  EXPECT_EQ(cells[cells.at.weight(9)], Weights({1, 2, 3}));
  EXPECT_EQ(cells[cells.at.weight(20)], Weights({2, 3}));
  EXPECT_EQ(cells[cells.at.weight(31)], Weights({3}));
}

TEST_P(Calibration, AScoreOnAnEdgeIsInTheBinThatBeginsThere) {
  const AttentionCase made = From(Prompt({-8.0f, 0.5f, 7.5f, 0.0f}, 0.0f), 3);
  const Named cells(made, Cells(made));
  EXPECT_THAT(cells.bins(), ElementsAre(0, 16, 17, 31));
}

TEST_P(Calibration, ScoresOutsideTheRangeAreCountedAside) {
  const AttentionCase made = From(Prompt({-8.5f, 8.0f, 60.0f, 1.0f, -900.0f}, 0.0f), 4);
  const Named cells(made, Cells(made));
  EXPECT_EQ(cells[cells.at.below()], 2u);
  EXPECT_EQ(cells[cells.at.above()], 2u);
  EXPECT_EQ(cells[cells.at.below_weight()], Weights({5, 5}));
  EXPECT_EQ(cells[cells.at.above_weight()], Weights({5, 5}));
  EXPECT_THAT(cells.bins(), ElementsAre(18));
  EXPECT_EQ(cells[cells.at.not_finite()], 0u);
}

TEST_P(Calibration, TheRangesEndIsOutside) {
  const AttentionCase made = From(Prompt({1.0f, 8.0f}, 0.0f), 1);
  const Named cells(made, Cells(made));
  EXPECT_EQ(cells[cells.at.above()], 1u);
  EXPECT_EQ(cells[cells.at.above_weight()], Weights({2}));
  EXPECT_THAT(cells.bins(), ElementsAre(18));
}

TEST_P(Calibration, TheGateIsTheRowsMeanItsOwnKeyIncluded) {
  AttentionCase made = From(Prompt({-1.0f, 0.5f, 2.0f}, 1.0f), 2);
  made.sequences[0].attention.offset = 0.25f;  // tau_eff 0.75
  double sum = 0.0;
  for (const double score : {-1.0, 0.5, 2.0}) sum += 1.0 / (1.0 + std::exp(-5.0 * (score - 0.75)));
  EXPECT_NEAR(Named(made, Cells(made)).gate(), sum / 3, 1e-6);
}

TEST_P(Calibration, WithoutAGateItsSumStays0) {
  AttentionCase made = Prompt({-1.0f, 0.5f, 2.0f}, 1.0f);
  made.gate = Gate::kNone;
  const Named cells(made, Cells(made));
  EXPECT_EQ(cells.gate(), 0.0);
  EXPECT_THAT(cells.bins(), ElementsAre(14, 17, 20));
  EXPECT_EQ(cells[cells.at.unconditional()], 1u);
}

// 3 blocks and a tail of 4. Block 0 holds 16 keys of 1; block 1 one key of 4 among 0s, mean 0.25,
// deviation 15/16 ^ 0.5; block 2 keys of 3.
AttentionCase Blocks(float threshold, int32_t pinned) {
  std::vector<float> scores(52, 1.0f);
  std::fill(scores.begin() + 16, scores.begin() + 32, 0.0f);
  scores[20] = 4.0f;
  std::fill(scores.begin() + 32, scores.end(), 3.0f);
  AttentionCase made = From(Prompt(scores, threshold), 51);
  made.sequences[0].attention.pinned_blocks = pinned;
  return made;
}

TEST_P(Calibration, KeysAboveTheThresholdNeedTheZThatAdmitsTheirBlock) {
  const AttentionCase made = Blocks(0.5f, 0);
  const Named cells(made, Cells(made));
  EXPECT_EQ(cells[cells.at.needed(0)], 32u) << "blocks whose mean passes";
  EXPECT_EQ(cells[cells.at.needed(34)], 1u) << "0.25 + z * 1.887 >= 0.5: 256 z >= 33.9";
  EXPECT_EQ(cells[cells.at.unconditional()], 4u) << "the tail";
}

TEST_P(Calibration, AKeyAtTheThresholdIsAboveIt) {
  const AttentionCase made = Blocks(3.0f, 0);
  const Named cells(made, Cells(made));
  EXPECT_EQ(cells[cells.at.needed(0)], 16u);
  EXPECT_EQ(cells[cells.at.unconditional()], 4u);
}

TEST_P(Calibration, KeysOfPinnedBlocksNeedNothing) {
  const AttentionCase made = Blocks(0.5f, 2);
  const Named cells(made, Cells(made));
  EXPECT_EQ(cells[cells.at.needed(0)], 16u);
  EXPECT_EQ(cells[cells.at.unconditional()], 21u);
}

TEST_P(Calibration, KeysThatNeedMoreThanTheLargestZAreCountedAside) {
  // A key of 1 in 64 dimensions among keys of 0, along the query: 31 flat deviations from the mean.
  AttentionCase made = Prompt(std::vector<float>(17, 0.0f), 7.0f);
  made.geometry.sub_block = 0;
  std::fill_n(made.sequences[0].k.row(3), 64, 1.0f);
  std::fill_n(made.q.row(16), 64, 1.0f);
  made = From(made, 16);
  const Named cells(made, Cells(made));
  EXPECT_EQ(cells[cells.at.needed(kZBeyond)], 1u);
}

TEST_P(Calibration, KeysThatRoundingPutsPastTheirBlocksCeilingAreCountedAside) {
  // 17 keys along the query: S = s |q| |k| = 7, and sqrt(7) * sqrt(7) < 7 in float32.
  AttentionCase made = Prompt(std::vector<float>(17, 1.0f), 7.0f);
  for (int32_t t = 0; t < 17; ++t) {
    std::fill_n(made.sequences[0].k.row(t), 7, 1.0f);
    std::fill_n(made.q.row(t), 7, 8.0f);
  }
  made = From(made, 16);
  const Named cells(made, Cells(made));
  if (RowsAreExact(GetParam())) {
    EXPECT_EQ(cells[cells.at.needed(kZUnreachable)], 16u);
  } else {
    EXPECT_EQ(cells[cells.at.needed(kZUnreachable)] + cells[cells.at.needed(0)], 16u);
  }
}

TEST_P(Calibration, RowsThatDecodeOrDoNotCalibrateCountNothing) {
  AttentionCase made = Prompt({1.0f, 2.0f}, 0.0f);
  made.sequences[0].kind = RowKind::kDecode;
  const std::vector<uint64_t> cells = Cells(made);
  EXPECT_EQ(std::count(cells.begin(), cells.end(), 0u), static_cast<int64_t>(cells.size()));
}

TEST_P(Calibration, WhatIsNotANumberIsCountedAsideAndHasNoGate) {
  AttentionCase made = Prompt({1.0f, 2.0f, kInfinity, -1.0f, -kInfinity, 0.0f}, 0.25f);
  const Named infinite(made, Cells(made));
  EXPECT_EQ(infinite[infinite.at.not_finite()], 0u + 4 + 2);
  EXPECT_EQ(infinite[infinite.at.above()] + infinite[infinite.at.below()], 0u);
  // Infinite scores are open or shut gates.
  double gate = 0.0;
  const double open[] = {1.0, 2.0, kInfinity, -1.0, -kInfinity, 0.0};
  for (int row = 0; row < 6; ++row) {
    for (int t = 0; t <= row; ++t)
      gate += 1.0 / (1.0 + std::exp(-5.0 * (open[t] - 0.25))) / (row + 1);
  }
  EXPECT_NEAR(infinite.gate(), gate, 1e-5);
  EXPECT_EQ(infinite[infinite.at.unconditional()], 1u + 2 + 3 + 3 + 3 + 3);

  AttentionCase broken = made;
  broken.q.row(3)[0] = kNaN;
  broken.q.row(4)[0] = kNaN;
  broken.q.row(5)[0] = kNaN;
  const Named nan(broken, Cells(broken));
  EXPECT_EQ(nan[nan.at.not_finite()], 1u + 4 + 5 + 6);
  EXPECT_EQ(nan[nan.at.unconditional()], 1u + 2 + 3);
  double first_rows = 0.0;
  for (int row = 0; row < 3; ++row) {
    for (int t = 0; t <= row; ++t) {
      first_rows += 1.0 / (1.0 + std::exp(-5.0 * (open[t] - 0.25))) / (row + 1);
    }
  }
  EXPECT_NEAR(nan.gate(), first_rows, 1e-5);
}

TEST_P(Calibration, ANaNThresholdGatesNothingAndHasNoKeysAbove) {
  const AttentionCase made = Prompt({1.0f, 2.0f, 3.0f}, kNaN);
  const Named cells(made, Cells(made));
  EXPECT_EQ(cells.gate(), 0.0);
  EXPECT_EQ(cells[cells.at.unconditional()], 0u);
  EXPECT_THAT(cells.bins(), ElementsAre(18, 20, 22));
}

// 400 rows of 3 heads: enough that the CPU shares one KV head's rows between threads.
AttentionCase LongPrompt() {
  Random random(11);
  AttentionCase made;
  made.geometry = {.num_kv_heads = 1, .head_dim = 64, .block_size = 32, .dtype = DType::kBFloat16};
  made.num_query_heads = 3;
  made.bins = {.count = 64, .low = -8.0, .high = 8.0};
  SequenceCase prompt;
  prompt.kind = RowKind::kPrefill;
  prompt.calibrate = true;
  prompt.num_rows = 400;
  prompt.k = Normal(random, 400, 64, 1.5f);
  prompt.v = Normal(random, 400, 64);
  prompt.thresholds = {0.0f, 1.0f, 2.0f};
  made.sequences = {prompt};
  made.q = Normal(random, 400, 3 * 64);
  return made;
}

TEST_P(Calibration, HowAPromptWasCutCannotBeSeen) {
  const AttentionCase whole = LongPrompt();
  const std::vector<uint64_t> want = Cells(whole, /*num_threads=*/3);
  std::vector<uint64_t> sum(want.size(), 0);
  int32_t begin = 0;
  for (const int32_t end : {1, 34, 161, 400}) {
    AttentionCase part = From(whole, begin);
    SequenceCase& prompt = part.sequences[0];
    prompt.num_rows = end - begin;
    for (HostTensor* tensor : {&prompt.k, &prompt.v, &part.q}) {
      tensor->rows = tensor == &part.q ? end - begin : end;
      tensor->data.resize(static_cast<size_t>(tensor->rows * tensor->cols));
    }
    const std::vector<uint64_t> cells = Cells(part, /*num_threads=*/1);
    for (size_t i = 0; i < sum.size(); ++i) sum[i] += cells[i];
    begin = end;
  }
  if (RowsAreExact(GetParam())) {
    EXPECT_EQ(sum, want);
  } else {
    EXPECT_EQ(CellDifferences(whole, sum, want), "");
  }
}

TEST_P(Calibration, AForkedPrefixCountsForBoth) {
  AttentionCase made = LongPrompt();
  SequenceCase child = made.sequences[0];
  child.position = 320;
  child.num_rows = 80;
  child.parent = 0;
  child.shared_blocks = 5;
  made.sequences[0].position = 300;
  made.sequences[0].num_rows = 100;
  made.sequences.push_back(child);
  made.q.rows = 180;
  made.q.data.resize(static_cast<size_t>(made.q.rows * made.q.cols));
  Device judge({"reference"});
  EXPECT_EQ(CellDifferences(made, Cells(made), AttentionStep(judge, made).Run().cells), "");
}

INSTANTIATE_TEST_SUITE_P(Kernels, Calibration, ValuesIn(AllBackends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
