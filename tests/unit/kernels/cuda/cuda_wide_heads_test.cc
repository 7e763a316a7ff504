// Heads of 256 on a GPU, against the reference: decode in clusters and as a stream, prefill with a
// gate and without, with tempered keys and learned sinks; large groups, which the plain kernels
// take. cuda_windows_test.cc has windows, cuda_screen_test.cc and cuda_sparse_prefill_test.cc have
// selection.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

struct WideRows {
  RowKind kind;
  int32_t tokens;
  int32_t rows;
};

// Thresholds lie far from all bounds of decode rows that select, so the counts have one right
// answer.
AttentionCase MakeWideCase(Random& random, int32_t group, const std::vector<WideRows>& sequences,
                           bool all) {
  AttentionCase made;
  made.geometry = {.num_kv_heads = static_cast<int32_t>(Uniform(random, 1, 2)),
                   .head_dim = 256,
                   .block_size = Pick(random, {16, 32, 64, 128}),
                   .dtype = Pick(random, {DType::kFloat16, DType::kBFloat16, DType::kFloat8E4M3})};
  made.num_query_heads = group * made.geometry.num_kv_heads;
  made.gate = Often(random, 2) ? Gate::kSilu : Gate::kNone;
  made.seed = random();
  if (Often(random, 2)) AddSinks(made.seed, made);
  const int64_t cols = int64_t{made.geometry.num_kv_heads} * made.geometry.head_dim;
  int64_t rows = 0;
  for (const WideRows& of : sequences) {
    SequenceCase sequence;
    sequence.kind = of.kind;
    sequence.num_rows = std::min(of.rows, of.tokens);
    sequence.position = of.tokens - sequence.num_rows;
    sequence.attention.admit_all = all;
    sequence.attention.pinned_blocks = Pick(random, {0, 1, 2});
    sequence.k = DriftingKeys(random, of.tokens, cols, made.geometry.block_size);
    sequence.v = Normal(random, of.tokens, cols);
    if (Often(random, 3)) sequence.tempered = {random() & random()};
    for (int32_t head = 0; head < made.num_query_heads; ++head) {
      const bool gates = of.kind == RowKind::kPrefill && !Often(random, 3);
      const float far = Often(random, 4) ? -100.0f : 100.0f;
      sequence.thresholds.push_back(gates ? static_cast<float>(UniformReal(random, -1.0, 1.0))
                                          : far);
    }
    rows += sequence.num_rows;
    made.sequences.push_back(std::move(sequence));
  }
  made.q = Normal(random, rows, int64_t{made.num_query_heads} * made.geometry.head_dim);
  return made;
}

class CudaWideHeads : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }

  // A step without prefill rows runs launched, with a shadow and without, captured and replayed.
  void ExpectAsTheReference(const AttentionCase& made) {
    Device judge({"reference"});
    const AttentionResult want = AttentionStep(judge, made).Run();
    for (Device* device : {&rounding_, &precise_}) {
      const AttentionResult got = AttentionStep(*device, made).Run(4);
      EXPECT_EQ(got.selection, want.selection) << made.Describe();
      EXPECT_EQ(got.tokens_attended, want.tokens_attended) << made.Describe();
      EXPECT_EQ(got.tokens_read, want.tokens_read) << made.Describe();
      const int32_t d = made.geometry.head_dim;
      const double most = 2e-3 + RoundingError(device->activation_dtype());
      int failures = 0;
      for (int64_t r = 0; r < want.out.rows; ++r) {
        for (int32_t head = 0; head < made.num_query_heads && failures < 3; ++head) {
          const int64_t at = int64_t{head} * d;
          const double error = RelativeError(got.out.row(r) + at, want.out.row(r) + at, d);
          EXPECT_TRUE(error < most)
              << made.Describe() << "row " << r << ", head " << head << " differs by " << error;
          failures += error < most ? 0 : 1;
        }
      }
      device->Clear();
    }
  }

  Device rounding_{{.name = "cuda", .compute = DType::kBFloat16}};
  Device precise_{{.name = "cuda", .compute = DType::kFloat32}};
};

TEST_F(CudaWideHeads, Decode) {
  Random random(71);
  for (const int32_t group : {1, 2, 4, 5, 8}) {
    for (const bool all : {false, true}) {
      for (const int32_t tokens : {1, 63, 64, 300, 1500}) {
        ExpectAsTheReference(MakeWideCase(random, group, {{RowKind::kDecode, tokens, 1}}, all));
      }
    }
  }
}

// Longer than what a cluster reads by itself.
TEST_F(CudaWideHeads, DecodeOfALongContext) {
  Random random(76);
  for (const int32_t group : {4, 2}) {
    for (const bool all : {false, true}) {
      ExpectAsTheReference(MakeWideCase(random, group, {{RowKind::kDecode, 19000, 1}}, all));
    }
  }
}

TEST_F(CudaWideHeads, ManyRowsDecode) {
  Random random(72);
  for (const int32_t group : {2, 4, 8}) {
    for (const bool all : {false, true}) {
      std::vector<WideRows> sequences;
      for (int i = 0; i < 70; ++i) {
        sequences.push_back({RowKind::kDecode, static_cast<int32_t>(Uniform(random, 1, 400)),
                             static_cast<int32_t>(Uniform(random, 1, 3))});
      }
      ExpectAsTheReference(MakeWideCase(random, group, sequences, all));
    }
  }
}

TEST_F(CudaWideHeads, Prefill) {
  Random random(73);
  for (const int32_t group : {1, 2, 4, 5, 8, 1, 2, 4, 8}) {
    ExpectAsTheReference(MakeWideCase(random, group,
                                      {{RowKind::kPrefill, 90, 90},
                                       {RowKind::kPrefill, 410, 70},
                                       {RowKind::kDecode, 130, 2},
                                       {RowKind::kPrefill, 257, 1}},
                                      /*all=*/true));
  }
}

// Long enough that the keys of a tile are cut into parts.
TEST_F(CudaWideHeads, PrefillOfALongPrompt) {
  Random random(74);
  for (const int32_t group : {2, 8}) {
    ExpectAsTheReference(MakeWideCase(random, group, {{RowKind::kPrefill, 2900, 9}}, /*all=*/true));
  }
}

TEST_F(CudaWideHeads, LargeGroupsTakeThePlainKernels) {
  Random random(75);
  for (const bool all : {false, true}) {
    ExpectAsTheReference(
        MakeWideCase(random, 9, {{RowKind::kDecode, 300, 2}, {RowKind::kPrefill, 150, 20}}, all));
  }
}

}  // namespace
}  // namespace eta::testing
