// Decode rows of one sequence on a GPU, which read each block once (decode_bundles.cu), against the
// reference: every number of heads that shares a product, blocks that fill in the middle of the
// rows, windows, and steps in which other sequences select, have one row or are prompts.

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <vector>

#include "kernels/params/layer.h"
#include "kernels/params/selection.h"
#include "tests/testing/kernels/attention_case.h"
#include "tests/testing/kernels/kernel_harness.h"

namespace eta::testing {
namespace {

struct BundleShape {
  KvGeometry geometry;
  int32_t group = 1;
};

const BundleShape kBundleShapes[] = {
    {{.num_kv_heads = 8, .head_dim = 128, .block_size = 64, .dtype = DType::kFloat8E4M3}, 4},
    {{.num_kv_heads = 2, .head_dim = 128, .block_size = 64, .dtype = DType::kBFloat16}, 4},
    {{.num_kv_heads = 3, .head_dim = 128, .block_size = 128, .dtype = DType::kFloat16}, 7},
    {{.num_kv_heads = 2, .head_dim = 64, .block_size = 64, .dtype = DType::kFloat16}, 3},
    {{.num_kv_heads = 2, .head_dim = 64, .block_size = 32, .dtype = DType::kFloat8E4M3}, 8},
    {{.num_kv_heads = 1, .head_dim = 64, .block_size = 128, .dtype = DType::kBFloat16}, 16},
    {{.num_kv_heads = 4, .head_dim = 64, .block_size = 16, .dtype = DType::kFloat8E4M3}, 1},
    {{.num_kv_heads = 2, .head_dim = 96, .block_size = 16, .dtype = DType::kBFloat16}, 2},
    {{.num_kv_heads = 1, .head_dim = 96, .block_size = 64, .dtype = DType::kFloat8E4M3}, 5},
    {{.num_kv_heads = 2, .head_dim = 256, .block_size = 64, .dtype = DType::kBFloat16}, 4},
    {{.num_kv_heads = 1, .head_dim = 256, .block_size = 16, .dtype = DType::kFloat16}, 8},
    {{.num_kv_heads = 2, .head_dim = 256, .block_size = 32, .dtype = DType::kFloat16}, 1},
};

struct BundleRows {
  int32_t tokens;
  int32_t rows;
  bool selects = false;
  RowKind kind = RowKind::kDecode;
};

// Thresholds of rows that select lie far from all bounds, so the counts have one right answer.
AttentionCase MakeBundleCase(Random& random, const BundleShape& shape,
                             const std::vector<BundleRows>& sequences) {
  AttentionCase made;
  made.geometry = shape.geometry;
  made.num_query_heads = shape.group * shape.geometry.num_kv_heads;
  made.gate = Often(random, 3) ? Gate::kNone : Gate::kSilu;
  made.seed = random();
  if (Often(random, 3)) AddSinks(made.seed, made);
  const int64_t cols = int64_t{shape.geometry.num_kv_heads} * shape.geometry.head_dim;
  int64_t rows = 0;
  for (const BundleRows& of : sequences) {
    SequenceCase sequence;
    sequence.kind = of.kind;
    sequence.num_rows = std::min(of.rows, of.tokens);
    sequence.position = of.tokens - sequence.num_rows;
    sequence.attention.admit_all = !of.selects;
    sequence.attention.uniform_floor = !Often(random, 3);
    sequence.attention.shared_reads = Often(random, 4);
    sequence.attention.pinned_blocks = Pick(random, {0, 1, 2});
    sequence.attention.sink_blocks = Pick(random, {0, 1});
    sequence.k = DriftingKeys(random, of.tokens, cols, shape.geometry.block_size);
    sequence.v = Normal(random, of.tokens, cols);
    if (Often(random, 4)) sequence.tempered = {random() & random(), random() & random()};
    for (int32_t head = 0; head < made.num_query_heads; ++head) {
      const float far = Often(random, 6) ? -100.0f : 100.0f;
      const auto near = static_cast<float>(UniformReal(random, -1.0, 1.0));
      sequence.thresholds.push_back(of.selects ? far : near);
    }
    rows += sequence.num_rows;
    made.sequences.push_back(std::move(sequence));
  }
  made.q = Normal(random, rows, int64_t{made.num_query_heads} * shape.geometry.head_dim);
  return made;
}

class CudaBundles : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }

