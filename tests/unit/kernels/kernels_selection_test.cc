// The rules of selection and of attention over what it reads, in cases that a reader of
// eta-semantics.md would check by hand, on every backend.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/block_bound.h"
#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::ValuesIn;

class Selection : public ::testing::TestWithParam<BackendUnderTest> {
 protected:
  void SetUp() override {
    if (!WhyMissing(GetParam()).empty()) GTEST_SKIP() << WhyMissing(GetParam());
  }

  // One head, five blocks of 16 keys, a tail of 3; block j's keys are `level[j]` along the query.
  AttentionCase Levels(const std::vector<float>& levels, float threshold) {
    AttentionCase made;
    made.geometry = {.num_kv_heads = 1, .head_dim = 64, .block_size = 16, .dtype = DType::kFloat32};
    SequenceCase sequence;
    sequence.position = static_cast<int32_t>(levels.size()) * 16 + 2;
    sequence.k = HostTensor(sequence.num_keys(), 64);
    sequence.v = HostTensor(sequence.num_keys(), 64);
    for (int32_t t = 0; t < sequence.num_keys(); ++t) {
      const auto block = static_cast<size_t>(t / 16);
      sequence.k.row(t)[0] = block < levels.size() ? levels[block] : 0.0f;
      sequence.v.row(t)[t % 64] = 1.0f;
    }
    sequence.thresholds = {threshold};
    sequence.attention = {.z = 2.0f, .pinned_blocks = 0, .uniform_floor = false};
    made.sequences = {sequence};
    made.q = HostTensor(1, 64);
    made.q.data[0] = 8.0f;  // S = level
    return made;
  }

  // The same without a gate, all keys along zero but one of block 2; of kind outlier.
  AttentionCase OneKey(float level) {
    AttentionCase made = Levels({0, 0, 0, 0, 0}, 1e3f);
    made.geometry.index = IndexKind::kOutlier;
    made.geometry.index_dtype = DType::kInt8;
    made.gate = Gate::kNone;
    made.sequences[0].k.row(2 * 16 + 5)[0] = level;
    return made;
  }

  std::vector<uint32_t> BlocksOf(const AttentionCase& attention_case) {
    Device device(GetParam());
    const AttentionResult result = AttentionStep(device, attention_case).Run();
    std::vector<uint32_t> blocks;
    for (const SelectedBlock& block : result.selection[0]) blocks.push_back(block.first);
    const auto tokens = static_cast<int32_t>(blocks.size()) * 16 + 3;
    EXPECT_EQ(result.tokens_attended[0], tokens);
    EXPECT_EQ(result.tokens_read[0], tokens);
    return blocks;
  }
};

TEST_P(Selection, ReadsTheBlocksThatReachTheThreshold) {
  EXPECT_THAT(BlocksOf(Levels({0, 3, 1, 2, 0}, 1.5f)), ElementsAre(1, 3));
}

TEST_P(Selection, AnOffsetLowersTheThreshold) {
  AttentionCase lower = Levels({0, 3, 1, 2, 0}, 1.5f);
  lower.sequences[0].attention.offset = 1.0f;
  EXPECT_THAT(BlocksOf(lower), ElementsAre(1, 2, 3));
}

TEST_P(Selection, EachHeadHasItsOwnZ) {
  AttentionCase two = Levels({0, 0, 0}, 1.0f);
  SequenceCase& sequence = two.sequences[0];
  for (int32_t t = 16; t < 32; ++t) sequence.k.row(t)[0] = t % 2 == 0 ? 1.0f : -1.0f;  // bound: z
  sequence.attention.rescue_chunk = 0;
  two.num_query_heads = 2;
  two.q = HostTensor(1, 128);
  two.q.data[0] = two.q.data[64] = 8.0f;
  sequence.thresholds = {0.75f, 0.75f};
  sequence.head_z = {0.5f, 0.875f};
  Device device(GetParam());
  EXPECT_THAT(AttentionStep(device, two).Run().selection[0], ElementsAre(SelectedBlock(1, 0b10)));
  sequence.head_z = {0.75f, 0.0f};
  EXPECT_THAT(AttentionStep(device, two).Run().selection[0], ElementsAre(SelectedBlock(1, 0b01)));
}

