// The 8-bit cache on a GPU where judged cases do not go: tokens whose scales lie far apart, and how
// prompt sequences share the memory that their tiles are widened into.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "kernels/cuda/prefill/prefill_widen.h"
#include "tests/testing/kernels/attention_case.h"

namespace eta::testing {
namespace {

// Multiplies every row by a power of two.
void Spread(Random& random, HostTensor& rows, int64_t lowest, int64_t highest) {
  for (int64_t t = 0; t < rows.rows; ++t) {
    const auto exponent = static_cast<int>(Uniform(random, lowest, highest));
    for (int64_t i = 0; i < rows.cols; ++i) rows.row(t)[i] = std::ldexp(rows.row(t)[i], exponent);
  }
}

// Values of one sequence up to 2^10 apart, and so are keys where bounds decide nothing. Prompt rows
// go through float16, which ends at 65504; decode rows meet values far beyond and far below.
AttentionCase SpreadCase(uint64_t seed) {
  AttentionCase made = RandomCase(seed, {.cache = true});
  Random random(seed);
  for (SequenceCase& sequence : made.sequences) {
    const bool prefill = sequence.kind == RowKind::kPrefill;
    const int64_t lowest = prefill ? -6 : Uniform(random, -80, 60);
    Spread(random, sequence.v, lowest, lowest + 10);
    if (prefill || sequence.attention.admit_all) Spread(random, sequence.k, -9, 1);
  }
  return made;
}

// More heads a KV head than tensor cores take: a decode row and a prompt, nothing pruned.
AttentionCase WideGroupCase(int32_t group) {
  Random random(static_cast<uint64_t>(group));
  AttentionCase made;
  made.geometry = {
      .num_kv_heads = 2, .head_dim = 64, .block_size = 32, .dtype = DType::kFloat8E4M3};
  made.num_query_heads = 2 * group;
  for (const RowKind kind : {RowKind::kDecode, RowKind::kPrefill}) {
    SequenceCase sequence;
    sequence.kind = kind;
    sequence.position = 203;
    sequence.num_rows = kind == RowKind::kDecode ? 1 : 37;
    sequence.attention.admit_all = true;
    sequence.k = Normal(random, sequence.num_keys(), 2 * 64);
    sequence.v = Normal(random, sequence.num_keys(), 2 * 64);
    Spread(random, sequence.k, -9, 1);
    Spread(random, sequence.v, -6, 4);
    sequence.thresholds.assign(static_cast<size_t>(made.num_query_heads), 0.5f);
    made.sequences.push_back(std::move(sequence));
  }
  made.q = Normal(random, 38, int64_t{made.num_query_heads} * 64);
  return made;
}

void ExpectTheReferencesAnswer(Device& device, const AttentionCase& made) {
  SCOPED_TRACE(made.Describe());
  Device reference({"reference"});
  AttentionStep judge(reference, made);
  const AttentionResult want = judge.Run();
  AttentionStep step(device, made);
  const AttentionResult got = step.Run();
  ASSERT_EQ(device->Finish(), absl::OkStatus());
  EXPECT_EQ(got.selection, want.selection);
  EXPECT_EQ(got.tokens_attended, want.tokens_attended);
  EXPECT_EQ(got.tokens_read, want.tokens_read);
  const int32_t d = made.geometry.head_dim;
  const double most = 2e-3 + RoundingError(device.activation_dtype());
  for (int64_t r = 0; r < want.out.rows; ++r) {
    for (int32_t h = 0; h < made.num_query_heads; ++h) {
      const int64_t at = int64_t{h} * d;
      ASSERT_LT(RelativeError(got.out.row(r) + at, want.out.row(r) + at, d), most)
          << "row " << r << ", head " << h;
    }
  }
  device.Clear();
}

class CudaFloat8Cache : public ::testing::TestWithParam<DType> {
 protected:
  void SetUp() override {
    if (!WhyMissing(backend_).empty()) GTEST_SKIP() << WhyMissing(backend_);
  }

  const BackendUnderTest backend_ = {.name = "cuda", .compute = GetParam()};
};

TEST_P(CudaFloat8Cache, TokensMayDifferInScale) {
  Device device(backend_);
  for (uint64_t seed = 1; seed <= 24; ++seed) {
    ExpectTheReferencesAnswer(device, SpreadCase(seed));
    if (HasFatalFailure()) return;
  }
}

TEST_P(CudaFloat8Cache, GroupsMayBeWiderThanTensorCoresTake) {
  Device device(backend_);
  for (const int32_t group : {17, 32}) ExpectTheReferencesAnswer(device, WideGroupCase(group));
}

INSTANTIATE_TEST_SUITE_P(Compute, CudaFloat8Cache,
                         ::testing::Values(DType::kFloat32, DType::kBFloat16),
                         [](const auto& param) { return std::string(Name(param.param)); });

// Sequences of a step, of which prompts have the given numbers of blocks (0: a decode row).
std::vector<cuda::StepSequence> Sequences(const KvGeometry& geometry,
                                          const std::vector<int32_t>& blocks) {
  std::vector<cuda::StepSequence> sequences;
  int32_t table_begin = 0;
  for (const int32_t count : blocks) {
    const bool prefill = count > 0;
    sequences.push_back({.row_begin = static_cast<int32_t>(sequences.size()),
                         .num_rows = 1,
                         .position = prefill ? count * geometry.block_size - 1 : 0,
                         .table_begin = table_begin,
                         .role = prefill ? cuda::RowRole::kPrefill : cuda::RowRole::kDecode});
    table_begin += std::max(count, 1);
  }
  return sequences;
}

// Row of the first sequence and number of sequences of each run.
std::vector<std::pair<int32_t, size_t>> Runs(const KvGeometry& geometry,
                                             const std::vector<int32_t>& blocks) {
  const std::vector<cuda::StepSequence> sequences = Sequences(geometry, blocks);
  std::vector<std::pair<int32_t, size_t>> runs;
  std::span<const cuda::StepSequence> rest = sequences;
  for (auto run = cuda::TakeWideRun(geometry, rest); !run.empty();
       run = cuda::TakeWideRun(geometry, rest)) {
    runs.emplace_back(run.front().row_begin, run.size());
  }
  EXPECT_TRUE(rest.empty());
  return runs;
}

TEST(CudaFloat8Prefill, PromptsThatAreNeighboursAndFitAreWidenedTogether) {
  const KvGeometry geometry = {
      .num_kv_heads = 4, .head_dim = 64, .block_size = 64, .dtype = DType::kFloat8E4M3};
  using Expected = std::vector<std::pair<int32_t, size_t>>;
  EXPECT_EQ(Runs(geometry, {}), Expected());
  EXPECT_EQ(Runs(geometry, {0, 0}), Expected());
  EXPECT_EQ(Runs(geometry, {3, 1, 2}), (Expected{{0, 3}}));
  EXPECT_EQ(Runs(geometry, {0, 3, 1, 0, 0, 2, 0}), (Expected{{1, 2}, {5, 1}}));

  // 64 KiB a block.
  const auto most = static_cast<int32_t>(cuda::kMaxWideBytes / (64 << 10));
  EXPECT_EQ(Runs(geometry, {most - 1, 1}), (Expected{{0, 2}}));
  EXPECT_EQ(Runs(geometry, {most - 1, 2, 1}), (Expected{{0, 1}, {1, 2}}));
  EXPECT_EQ(Runs(geometry, {1, most + 1, most + 5, 1}), (Expected{{0, 1}, {1, 1}, {2, 1}, {3, 1}}));
}

}  // namespace
}  // namespace eta::testing