  // A step without prefill rows runs launched, with a shadow and without, captured and replayed.
  void ExpectAsTheReference(const AttentionCase& made) {
    if (HasFailure()) return;
    Device judge({"reference"});
    AttentionStep judged(judge, made);
    const AttentionResult want = judged.Run();
    const bool prefill = std::ranges::any_of(
        made.sequences, [](const SequenceCase& s) { return s.kind == RowKind::kPrefill; });
    Device& device = made.seed % 2 == 0 ? rounding_ : precise_;
    AttentionStep step(device, made);
    const AttentionResult got = step.Run(prefill ? 1 : 4);
    ASSERT_EQ(device->Finish(), absl::OkStatus()) << made.Describe();
    if (made.window == 0) {
      EXPECT_EQ(got.tokens_attended, want.tokens_attended) << made.Describe();
      EXPECT_EQ(got.tokens_read, want.tokens_read) << made.Describe();
      EXPECT_EQ(got.values_read, want.values_read) << made.Describe();
      EXPECT_EQ(got.selection, want.selection) << made.Describe();
    }
    const int32_t d = made.geometry.head_dim;
    const double most = 2e-3 + RoundingError(device.activation_dtype());
    int failures = 0;
    for (int64_t r = 0; r < want.out.rows; ++r) {
      for (int32_t head = 0; head < made.num_query_heads && failures < 5; ++head) {
        const int64_t at = int64_t{head} * d;
        const double error = RelativeError(got.out.row(r) + at, want.out.row(r) + at, d);
        EXPECT_TRUE(error < most) << made.Describe() << "row " << r << ", head " << head
                                  << " differs by " << error;
        failures += error < most ? 0 : 1;
      }
    }
    device.Clear();
  }

  Device rounding_{{.name = "cuda", .compute = DType::kBFloat16}};
  Device precise_{{.name = "cuda", .compute = DType::kFloat32}};
};

TEST_F(CudaBundles, RowsOfOneSequence) {
  Random random(81);
  for (const BundleShape& shape : kBundleShapes) {
    for (const int32_t rows : {2, 3, 5, 8}) {
      for (const int32_t tokens : {rows, 200, 1000}) {
        ExpectAsTheReference(MakeBundleCase(random, shape, {{tokens, rows}}));
      }
    }
  }
}

TEST_F(CudaBundles, BlocksFillInTheMiddle) {
  Random random(82);
  for (const BundleShape& shape : kBundleShapes) {
    const int32_t b = shape.geometry.block_size;
    for (const int32_t past : {0, 1, 4, 7}) {
      ExpectAsTheReference(
          MakeBundleCase(random, shape, {{3 * b + past, 8}, {b + past, 5}, {6 * b + past, 4}}));
    }
  }
}

// A list is cut at eight rows, and its keys into parts.
TEST_F(CudaBundles, ManyRowsAndLongContexts) {
  Random random(83);
  for (const BundleShape& shape : kBundleShapes) {
    ExpectAsTheReference(MakeBundleCase(random, shape, {{700, 21}, {2300, 8}, {90, 9}}));
  }
  ExpectAsTheReference(MakeBundleCase(random, kBundleShapes[0], {{12000, 5}, {40, 1}}));
  ExpectAsTheReference(MakeBundleCase(random, kBundleShapes[3], {{40, 2}, {12000, 8}}));
}

// Rows that select have lists of their own, and then so have all rows of the step.
TEST_F(CudaBundles, AmongRowsThatSelectOrAreAlone) {
  Random random(84);
  for (const BundleShape& shape : kBundleShapes) {
    for (int repeat = 0; repeat < 3; ++repeat) {
      std::vector<BundleRows> sequences;
      for (int i = 0; i < 9; ++i) {
        sequences.push_back({static_cast<int32_t>(Uniform(random, 8, 500)),
                             static_cast<int32_t>(Uniform(random, 1, 8)), Often(random, 2)});
      }
      ExpectAsTheReference(MakeBundleCase(random, shape, sequences));
    }
  }
}

TEST_F(CudaBundles, BesidePrompts) {
  Random random(85);
  for (const BundleShape& shape : kBundleShapes) {
    ExpectAsTheReference(MakeBundleCase(random, shape,
                                        {{300, 4},
                                         {90, 30, false, RowKind::kPrefill},
                                         {77, 1},
                                         {200, 3, true},
                                         {50, 50, false, RowKind::kPrefill},
                                         {129, 8}}));
  }
}

// So many lists that they take several launches.
TEST_F(CudaBundles, ManySequences) {
  Random random(86);
  for (const int32_t group : {2, 4, 16}) {
    BundleShape shape = kBundleShapes[3];
    shape.geometry.num_kv_heads = 8;
    shape.group = group;
    std::vector<BundleRows> sequences;
    for (int i = 0; i < 140; ++i) {
      sequences.push_back({static_cast<int32_t>(Uniform(random, 8, 200)),
                           static_cast<int32_t>(Uniform(random, 1, 5)), Often(random, 5)});
    }
    ExpectAsTheReference(MakeBundleCase(random, shape, sequences));
  }
}