TEST_P(Selection, PinsTheLastFullBlocks) {
  AttentionCase pinned = Levels({0, 3, 1, 2, 0}, 2.5f);
  pinned.sequences[0].attention.pinned_blocks = 2;
  EXPECT_THAT(BlocksOf(pinned), ElementsAre(1, 3, 4));
}

TEST_P(Selection, AnEmptyHeadRescuesItsBestBlockTheFirstOfEquals) {
  EXPECT_THAT(BlocksOf(Levels({0, 2, 3, 3, 1}, 9.0f)), ElementsAre(2));
}

TEST_P(Selection, RescueLooksAtTheFirstChunkOnly) {
  AttentionCase chunk = Levels({0, 2, 1, 3, 1}, 2.5f);
  chunk.sequences[0].attention.rescue_chunk = 3;
  EXPECT_THAT(BlocksOf(chunk), ElementsAre(1, 3));
}

TEST_P(Selection, APinnedBlockInTheChunkMakesRescueNeedless) {
  AttentionCase pinned = Levels({0, 3, 1, 2, 0}, 9.0f);
  pinned.sequences[0].attention.pinned_blocks = 1;
  EXPECT_THAT(BlocksOf(pinned), ElementsAre(4));
}

TEST_P(Selection, AHeadThatPrunesNothingFeelsNoFloor) {
  // Scores of -18: against a floor of weight 1 they would be lost in rounding.
  AttentionCase low = Levels({-18, -17, -18, -16, -17}, -40.0f);
  for (int32_t t = 80; t < low.sequences[0].num_keys(); ++t) low.sequences[0].k.row(t)[0] = -18.0f;
  Device device(GetParam());
  const AttentionResult without = AttentionStep(device, low).Run();
  low.sequences[0].attention.uniform_floor = true;
  const AttentionResult with = AttentionStep(device, low).Run();
  EXPECT_EQ(with.tokens_attended[0], 83);
  for (int32_t i = 0; i < 64; ++i) EXPECT_EQ(with.out.data[i], without.out.data[i]);
  float sum = 0.0f;
  for (int32_t i = 0; i < 64; ++i) sum += with.out.data[i];
  EXPECT_NEAR(sum, 1.0f, 1e-5 + RoundingError(device.activation_dtype()))
      << "weights of values that are unit vectors";
}

TEST_P(Selection, FullAttentionReadsEverything) {
  AttentionCase full = Levels({0, 3, 1, 2, 0}, 9.0f);
  full.sequences[0].attention.admit_all = true;
  EXPECT_THAT(BlocksOf(full), ElementsAre(0, 1, 2, 3, 4));
}

TEST_P(Selection, TheFloorGivesPrunedKeysWeightOne) {
  AttentionCase floor = Levels({0, 2, 0, 0, 0}, 1.0f);
  floor.beta = 200.0f;  // a hard gate: logits below the threshold are 0
  floor.sequences[0].attention.uniform_floor = true;
  Device device(GetParam());
  const AttentionResult result = AttentionStep(device, floor).Run();
  EXPECT_EQ(result.tokens_attended[0], 19);
  // 83 keys: 16 of weight e^2, the rest of weight 1. Coordinate 20 is the value of key 20 (block 1)
  // alone, coordinate 40 of key 40 (block 2), coordinate 0 of keys 0 and 64.
  const double total = 16 * std::exp(2.0) + 67;
  const auto expect = [&](int64_t coordinate, double want) {
    EXPECT_NEAR(result.out.row(0)[coordinate], want,
                1e-6 + want * RoundingError(device.activation_dtype()));
  };
  expect(20, std::exp(2.0) / total);
  expect(40, 1.0 / total);
  expect(0, 2.0 / total);
}

TEST_P(Selection, SinkBlocksAreAlwaysRead) {
  AttentionCase sinks = Levels({0, 1, 3, 1, 0}, 2.5f);
  sinks.sequences[0].attention.sink_blocks = 2;
  EXPECT_THAT(BlocksOf(sinks), ElementsAre(0, 1, 2));
  sinks.sequences[0].attention.pinned_blocks = 4;  // some blocks are both
  EXPECT_THAT(BlocksOf(sinks), ElementsAre(0, 1, 2, 3, 4));
}

TEST_P(Selection, ASinkMakesRescueNeedless) {
  AttentionCase sink = Levels({0, 1, 2, 1, 0}, 9.0f);
  sink.sequences[0].attention.sink_blocks = 1;
  EXPECT_THAT(BlocksOf(sink), ElementsAre(0));
}

