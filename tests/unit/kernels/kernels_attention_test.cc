// The index, the selection and both attentions of every backend against the reference, over random
// ragged steps.

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

// Of kind outlier some keys are 4 times as large, and so is the rounding of their scores.
double OutputTolerance(const KvGeometry& geometry, DType out) {
  const double exact = geometry.index == IndexKind::kOutlier ? 4e-5 : 1e-5;
  return (geometry.dtype == DType::kFloat32 ? exact : 2e-3) + RoundingError(out);
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
                OutputTolerance(geometry, device.activation_dtype()))
          << "row " << r << ", head " << h;
    }
  }
  EXPECT_EQ(RecallDifferences(attention_case, wanted, got, want), "");
  EXPECT_EQ(ShadowDifferences(attention_case, got, want,
                              OutputTolerance(geometry, device.activation_dtype())),
            "");
  EXPECT_EQ(CellDifferences(attention_case, got.cells, want.cells), "");
}

// Blocks and heads at random, in lists that may be empty.
std::vector<std::vector<SelectedBlock>> RandomLists(const AttentionCase& attention_case) {
  Random random(attention_case.seed + 99);
  std::vector<std::vector<SelectedBlock>> lists;
  for (const SequenceCase& sequence : attention_case.sequences) {
    for (int32_t i = 0; i < sequence.num_rows; ++i) {
      const int32_t full = (sequence.position + i + 1) / attention_case.geometry.block_size;
      for (int32_t h = 0; h < attention_case.geometry.num_kv_heads; ++h) {
        std::vector<SelectedBlock>& list = lists.emplace_back();
        for (int32_t j = 0; j < full; ++j) {
          const int64_t mask = Uniform(random, 0, (int64_t{1} << attention_case.group()) - 1);
          if (mask != 0 && Uniform(random, 0, 2) > 0) {
            list.emplace_back(static_cast<uint32_t>(j), static_cast<uint32_t>(mask));
          }
        }
      }
    }
  }
  return lists;
}

TEST_P(RaggedStep, ReadsWhatTheHostChose) {
  AttentionCase attention_case = Case();
  for (SequenceCase& sequence : attention_case.sequences) sequence.attention.confirm = false;
  SCOPED_TRACE(attention_case.Describe());
  Device judge({"reference"});
  Device device(backend());
  AttentionStep wanted(judge, attention_case);
  AttentionStep step(device, attention_case);
  const auto lists = RandomLists(attention_case);
  wanted.Choose(lists);
  step.Choose(lists);
  const AttentionResult want = wanted.Run();
  const AttentionResult got = step.Run(/*times=*/3);  // a backend with graphs replays the third
  EXPECT_EQ(got.selection, want.selection);
  EXPECT_EQ(got.tokens_attended, want.tokens_attended);
  EXPECT_EQ(got.tokens_read, want.tokens_read);
  EXPECT_EQ(got.values_read, want.values_read);
  size_t list = 0;
  for (const SequenceCase& sequence : attention_case.sequences) {
    for (int32_t i = 0; i < sequence.num_rows * attention_case.geometry.num_kv_heads; ++i, ++list) {
      if (sequence.kind == RowKind::kPrefill || sequence.attention.admit_all) continue;
      ASSERT_EQ(want.selection[list].size(), lists[list].size());
      for (size_t n = 0; n < lists[list].size(); ++n) {
        EXPECT_EQ(want.selection[list][n].first, lists[list][n].first);
      }
    }
  }
  const int32_t d = attention_case.geometry.head_dim;
  for (int64_t r = 0; r < want.out.rows; ++r) {
    for (int64_t at = 0; at < want.out.cols; at += d) {
      EXPECT_LT(RelativeError(got.out.row(r) + at, want.out.row(r) + at, d),
                OutputTolerance(attention_case.geometry, device.activation_dtype()))
          << "row " << r << ", head " << at / d;
    }
  }
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
        EXPECT_LT(error, OutputTolerance(attention_case.geometry, device.activation_dtype()))
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

}  // namespace
}  // namespace eta::testing