TEST_F(CudaBundles, Windows) {
  Random random(87);
  for (const BundleShape& shape : kBundleShapes) {
    const int32_t b = shape.geometry.block_size;
    for (const int32_t window : {1, 5, b, 2 * b + 3, 300, 0x7FFFFFFF}) {
      AttentionCase made = MakeBundleCase(
          random, shape,
          {{5 * b + 3, 8}, {b + 1, 4, true}, {1030, 3}, {6, 5}, {70, 1}, {400, 11, true}});
      made.window = window;
      made.table = static_cast<int32_t>(Uniform(random, 0, 2));
      ExpectAsTheReference(made);
    }
  }
}

// A layer's cache with one sequence on a device, whose steps turn, store and attend.
class GrowingSequence {
 public:
  GrowingSequence(Device& device, const AttentionCase& made, int32_t rows)
      : device_(device), made_(made), rows_(rows) {
    const KvLayout layout = *device->Layout(made.geometry);
    const auto blocks =
        static_cast<size_t>(made.sequences[0].num_keys() / made.geometry.block_size + 1);
    table_.resize(blocks);
    std::iota(table_.begin(), table_.end(), 0);
    kv_ = {.tiles = device.Allocate(layout.tile_bytes * blocks)};
    k_ = device.Empty(rows, made.sequences[0].k.cols, 4);
    v_ = device.Empty(rows, made.sequences[0].k.cols, 4);
    q_ = device.Empty(rows, made.q.cols, 4);
    out_ = device.Empty(rows, made.q.cols, 0, device.activation_dtype());
  }

  // The rows from `position` on, as a graph from the third step on.
  HostTensor Decode(int32_t position) {
    for (int32_t i = 0; i < rows_; ++i) {
      Upload(made_.sequences[0].k.row(position + i), k_.Rows(i, 1));
      Upload(made_.sequences[0].v.row(position + i), v_.Rows(i, 1));
      Upload(made_.q.row(position + i), q_.Rows(i, 1));
    }
    const auto blocks = static_cast<size_t>((position + rows_ - 1) / made_.geometry.block_size + 1);
    const SequenceRows rows = {.num_rows = rows_,
                               .position = position,
                               .rope_theta = 1e4f,
                               .block_table = std::span(table_).first(blocks)};
    const std::vector<int32_t> tokens(static_cast<size_t>(rows_));
    device_->Plan({tokens, std::span(&rows, 1)});
    device_->Rope({.q = q_, .k = k_, .head_dim = made_.geometry.head_dim});
    device_->AppendKv({.k = k_, .v = v_, .geometry = made_.geometry, .kv = kv_});
    const AttentionParams attention = {.q = q_,
                                       .num_query_heads = made_.num_query_heads,
                                       .geometry = made_.geometry,
                                       .kv = kv_,
                                       .softmax_scale = made_.softmax_scale(),
                                       .gate = Gate::kNone,
                                       .out = out_,
                                       .window = made_.window};
    device_->DecodeAttention(attention);
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    return device_.Get(out_);
  }

 private:
  void Upload(const float* row, const TensorView& to) {
    device_->Upload(reinterpret_cast<std::byte*>(to.data), row,
                    static_cast<size_t>(to.cols) * sizeof(float));
  }

  Device& device_;
  const AttentionCase& made_;
  int32_t rows_;
  std::vector<int32_t> table_;
  KvLayerView kv_;
  TensorView k_;
  TensorView v_;
  TensorView q_;
  TensorView out_;
};

TEST_F(CudaBundles, AGraphFollowsTheSequence) {
  Random random(88);
  for (const BundleShape& shape : kBundleShapes) {
    for (const int32_t rows : {2, 4, 7}) {
      const int32_t tokens = (3 * shape.geometry.block_size + 20) / rows * rows;
      AttentionCase made = MakeBundleCase(random, shape, {{tokens, 1}});
      made.window = Pick(random, {50, 5000});
      made.q = Normal(random, tokens, made.q.cols);
      Device judge({"reference"});
      GrowingSequence wanted(judge, made, rows);
      GrowingSequence growing(rounding_, made, rows);
      for (int32_t position = 0; position < tokens && !HasFailure(); position += rows) {
        const HostTensor want = wanted.Decode(position);
        const HostTensor got = growing.Decode(position);
        for (int32_t i = 0; i < rows; ++i) {
          EXPECT_TRUE(RelativeError(got.row(i), want.row(i), want.cols) <
                      2e-3 + RoundingError(rounding_.activation_dtype()))
              << made.Describe() << "position " << position << " + " << i;
        }
      }
      rounding_.Clear();
    }
  }
}

}  // namespace
}  // namespace eta::testing