TEST_P(Selection, SharedReadsAttendToMoreAndCountTheSame) {
  AttentionCase two = Levels({0, 3, 0, 0, 0}, 2.0f);
  SequenceCase& sequence = two.sequences[0];
  for (int32_t t = 48; t < 64; ++t) sequence.k.row(t)[1] = 3.0f;  // block 3, for the second head
  two.num_query_heads = 2;
  two.q = HostTensor(1, 128);
  two.q.data[0] = two.q.data[64 + 1] = 8.0f;
  sequence.thresholds = {2.0f, 2.0f};
  Device device(GetParam());
  const AttentionResult own = AttentionStep(device, two).Run();
  EXPECT_THAT(own.selection[0], ElementsAre(SelectedBlock(1, 0b01), SelectedBlock(3, 0b10)));
  sequence.attention.shared_reads = true;
  const AttentionResult shared = AttentionStep(device, two).Run();
  EXPECT_THAT(shared.selection[0], ElementsAre(SelectedBlock(1, 0b11), SelectedBlock(3, 0b11)));
  EXPECT_THAT(shared.tokens_attended, ElementsAre(19, 19));
  EXPECT_THAT(shared.tokens_read, ElementsAre(35));
  EXPECT_EQ(own.tokens_attended, shared.tokens_attended);
  EXPECT_EQ(own.out.data[50], 0.0f);  // the value of key 50, of block 3
  EXPECT_GT(shared.out.data[50], 0.0f);
}

TEST_P(Selection, VIsReadWhereTrueScoresReachTheThreshold) {
  // Block 1: a bound of 2 z, and no key above 1. Block 2: a key at 3. Block 3: all keys at 2.
  AttentionCase made = Levels({0, 0, 0, 2, 0}, 1.5f);
  SequenceCase& sequence = made.sequences[0];
  for (int32_t t = 16; t < 32; ++t) {
    sequence.k.row(t)[0] = t % 2 == 0 ? 1.0f : -1.0f;
    sequence.k.row(t)[1] = 3.0f;  // so that the largest norm does not cap the bound
  }
  sequence.k.row(40)[0] = 3.0f;
  sequence.attention.confirm = true;
  Device device(GetParam());
  AttentionResult result = AttentionStep(device, made).Run();
  const auto kept = [&result] {
    std::vector<uint32_t> blocks;
    for (const auto& [block, heads] : result.selection[0]) {
      if (heads != 0) blocks.push_back(block);
    }
    return blocks;
  };
  EXPECT_THAT(kept(), ElementsAre(2, 3));
  EXPECT_THAT(result.tokens_attended, ElementsAre(3 * 16 + 3)) << "what was admitted";
  EXPECT_THAT(result.tokens_read, ElementsAre(3 * 16 + 3));
  EXPECT_THAT(result.values_read, ElementsAre(2 * 16 + 3));
  EXPECT_EQ(result.out.row(0)[20], 0.0f) << "the value of key 20, of block 1";
  EXPECT_GT(result.out.row(0)[40], 0.0f);

  sequence.tempered = {uint64_t{1} << 40};
  result = AttentionStep(device, made).Run();
  EXPECT_THAT(kept(), ElementsAre(3)) << "a tempered key confirms nothing";
  sequence.tempered.clear();
  sequence.attention.sink_blocks = 2;
  result = AttentionStep(device, made).Run();
  EXPECT_THAT(kept(), ElementsAre(0, 1, 2, 3)) << "sinks need no confirmation";
  sequence.attention.sink_blocks = 0;
  sequence.thresholds = {1e3f};
  result = AttentionStep(device, made).Run();
  EXPECT_THAT(result.selection[0], ElementsAre(::testing::_)) << "a rescued block does not either";
  EXPECT_THAT(result.values_read, ElementsAre(16 + 3));
  sequence.thresholds = {-1e3f};
  result = AttentionStep(device, made).Run();
  EXPECT_THAT(result.values_read, ElementsAre(83)) << "nor do those of a head that prunes nothing";
}

