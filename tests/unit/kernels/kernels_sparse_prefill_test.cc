// Sparse prefill (eta-semantics.md): its rows are decode rows in what they attend to, wherever
// their prompt is cut; on every backend, against the reference.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/near_ties.h"

namespace eta::testing {
namespace {

using ::testing::Combine;
using ::testing::ValuesIn;

struct PromptShape {
  const char* name;
  int32_t head_dim;
  int32_t block_size;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  DType dtype;
  AttentionOptions attention;
  bool outlier = false;  // kind of index, without a gate
  bool tempers = false;
  bool head_z = false;
};

std::ostream& operator<<(std::ostream& out, const PromptShape& shape) {
  return out << shape.name;
}

const std::vector<PromptShape>& Shapes() {
  static const std::vector<PromptShape> shapes = {
      {"Usual", 64, 64, 8, 2, DType::kFloat16, {.pinned_blocks = 2}},
      {"OwnReadsWithoutFloor",
       128,
       64,
       6,
       2,
       DType::kBFloat16,
       {.z = 1.0f, .pinned_blocks = 1, .uniform_floor = false}},
      {"SharedReadsTempered",
       64,
       64,
       4,
       1,
       DType::kFloat32,
       {.z = 0.5f, .sink_blocks = 1, .shared_reads = true},
       false,
       true},
      {"SmallBlocks",
       64,
       16,
       3,
       1,
       DType::kFloat16,
       {.offset = 0.25f, .z = 0.5f, .pinned_blocks = 0, .rescue_chunk = 5}},
      {"LargeBlocks", 96, 128, 2, 2, DType::kFloat16, {.pinned_blocks = 0, .rescue_chunk = 2}},
      {"OddBlocks",
       32,
       24,
       5,
       1,
       DType::kFloat32,
       {.z = 0.0f, .pinned_blocks = 3, .sink_blocks = 2},
       false,
       true,
       true},
      {"Relative",
       64,
       64,
       9,
       3,
       DType::kFloat16,
       {.sink_blocks = 1,
        .uniform_floor = false,
        .shared_reads = true,
        .relative = true,
        .relative_c = -2.5f},
       true},
      {"RelativeOwnSmallBlocks",
       128,
       16,
       4,
       2,
       DType::kBFloat16,
       {.pinned_blocks = 0,
        .rescue_chunk = 3,
        .uniform_floor = false,
        .relative = true,
        .relative_c = -1.5f},
       true}};
  return shapes;
}

// A prompt of `num_keys` tokens, of which the last `num_rows` are the step's rows.
AttentionCase Prompt(const PromptShape& shape, int32_t num_keys, int32_t num_rows, uint64_t seed) {
  Random random(seed);
  AttentionCase made;
  made.seed = seed;
  made.geometry = {.num_kv_heads = shape.num_kv_heads,
                   .head_dim = shape.head_dim,
                   .block_size = shape.block_size,
                   .dtype = shape.dtype};
  if (shape.outlier) {
    made.geometry.index = IndexKind::kOutlier;
    made.geometry.index_dtype = DType::kInt8;
    made.gate = Gate::kNone;
  }
  made.num_query_heads = shape.num_query_heads;
  SequenceCase sequence;
  sequence.kind = RowKind::kPrefill;
  sequence.position = num_keys - num_rows;
  sequence.num_rows = num_rows;
  sequence.attention = shape.attention;
  sequence.attention.sparse_prefill = true;
  const int64_t cols = int64_t{shape.num_kv_heads} * shape.head_dim;
  sequence.k = DriftingKeys(random, num_keys, cols, shape.block_size);
  sequence.v = Normal(random, num_keys, cols);
  for (int32_t h = 0; h < shape.num_query_heads; ++h) {
    sequence.thresholds.push_back(static_cast<float>(UniformReal(random, 1.0, 3.5)));
    if (shape.head_z) sequence.head_z.push_back(static_cast<float>(UniformReal(random, 0.0, 1.0)));
  }
  if (shape.tempers) sequence.tempered = {random() & random(), 0, random() & random()};
  made.sequences = {sequence};
  made.q = Normal(random, num_keys, int64_t{shape.num_query_heads} * shape.head_dim);
  made.q.data.erase(made.q.data.begin(), made.q.data.begin() + sequence.position * made.q.cols);
  made.q.rows = num_rows;
  return made;
}

// Rows [begin, end) of a prompt's first sequence alone; what was before them is in the cache.
AttentionCase Piece(const AttentionCase& whole, int32_t begin, int32_t end) {
  AttentionCase piece = whole;
  SequenceCase& sequence = piece.sequences[0];
  sequence.position += begin;
  sequence.num_rows = end - begin;
  for (HostTensor* tensor : {&sequence.k, &sequence.v}) {
    tensor->rows = sequence.num_keys();
    tensor->data.resize(static_cast<size_t>(tensor->rows * tensor->cols));
  }
  piece.q = HostTensor(end - begin, whole.q.cols);
  std::copy(whole.q.row(begin), whole.q.row(end), piece.q.row(0));
  return piece;
}

double Tolerance(const AttentionCase& made, DType out) {
  return (made.geometry.dtype == DType::kFloat32 ? 2e-5 : 2e-3) + RoundingError(out);
}

class SparsePrefill : public ::testing::TestWithParam<std::tuple<BackendUnderTest, PromptShape>> {
 protected:
  static BackendUnderTest backend() { return std::get<0>(GetParam()); }
  static PromptShape shape() { return std::get<1>(GetParam()); }
  void SetUp() override {
    if (!WhyMissing(backend()).empty()) GTEST_SKIP() << WhyMissing(backend());
  }
};

TEST_P(SparsePrefill, MatchesTheReference) {
  const AttentionCase made = Prompt(shape(), 700, 170, 5);
  Device judge({"reference"});
  Device device(backend(), /*num_threads=*/3);
  AttentionStep wanted(judge, made);
  const AttentionResult want = wanted.Run();
  const AttentionResult got = AttentionStep(device, made).Run();
  EXPECT_EQ(SelectionDifferences(made, wanted, got, want), "");
  int64_t pruned = 0;
  for (int64_t r = 0; r < want.out.rows; ++r) {
    if (!SameSelection(made, r, got, want)) continue;
    const int64_t keys = made.sequences[0].position + r + 1;
    for (int32_t h = 0; h < made.num_query_heads; ++h) {
      const int64_t at = int64_t{h} * made.geometry.head_dim;
      const auto count = static_cast<size_t>(r * made.num_query_heads + h);
      pruned += want.tokens_attended[count] < keys ? 1 : 0;
      EXPECT_LT(RelativeError(got.out.row(r) + at, want.out.row(r) + at, made.geometry.head_dim),
                Tolerance(made, device.activation_dtype()))
          << "row " << r << ", head " << h;
    }
  }
  EXPECT_GT(pruned, want.out.rows * made.num_query_heads / 8) << "or the case shows little";
}

TEST_P(SparsePrefill, ARowAttendsAsADecodeRowDoes) {
  AttentionCase made = Prompt(shape(), 430, 80, 6);
  Device device(backend());
  AttentionStep prefill_step(device, made);
  const AttentionResult prefill = prefill_step.Run();
  AttentionCase decode_case = made;
  decode_case.sequences[0].kind = RowKind::kDecode;
  const AttentionResult decode = AttentionStep(device, decode_case).Run();
  EXPECT_EQ(SelectionDifferences(made, prefill_step, decode, prefill), "");
  for (int64_t r = 0; r < prefill.out.rows; ++r) {
    if (!SameSelection(made, r, prefill, decode)) continue;
    EXPECT_LT(RelativeError(prefill.out.row(r), decode.out.row(r), prefill.out.cols),
              Tolerance(made, device.activation_dtype()))
        << "row " << r;
  }
}

TEST_P(SparsePrefill, ACutCannotBeSeen) {
  constexpr int32_t kRows = 150;
  const AttentionCase whole = Prompt(shape(), 500, kRows, 7);
  Device device(backend(), /*num_threads=*/3);
  const AttentionResult together = AttentionStep(device, whole).Run();
  Device single(backend(), /*num_threads=*/1);
  int32_t begin = 0;
  for (const int32_t end : {1, 35, 36, 99, kRows}) {
    const AttentionResult piece = AttentionStep(single, Piece(whole, begin, end)).Run();
    for (int32_t r = begin; r < end; ++r) {
      const float* got = piece.out.row(r - begin);
      const float* want = together.out.row(r);
      if (RowsAreExact(backend())) {
        EXPECT_EQ(std::memcmp(got, want, static_cast<size_t>(whole.q.cols) * sizeof(float)), 0)
            << "row " << r;
      } else {
        EXPECT_LT(RelativeError(got, want, whole.q.cols),
                  Tolerance(whole, device.activation_dtype()))
            << "row " << r;
      }
      const auto lists = static_cast<size_t>(whole.geometry.num_kv_heads);
      for (size_t h = 0; h < lists; ++h) {
        EXPECT_EQ(piece.selection[static_cast<size_t>(r - begin) * lists + h],
                  together.selection[static_cast<size_t>(r) * lists + h])
            << "row " << r;
      }
      for (int32_t h = 0; h < whole.num_query_heads; ++h) {
        EXPECT_EQ(
            piece.tokens_attended[static_cast<size_t>((r - begin) * whole.num_query_heads + h)],
            together.tokens_attended[static_cast<size_t>(r * whole.num_query_heads + h)])
            << "row " << r;
      }
    }
    begin = end;
  }
}

TEST_P(SparsePrefill, IsFullWhereAllIsAdmittedOrCalibrated) {
  AttentionCase full = Prompt(shape(), 300, 40, 8);
  full.sequences[0].attention.sparse_prefill = false;
  Device device(backend());
  const AttentionResult want = AttentionStep(device, full).Run();
  for (const bool calibrates : {false, true}) {
    AttentionCase made = full;
    made.sequences[0].attention.sparse_prefill = true;
    made.sequences[0].attention.admit_all = !calibrates;
    made.sequences[0].calibrate = calibrates;
    const AttentionResult got = AttentionStep(device, made).Run();
    EXPECT_EQ(got.out.data, want.out.data);
    EXPECT_EQ(got.tokens_attended, want.tokens_attended) << "untouched";
    EXPECT_EQ(got.tokens_read, want.tokens_read);
  }
}

INSTANTIATE_TEST_SUITE_P(Kernels, SparsePrefill,
                         Combine(ValuesIn(AllBackends()), ValuesIn(Shapes())),
                         [](const auto& test) {
                           return TestName(std::get<0>(test.param)) + "_" +
                                  std::get<1>(test.param).name;
                         });

// Two blocks of 16 keys and a tail of 2. One row prunes the first block; what that block's keys
// weigh can be told from their values.
TEST(SparsePrefillOfOneRow, GivesPrunedKeysTheFloor) {
  AttentionCase made;
  made.geometry = {.num_kv_heads = 1, .head_dim = 64, .block_size = 16, .dtype = DType::kFloat32};
  made.beta = 200.0f;  // a hard gate: logits below the threshold are 0
  SequenceCase sequence;
  sequence.kind = RowKind::kPrefill;
  sequence.position = 33;
  sequence.k = HostTensor(34, 64);
  sequence.v = HostTensor(34, 64);
  for (int32_t t = 0; t < 34; ++t) {
    sequence.k.row(t)[0] = t >= 16 && t < 32 ? 2.0f : 0.0f;
    sequence.v.row(t)[t] = 1.0f;
  }
  sequence.thresholds = {1.0f};
  sequence.attention = {.pinned_blocks = 0, .sparse_prefill = true};
  made.q = HostTensor(1, 64);
  made.q.data[0] = 8.0f;  // S = level
  for (const bool floor : {true, false}) {
    sequence.attention.uniform_floor = floor;
    made.sequences = {sequence};
    const double total = 16 * std::exp(2.0) + 2 + (floor ? 16 : 0);
    for (const BackendUnderTest& backend : AllBackends()) {
      if (!WhyMissing(backend).empty()) continue;
      Device device(backend);
      const AttentionResult result = AttentionStep(device, made).Run();
      const double rounding = RoundingError(device.activation_dtype());
      EXPECT_EQ(result.tokens_attended[0], 18) << backend;
      EXPECT_NEAR(result.out.data[5], floor ? 1 / total : 0.0, 1e-6 + rounding / total) << backend;
      EXPECT_NEAR(result.out.data[20], std::exp(2.0) / total, 1e-5 + rounding) << backend;
      EXPECT_NEAR(result.out.data[32], 1 / total, 1e-6 + rounding / total) << backend;
    }
  }
}

}  // namespace
}  // namespace eta::testing
