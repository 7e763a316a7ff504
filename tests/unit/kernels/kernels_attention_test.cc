// The index, the selection and both attentions of every backend against the reference, over random
// ragged steps.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "kernels/dtype.h"
#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/cell_differences.h"
#include "tests/testing/kernels/near_ties.h"

namespace eta::testing {
namespace {

using ::testing::Combine;
using ::testing::Range;
using ::testing::Values;
using ::testing::ValuesIn;

double OutputTolerance(DType kv, DType out) {
  return (kv == DType::kFloat32 ? 1e-5 : 2e-3) + RoundingError(out);
}

// Steps between two float16 values of the same sign.
int HalfSteps(float a, float b) {
  return std::abs(FloatToHalf(a) - FloatToHalf(b));
}

// Where a float16 value of the record rounds the other way, so may 8-bit ones, by a step each; that
// `equal` counts the records in which nothing does keeps it the exception.
void ExpectSameNarrowRecord(const BlockRecord& got, const BlockRecord& want, int64_t& equal) {
  const bool same_error = std::abs(got.mu_error - want.mu_error) <= 1e-5f * want.mu_error;
  equal += got.mu == want.mu && got.sigma == want.sigma && same_error ? 1 : 0;
  const auto largest = [](const std::vector<float>& values) {
    float most = 0.0f;
    for (const float value : values) most = std::max(most, std::abs(value));
    return most;
  };
  const float mu_step = 1.1f / 127 * largest(want.mu);
  const float least_step = largest(want.sigma) / 224 / 512;
  for (size_t i = 0; i < want.mu.size(); ++i) {
    EXPECT_NEAR(got.mu[i], want.mu[i], mu_step) << "mu[" << i << "]";
    EXPECT_NEAR(got.sigma[i], want.sigma[i], std::max(0.13f * want.sigma[i], 2 * least_step))
        << "sigma[" << i << "]";
  }
  EXPECT_NEAR(got.mu_error, want.mu_error, 0.1f * want.mu_error + mu_step / 8);
}

// The same for a record of kind outlier: a step more or less where a mean rounds the other way.
void ExpectSameOutlierRecord(const BlockRecord& got, const BlockRecord& want, int64_t& equal) {
  equal += got.mu == want.mu && got.sigma == want.sigma && got.outlier == want.outlier ? 1 : 0;
  EXPECT_NEAR(got.step, want.step, 1e-3f * want.step);
  EXPECT_EQ(got.outlier_step, want.outlier_step);
  EXPECT_EQ(got.outlier, want.outlier);
  for (size_t i = 0; i < want.mu.size(); ++i) {
    EXPECT_NEAR(got.mu[i], want.mu[i], 1.2f * want.step) << "mu[" << i << "]";
    EXPECT_NEAR(got.sigma[i], want.sigma[i], 1.3f * want.step) << "sigma[" << i << "]";
  }
}

void ExpectSameRecord(const BlockRecord& got, const BlockRecord& want) {
  for (size_t i = 0; i < want.mu.size(); ++i) {
    EXPECT_TRUE(HalfSteps(got.mu[i], want.mu[i]) <= 1 || std::abs(got.mu[i] - want.mu[i]) < 1e-7)
        << "mu[" << i << "] " << got.mu[i] << " against " << want.mu[i];
    EXPECT_LE(HalfSteps(got.sigma[i], want.sigma[i]), 1)
        << "sigma[" << i << "] " << got.sigma[i] << " against " << want.sigma[i];
  }
  EXPECT_EQ(got.mu_error, 0.0f);
}

void ExpectSameNormAndTotal(const BlockRecord& got, const BlockRecord& want) {
  EXPECT_NEAR(got.max_norm, want.max_norm, 1e-6 * want.max_norm);
  EXPECT_LT(RelativeError(got.v_total.data(), want.v_total.data(),
                          static_cast<int64_t>(want.v_total.size())),
            1e-5);
}

// The case with only row `row` of sequence `s`, at its own place.
AttentionCase RowAlone(const AttentionCase& whole, size_t s, int32_t row, int64_t row_in_step) {
  AttentionCase alone = whole;
  alone.seed = whole.seed + 1000 + static_cast<uint64_t>(row_in_step);
  SequenceCase sequence = whole.sequences[s];
  sequence.position += row;
  sequence.num_rows = 1;
  for (HostTensor* tensor : {&sequence.k, &sequence.v}) {
    tensor->rows = sequence.num_keys();
    tensor->data.resize(static_cast<size_t>(tensor->rows * tensor->cols));
  }
  alone.sequences = {sequence};
  alone.q = HostTensor(1, whole.q.cols);
  std::copy_n(whole.q.row(row_in_step), whole.q.cols, alone.q.row(0));
  return alone;
}

class RaggedStep : public ::testing::TestWithParam<std::tuple<BackendUnderTest, int, NarrowTypes>> {
 protected:
  BackendUnderTest backend() const { return std::get<0>(GetParam()); }
  AttentionCase Case() const {
    return RandomCase(static_cast<uint64_t>(std::get<1>(GetParam())), std::get<2>(GetParam()));
  }
  void SetUp() override {
    if (!WhyMissing(backend()).empty()) GTEST_SKIP() << WhyMissing(backend());
  }
};

TEST_P(RaggedStep, MatchesTheReference) {
  const AttentionCase attention_case = Case();
  SCOPED_TRACE(attention_case.Describe());
  Device judge({"reference"});
  Device device(backend());
  AttentionStep wanted(judge, attention_case);
  AttentionStep step(device, attention_case);
  const KvGeometry& geometry = attention_case.geometry;
  int64_t records = 0;
  int64_t equal = 0;
  for (size_t s = 0; s < attention_case.sequences.size(); ++s) {
    const int32_t full = attention_case.sequences[s].num_keys() / geometry.block_size;
    for (int32_t j = 0; j < full && !HasFailure(); ++j) {
      for (int32_t h = 0; h < geometry.num_kv_heads; ++h) {
        const BlockRecord got = step.Record(s, j, h);
        const BlockRecord want = wanted.Record(s, j, h);
        ++records;
        if (geometry.index == IndexKind::kOutlier) {
          ExpectSameOutlierRecord(got, want, equal);
        } else if (geometry.index_dtype == DType::kInt8) {
          ExpectSameNarrowRecord(got, want, equal);
        } else {
          ExpectSameRecord(got, want);
        }
        ExpectSameNormAndTotal(got, want);
      }
    }
  }
  if (geometry.index_dtype == DType::kInt8) {
    EXPECT_GE(equal, records - 2 - records / 20);
  }

  const AttentionResult want = wanted.Run();
  const AttentionResult got = step.Run();
  EXPECT_EQ(SelectionDifferences(attention_case, wanted, got, want), "");
  for (int64_t r = 0; r < want.out.rows; ++r) {
    if (!SameSelection(attention_case, r, got, want)) continue;
    for (int32_t h = 0; h < attention_case.num_query_heads; ++h) {
      const int64_t at = static_cast<int64_t>(h) * geometry.head_dim;
      EXPECT_LT(RelativeError(got.out.row(r) + at, want.out.row(r) + at, geometry.head_dim),
                OutputTolerance(geometry.dtype, device.activation_dtype()))
          << "row " << r << ", head " << h;
    }
  }
  for (size_t h = 0; h < want.above.size(); ++h) {  // a score may lie within rounding of tau
    const double slack =
        HasRelative(attention_case) ? 2.0 + static_cast<double>(want.above[h]) / 50 : 1.0;
    EXPECT_NEAR(static_cast<double>(got.above[h]), static_cast<double>(want.above[h]), slack);
    EXPECT_NEAR(static_cast<double>(got.above_admitted[h]),
                static_cast<double>(want.above_admitted[h]), slack);
  }
  EXPECT_EQ(ShadowDifferences(attention_case, got, want,
                              OutputTolerance(geometry.dtype, device.activation_dtype())),
            "");
  EXPECT_EQ(CellDifferences(attention_case, got.cells, want.cells), "");
}

TEST_P(RaggedStep, ARowDoesNotFeelItsBatch) {
  const AttentionCase attention_case = Case();
  SCOPED_TRACE(attention_case.Describe());
  Device device(backend(), /*num_threads=*/3);
  const AttentionResult together = AttentionStep(device, attention_case).Run();
  Device single(backend(), /*num_threads=*/1);
  int64_t row = 0;
  for (size_t s = 0; s < attention_case.sequences.size(); ++s) {
    const int32_t rows = attention_case.sequences[s].num_rows;
    // Every row of a small group; of a prompt, the first ones and some more.
    for (int32_t i = 0; i < rows; i += i < 4 ? 1 : 7) {
      const AttentionCase alone = RowAlone(attention_case, s, i, row + i);
      const AttentionResult result = AttentionStep(single, alone).Run();
      const float* beside = together.out.row(row + i);
      const double error = RelativeError(result.out.row(0), beside, result.out.cols);
      if (RowsAreExact(backend())) {
        EXPECT_EQ(std::memcmp(result.out.row(0), beside,
                              static_cast<size_t>(result.out.cols) * sizeof(float)),
                  0)
            << "sequence " << s << ", row " << i << " differs by " << error;
      } else {
        EXPECT_LT(error, OutputTolerance(attention_case.geometry.dtype, device.activation_dtype()))
            << "sequence " << s << ", row " << i;
      }
      const auto kv_heads = static_cast<size_t>(attention_case.geometry.num_kv_heads);
      for (size_t h = 0; h < kv_heads; ++h) {
        EXPECT_EQ(result.selection[h],
                  together.selection[static_cast<size_t>(row + i) * kv_heads + h]);
      }
    }
    row += rows;
  }
}

TEST_P(RaggedStep, TheIndexDoesNotFeelHowAPromptWasCut) {
  AttentionCase attention_case = Case();
  AttentionCase recut = attention_case;
  recut.seed += 77;
  Device device(backend());
  AttentionStep one(device, attention_case);
  AttentionStep other(device, recut);
  for (size_t s = 0; s < recut.sequences.size(); ++s) {
    const int32_t full = recut.sequences[s].num_keys() / recut.geometry.block_size;
    for (int32_t j = 0; j < full; ++j) {
      const BlockRecord a = one.Record(s, j, 0);
      const BlockRecord b = other.Record(s, j, 0);
      EXPECT_EQ(a.mu, b.mu);
      EXPECT_EQ(a.sigma, b.sigma);
      EXPECT_EQ(a.max_norm, b.max_norm);
      EXPECT_EQ(a.v_total, b.v_total);
      EXPECT_EQ(a.mu_error, b.mu_error);
      EXPECT_EQ(a.outlier, b.outlier);
      EXPECT_EQ(a.step, b.step);
      EXPECT_EQ(a.outlier_step, b.outlier_step);
    }
  }
}

std::string RaggedStepName(const ::testing::TestParamInfo<RaggedStep::ParamType>& test) {
  const auto& [backend, seed, narrow] = test.param;
  return TestName(backend) + (narrow.cache ? "_float8" : "") + (narrow.index ? "_int8" : "") +
         (narrow.outlier ? "_outlier" : "") + "_" + std::to_string(seed);
}

INSTANTIATE_TEST_SUITE_P(Kernels, RaggedStep,
                         Combine(ValuesIn(JudgedBackends()), Range(1, 41), Values(NarrowTypes())),
                         RaggedStepName);
INSTANTIATE_TEST_SUITE_P(OutlierKernels, RaggedStep,
                         Combine(ValuesIn(JudgedBackends()), Range(101, 141),
                                 Values(NarrowTypes{.outlier = true})),
                         RaggedStepName);
INSTANTIATE_TEST_SUITE_P(NarrowKernels, RaggedStep,
                         Combine(ValuesIn(NarrowBackends()), Range(1, 13),
                                 Values(NarrowTypes{.cache = true}, NarrowTypes{.index = true},
                                        NarrowTypes{.cache = true, .index = true})),
                         RaggedStepName);
// What the judge computes is in kernels_narrow_test.cc; that it feels neither batches nor cuts,
// here.
INSTANTIATE_TEST_SUITE_P(NarrowReference, RaggedStep,
                         Combine(Values(BackendUnderTest{"reference"}), Range(1, 4),
                                 Values(NarrowTypes{.cache = true, .index = true},
                                        NarrowTypes{.outlier = true})),
                         RaggedStepName);

// What a reader of eta-semantics would check by hand, on every backend.
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

using ::testing::ElementsAre;

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

INSTANTIATE_TEST_SUITE_P(Kernels, Selection, ValuesIn(AllBackends()),
                         [](const auto& test) { return TestName(test.param); });

}  // namespace
}  // namespace eta::testing