TEST_P(Selection, ATemperedKeyWeighsOneButForTheRowsOwn) {
  AttentionCase tempered = Levels({0, 0, 0, 0, 0}, -5.0f);
  SequenceCase& sequence = tempered.sequences[0];
  sequence.attention.admit_all = true;
  sequence.k.row(20)[0] = sequence.k.row(82)[0] = 5.0f;  // 82: the row's own
  sequence.tempered = {uint64_t{1} << 20, uint64_t{1} << (82 - 64)};
  const double total = 82 + std::exp(5.0);
  for (const RowKind kind : {RowKind::kDecode, RowKind::kPrefill}) {
    sequence.kind = kind;
    Device device(GetParam());
    const AttentionResult result = AttentionStep(device, tempered).Run();
    const double rounding = RoundingError(device.activation_dtype());
    EXPECT_NEAR(result.out.data[20], 1 / total, 1e-6 + rounding / total);
    EXPECT_NEAR(result.out.data[18], (1 + std::exp(5.0)) / total, 1e-5 + rounding);  // and key 18
  }
}

TEST_P(Selection, OnlyAnOutlierRecordSeesOneKeyAmongMany) {
  AttentionCase one = OneKey(8.0f);
  SequenceCase& sequence = one.sequences[0];
  sequence.thresholds = {6.0f};
  sequence.attention.z = 0.0f;
  sequence.attention.rescue_chunk = 0;
  EXPECT_THAT(BlocksOf(one), ElementsAre(2));
  one.geometry.index = IndexKind::kMoment;
  one.geometry.index_dtype = DType::kFloat16;
  EXPECT_THAT(BlocksOf(one), ElementsAre());
}

TEST_P(Selection, ARecordBeyondFloat16AdmitsNothing) {
  AttentionCase huge = OneKey(1e7f);  // a step of 1e7 / 127
  huge.sequences[0].thresholds = {-5.0f};
  EXPECT_THAT(BlocksOf(huge), ElementsAre(0, 1, 3, 4));
}

// Of 83 keys 82 weigh 1, one e^8. Its block holds log(15 + e^8) = 8.01, each other log(16) = 2.77,
// and the row log(82 + e^8) = 8.03.
TEST_P(Selection, ARelativeThresholdFollowsTheRow) {
  AttentionCase one = OneKey(8.0f);
  AttentionOptions& options = one.sequences[0].attention;
  options.relative = true;
  options.relative_c = -3.9f;
  EXPECT_THAT(BlocksOf(one), ElementsAre(2));
  options.relative_c = -5.35f;  // 2.68
  EXPECT_THAT(BlocksOf(one), ElementsAre(0, 1, 2, 3, 4));
  options.relative_c = -5.15f;  // 2.88
  EXPECT_THAT(BlocksOf(one), ElementsAre(2));
  options.offset = 0.2f;
  EXPECT_THAT(BlocksOf(one), ElementsAre(0, 1, 2, 3, 4));
  options.relative_c = 9.0f;
  EXPECT_THAT(BlocksOf(one), ElementsAre(2)) << "rescued";
  options.sink_blocks = 1;
  options.pinned_blocks = 1;
  EXPECT_THAT(BlocksOf(one), ElementsAre(0, 4));

  // All keys weigh 1: a block holds log(16), the row log(83) = 4.42.
  AttentionCase alike = OneKey(0.0f);
  alike.sequences[0].attention.relative = true;
  alike.sequences[0].attention.relative_c = -3.9f;
  EXPECT_THAT(BlocksOf(alike), ElementsAre(0, 1, 2, 3, 4));
}

// The keys of block 2 are x and -x in turns, but for the first: its outlier, 1.25 x. Of the other
// 15 the mean is -x / 15 and the envelope x, but for 0.3 %. 67 keys are zero.
TEST_P(Selection, BeyondGTheMassOfABlockGrowsAsOneKeyDoes) {
  const double g = std::sqrt(2.0 * std::log(15.0));
  for (const double deviation : {1.5, g, 4.0}) {
    const double x = deviation * std::sqrt(2.68);
    AttentionCase wave = OneKey(0.0f);
    SequenceCase& sequence = wave.sequences[0];
    for (int32_t t = 32; t < 48; ++t) {
      sequence.k.row(t)[0] = static_cast<float>(t % 2 == 0 ? x : -x);
    }
    sequence.k.row(32)[0] = static_cast<float>(1.25 * x);
    // n exp(m + g sd - g^2 / 2) is exp(m + g sd): n = exp(g^2 / 2).
    const double others = 15.0 * std::exp(-x / 15.0);
    const double lift = deviation < g ? deviation * deviation / 2 : g * deviation - g * g / 2;
    const double mass = std::log(others * std::exp(lift) + std::exp(1.25 * x));
    const double row = std::log(67.0 + others + std::exp(1.25 * x));
    sequence.attention.rescue_chunk = 0;
    sequence.attention.relative = true;
    sequence.attention.relative_c = static_cast<float>(mass - row - 0.1);
    EXPECT_THAT(BlocksOf(wave), ElementsAre(2)) << deviation;
    sequence.attention.relative_c = static_cast<float>(mass - row + 0.1);
    EXPECT_THAT(BlocksOf(wave), ElementsAre()) << deviation;
  }
}

