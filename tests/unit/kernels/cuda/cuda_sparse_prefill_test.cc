// Sparse prefill on a GPU over caches and lists that are longer than the usual cases, in steps that
// hold rows of all kinds, against the reference.

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/near_ties.h"

namespace eta::testing {
namespace {

struct LongShape {
  std::string name;
  int32_t head_dim;
  int32_t block_size;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  DType dtype = DType::kFloat16;
  bool narrow_index = false;
  bool outlier = false;
  bool relative = false;
  bool shared = false;
};

const LongShape kShapes[] = {
    {"Usual", 64, 64, 4, 1},
    {"SharedReads", 64, 64, 8, 2, DType::kFloat16, false, false, false, true},
    {"GroupOfThree", 64, 64, 9, 3, DType::kBFloat16, false, true},
    {"Relative", 64, 64, 3, 1, DType::kFloat16, false, true, true, true},
    {"RelativeBFloat16", 128, 64, 4, 1, DType::kBFloat16, false, true, true},
    {"RelativeFloat8", 64, 32, 4, 1, DType::kFloat8E4M3, false, true, true},
    {"SmallBlocks", 64, 16, 4, 1},
    {"LargeBlocks", 64, 128, 2, 1, DType::kBFloat16},
    {"NarrowIndex", 96, 32, 5, 1, DType::kFloat16, true},
    {"NarrowAll", 64, 64, 4, 1, DType::kFloat8E4M3, true},
    {"WideGroup", 128, 64, 12, 1},
    {"GroupOfSixteen", 64, 64, 16, 1},
    {"WideHeads", 256, 64, 4, 1, DType::kBFloat16},
    {"WideHeadsShared", 256, 128, 4, 2, DType::kFloat16, false, false, false, true},
    {"WideHeadsSmallBlocks", 256, 16, 8, 1, DType::kFloat16, true},
    {"WideHeadsBlocksOf32", 256, 32, 5, 1, DType::kBFloat16, false, true},
    {"WideHeadsRelative", 256, 64, 4, 1, DType::kBFloat16, false, true, true},
    {"WideHeadsFloat8", 256, 64, 2, 1, DType::kFloat8E4M3, true},
    {"WideHeadsRelativeFloat8", 256, 32, 4, 1, DType::kFloat8E4M3, false, true, true},
};

// Rows [position, position + num_rows) of a prompt or an answer, whose keys drift from block to
// block.
SequenceCase Rows(const LongShape& shape, RowKind kind, int32_t position, int32_t num_rows,
                  Random& random) {
  SequenceCase sequence;
  sequence.kind = kind;
  sequence.position = position;
  sequence.num_rows = num_rows;
  sequence.attention = {.z = 0.5f,
                        .sink_blocks = static_cast<int32_t>(position % 3),
                        .rescue_chunk = 40,
                        .uniform_floor = !shape.relative,
                        .shared_reads = shape.shared,
                        .sparse_prefill = kind == RowKind::kPrefill,
                        .relative = shape.relative,
                        .relative_c = -1.5f};
  const int32_t keys = position + num_rows;
  const int64_t cols = int64_t{shape.num_kv_heads} * shape.head_dim;
  sequence.k = DriftingKeys(random, keys, cols, shape.block_size);
  sequence.v = Normal(random, keys, cols);
  for (int32_t h = 0; h < shape.num_query_heads; ++h) {
    sequence.thresholds.push_back(static_cast<float>(UniformReal(random, 1.0, 3.0)));
  }
  return sequence;
}

// A step with rows of all kinds. `longest`: of a prompt, in keys.
AttentionCase MixedStep(const LongShape& shape, int32_t longest, uint64_t seed) {
  Random random(seed);
  AttentionCase made;
  made.seed = seed;
  made.geometry = {.num_kv_heads = shape.num_kv_heads,
                   .head_dim = shape.head_dim,
                   .block_size = shape.block_size,
                   .dtype = shape.dtype};
  if (shape.narrow_index) made.geometry.index_dtype = DType::kInt8;
  if (shape.outlier) {
    made.geometry.index = IndexKind::kOutlier;
    made.geometry.index_dtype = DType::kInt8;
  }
  if (shape.relative) made.gate = Gate::kNone;
  made.num_query_heads = shape.num_query_heads;
  struct Place {
    RowKind kind;
    int32_t position, num_rows;
  };
  const Place places[] = {{RowKind::kPrefill, 0, 65},
                          {RowKind::kDecode, 500, 1},
                          {RowKind::kPrefill, longest - 40, 40},
                          {RowKind::kPrefill, 300, 70},
                          {RowKind::kPrefill, 127, 1},
                          {RowKind::kDecode, 63, 1}};
  int32_t rows = 0;
  for (const Place& place : places) {
    made.sequences.push_back(Rows(shape, place.kind, place.position, place.num_rows, random));
    rows += place.num_rows;
  }
  made.sequences[3].attention.sparse_prefill = false;
  made.sequences[4].attention.pinned_blocks = 0;
  made.q = Normal(random, rows, int64_t{shape.num_query_heads} * shape.head_dim);
  return made;
}

class CudaSparsePrefill : public ::testing::TestWithParam<LongShape> {};

// Thresholds are random, so a bound may be within rounding of one: such rows are few.
TEST_P(CudaSparsePrefill, MatchesTheReferenceInMixedSteps) {
  constexpr double kTies = 0.02;
  const AttentionCase made = MixedStep(GetParam(), 9000, 3);
  Device judge({"reference"});
  const AttentionResult want = AttentionStep(judge, made).Run();
  for (const DType compute : {DType::kFloat32, DType::kBFloat16}) {
    const BackendUnderTest backend = {.name = "cuda", .compute = compute};
    if (!WhyMissing(backend).empty()) GTEST_SKIP() << WhyMissing(backend);
    Device device(backend);
    const AttentionResult got = AttentionStep(device, made).Run();
    const double tolerance = 2e-3 + RoundingError(device.activation_dtype());
    int64_t differ = 0;
    for (int64_t r = 0; r < want.out.rows; ++r) {
      if (!SameSelection(made, r, got, want)) {
        ++differ;
        continue;
      }
      for (int32_t h = 0; h < made.num_query_heads; ++h) {
        const auto at = static_cast<size_t>(r * made.num_query_heads + h);
        EXPECT_EQ(got.tokens_attended[at], want.tokens_attended[at]) << "row " << r;
        const int64_t column = int64_t{h} * made.geometry.head_dim;
        EXPECT_LT(RelativeError(got.out.row(r) + column, want.out.row(r) + column,
                                made.geometry.head_dim),
                  tolerance)
            << Name(compute) << ", row " << r << ", head " << h;
      }
    }
    const bool loose = GetParam().relative;
    EXPECT_LE(static_cast<double>(differ),
              (loose ? 5 * kTies : kTies) * static_cast<double>(want.out.rows))
        << Name(compute);
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CudaSparsePrefill, ::testing::ValuesIn(kShapes),
                         [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace eta::testing
