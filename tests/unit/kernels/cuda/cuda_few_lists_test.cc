// Decode attention of few lists on a GPU, as clusters compute it behind the selection, against the
// reference: rows that read everything, rows that select, and both in one step; contexts alike and
// uneven. CudaRaggedBatches has thresholds among the bounds.

#include <gtest/gtest.h>

#include <algorithm>
#include <vector>

#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

enum class Reads { kAll, kSelected, kBoth };

struct ListShape {
  KvGeometry geometry;
  int32_t group = 1;
};

const ListShape kListShapes[] = {
    {{.num_kv_heads = 8, .head_dim = 64, .block_size = 64, .dtype = DType::kFloat16}, 4},
    {{.num_kv_heads = 3, .head_dim = 128, .block_size = 128, .dtype = DType::kBFloat16}, 7},
    {{.num_kv_heads = 2, .head_dim = 96, .block_size = 16, .dtype = DType::kBFloat16}, 16},
    {{.num_kv_heads = 4,
      .head_dim = 64,
      .block_size = 32,
      .dtype = DType::kFloat8E4M3,
      .index_dtype = DType::kInt8},
     8},
    {{.num_kv_heads = 1, .head_dim = 64, .block_size = 64, .dtype = DType::kBFloat16}, 1},
};

// Thresholds lie far from all bounds, so the counts have one right answer.
AttentionCase MakeCase(Random& random, const ListShape& shape, const std::vector<int32_t>& tokens,
                       Reads reads, int32_t rows_each) {
  AttentionCase made;
  made.geometry = shape.geometry;
  made.num_query_heads = shape.group * shape.geometry.num_kv_heads;
  made.seed = random();
  const int64_t cols = int64_t{shape.geometry.num_kv_heads} * shape.geometry.head_dim;
  for (size_t s = 0; s < tokens.size(); ++s) {
    SequenceCase sequence;
    sequence.num_rows = std::min(rows_each, tokens[s]);
    sequence.position = tokens[s] - sequence.num_rows;
    sequence.attention.admit_all = reads == Reads::kAll || (reads == Reads::kBoth && s % 2 == 0);
    sequence.attention.uniform_floor = !Often(random, 3);
    sequence.attention.shared_reads = Often(random, 4);
    sequence.attention.pinned_blocks = Pick(random, {0, 1, 2});
    sequence.attention.sink_blocks = Pick(random, {0, 1});
    sequence.attention.rescue_chunk = Pick(random, {1, 5, 128});
    sequence.k = DriftingKeys(random, tokens[s], cols, shape.geometry.block_size);
    sequence.v = Normal(random, tokens[s], cols);
    for (int32_t head = 0; head < made.num_query_heads; ++head) {
      sequence.thresholds.push_back(Often(random, 6) ? -100.0f : 100.0f);
    }
    made.sequences.push_back(std::move(sequence));
  }
  int64_t rows = 0;
  for (const SequenceCase& sequence : made.sequences) rows += sequence.num_rows;
  made.q = Normal(random, rows, int64_t{made.num_query_heads} * shape.geometry.head_dim);
  return made;
}

class CudaFewLists : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }

  // The step runs launched, with a shadow and without, captured and replayed.
  void ExpectAsTheReference(const AttentionCase& made) {
    Device judge({"reference"});
    AttentionStep judged(judge, made);
    const AttentionResult want = judged.Run();
    AttentionStep step(device_, made);
    const AttentionResult got = step.Run(4);
    ASSERT_EQ(device_->Finish(), absl::OkStatus()) << made.Describe();
    EXPECT_EQ(got.tokens_attended, want.tokens_attended) << made.Describe();
    EXPECT_EQ(got.tokens_read, want.tokens_read) << made.Describe();
    EXPECT_EQ(got.values_read, want.values_read) << made.Describe();
    EXPECT_EQ(got.selection, want.selection) << made.Describe();
    const int32_t d = made.geometry.head_dim;
    for (int64_t r = 0; r < want.out.rows; ++r) {
      for (int32_t head = 0; head < made.num_query_heads; ++head) {
        const int64_t at = int64_t{head} * d;
        EXPECT_LT(RelativeError(got.out.row(r) + at, want.out.row(r) + at, d),
                  2e-3 + RoundingError(device_.activation_dtype()))
            << made.Describe() << "row " << r << ", head " << head;
      }
    }
    device_.Clear();
  }

  Device device_{{.name = "cuda", .compute = DType::kBFloat16}};
};

TEST_F(CudaFewLists, OneRowOfEveryLength) {
  Random random(41);
  for (const ListShape& shape : kListShapes) {
    const int32_t b = shape.geometry.block_size;
    for (const int32_t tokens : {1, b - 1, b, b + 1, 5 * b, 640, 1025, 3000}) {
      for (const Reads reads : {Reads::kAll, Reads::kSelected}) {
        ExpectAsTheReference(MakeCase(random, shape, {tokens}, reads, 1));
      }
    }
  }
}

TEST_F(CudaFewLists, SeveralRowsOfAnyLength) {
  Random random(42);
  for (const ListShape& shape : kListShapes) {
    for (const int rows : {2, 3, 8, 16}) {
      for (const Reads reads : {Reads::kAll, Reads::kSelected, Reads::kBoth}) {
        std::vector<int32_t> tokens;
        for (int i = 0; i < rows; ++i) {
          tokens.push_back(static_cast<int32_t>(Uniform(random, 1, 700)));
        }
        ExpectAsTheReference(MakeCase(random, shape, tokens, reads, 1));
      }
    }
  }
}

// The step stores more than the last token of a list, so nothing is copied early.
TEST_F(CudaFewLists, SeveralRowsOfASequence) {
  Random random(43);
  for (const ListShape& shape : kListShapes) {
    const int32_t b = shape.geometry.block_size;
    for (const Reads reads : {Reads::kAll, Reads::kSelected}) {
      ExpectAsTheReference(MakeCase(random, shape, {4 * b + 1, 9 * b + 2}, reads, 4));
    }
  }
}

// Lists so uneven that the streaming kernel takes them.
TEST_F(CudaFewLists, OneLongContextAmongShortOnes) {
  Random random(44);
  for (const Reads reads : {Reads::kAll, Reads::kSelected}) {
    ExpectAsTheReference(
        MakeCase(random, kListShapes[0], {9000, 40, 300, 1, 77, 64, 128, 12}, reads, 1));
  }
}

}  // namespace
}  // namespace eta::testing