template <typename Real>
void ExpectASteadyMass() {
  constexpr float kNone = -1e3f;  // an outlier that weighs nothing
  for (const int32_t n : {1, 2, 15, 63}) {
    const double g = std::sqrt(2.0 * std::log(n));
    const auto mass = [&](double sd) {
      return static_cast<double>(BlockMass<Real>(
          {.mean = 0.5f, .deviation = static_cast<float>(sd), .outlier = kNone}, n));
    };
    EXPECT_NEAR(mass(0.0), std::log(n) + 0.5, 1e-5) << n;
    EXPECT_NEAR(mass(g), 0.5 + g * g, 1e-5) << n;
    EXPECT_NEAR(mass(g + 3.0), 0.5 + g * (g + 3.0), 1e-5) << n;
    for (const double sd : {g * 0.99, g, g * 1.01}) {  // the slope is min(sd, g)
      EXPECT_NEAR(mass(sd + 0.01) - mass(sd), 0.01 * std::min(sd, g), 1e-4) << n << ", " << sd;
    }
    constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
    EXPECT_TRUE(std::isnan(BlockMass<Real>({.mean = kNan}, n))) << n;
    EXPECT_TRUE(std::isnan(BlockMass<Real>({.deviation = kNan}, n))) << n;
    EXPECT_TRUE(std::isnan(BlockMass<Real>({.outlier = kNan}, n))) << n;
  }
  EXPECT_EQ(BlockMass<Real>({.mean = 7.0f, .deviation = 9.0f, .outlier = 2.0f}, 0), Real{2});
}

TEST(BlockMass, GrowsWithTheDeviationWithoutAJumpAndKeepsNoNumbers) {
  ExpectASteadyMass<float>();
  ExpectASteadyMass<double>();
}

TEST_P(Selection, TheShadowOfFullAttentionIsWhole) {
  AttentionCase full = Levels({0, 3, 1, 2, 0}, 0.5f);
  full.sequences[0].attention.admit_all = true;
  Device device(GetParam());
  const AttentionResult result = AttentionStep(device, full).Run();
  ASSERT_THAT(result.shadow_rows, ElementsAre(0));
  EXPECT_NEAR(result.mass[0], 1.0, 1e-6);
  EXPECT_NEAR(result.error[0], 0.0, 1e-6 + RoundingError(device.activation_dtype()));
}

TEST_P(Selection, TheShadowTellsWhatWasLeftOut) {
  AttentionCase part = Levels({0, 2, 0, 0, 0}, 1.0f);
  part.gate = Gate::kNone;
  Device device(GetParam());
  const AttentionResult result = AttentionStep(device, part).Run();
  // Block 1 (keys 16 to 31) and the tail (80 to 82) are read. Coordinate i is key i, and key i + 64
  // where there is one.
  const double kept = 16 * std::exp(2.0) + 3;
  const double total = kept + 64;
  double distance = 0.0;
  double norm = 0.0;
  for (int32_t i = 0; i < 64; ++i) {
    const bool tail = i + 64 >= 80 && i + 64 < 83;
    const bool read = i >= 16 && i < 32;
    const double got = (read ? std::exp(2.0) : 0.0) + (tail ? 1.0 : 0.0);
    const double want = (read ? std::exp(2.0) : 1.0) + (i + 64 < 83 ? 1.0 : 0.0);
    distance += std::pow(got / kept - want / total, 2);
    norm += std::pow(want / total, 2);
  }
  EXPECT_NEAR(result.mass[0], kept / total, 1e-5);
  EXPECT_NEAR(result.error[0], std::sqrt(distance / norm),
              1e-5 + RoundingError(device.activation_dtype()));
}

INSTANTIATE_TEST_SUITE_P(Kernels, Selection, ValuesIn(AllBackends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
