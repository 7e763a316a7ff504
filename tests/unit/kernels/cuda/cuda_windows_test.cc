// Layers with a window on a GPU (eta-semantics.md, "Windows"), against the reference: decode in
// clusters, as a stream and in the plain form; prefill with wgmma, with mma and in the plain form;
// 8-bit caches; several block tables; and a graph that is replayed while the window moves.

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

struct WindowShape {
  KvGeometry geometry;
  int32_t group = 1;
};

const WindowShape kWindowShapes[] = {
    {{.num_kv_heads = 3, .head_dim = 64, .block_size = 64, .dtype = DType::kFloat16}, 4},
    {{.num_kv_heads = 2, .head_dim = 128, .block_size = 128, .dtype = DType::kBFloat16}, 7},
    {{.num_kv_heads = 2, .head_dim = 64, .block_size = 16, .dtype = DType::kBFloat16}, 8},
    {{.num_kv_heads = 1, .head_dim = 64, .block_size = 32, .dtype = DType::kFloat16}, 16},
    {{.num_kv_heads = 2, .head_dim = 64, .block_size = 128, .dtype = DType::kFloat16}, 1},
    {{.num_kv_heads = 1, .head_dim = 96, .block_size = 16, .dtype = DType::kBFloat16}, 16},
    {{.num_kv_heads = 2, .head_dim = 64, .block_size = 32, .dtype = DType::kFloat8E4M3}, 8},
    {{.num_kv_heads = 2, .head_dim = 256, .block_size = 64, .dtype = DType::kBFloat16}, 2},
    {{.num_kv_heads = 1, .head_dim = 256, .block_size = 16, .dtype = DType::kFloat8E4M3}, 4},
    {{.num_kv_heads = 2, .head_dim = 80, .block_size = 24, .dtype = DType::kFloat32}, 3},
};

struct WindowRows {
  RowKind kind;
  int32_t tokens;
  int32_t rows;
};

AttentionCase MakeWindowCase(Random& random, const WindowShape& shape, int32_t window,
                             const std::vector<WindowRows>& sequences) {
  AttentionCase made;
  made.geometry = shape.geometry;
  made.num_query_heads = shape.group * shape.geometry.num_kv_heads;
  made.seed = random();
  made.window = window;
  made.table = static_cast<int32_t>(Uniform(random, 0, 2));
  const int64_t cols = int64_t{shape.geometry.num_kv_heads} * shape.geometry.head_dim;
  int64_t rows = 0;
  for (const WindowRows& of : sequences) {
    SequenceCase sequence;
    sequence.kind = of.kind;
    sequence.num_rows = std::min(of.rows, of.tokens);
    sequence.position = of.tokens - sequence.num_rows;
    sequence.attention.sparse_prefill = Often(random, 2);
    sequence.attention.confirm = Often(random, 2);
    sequence.k = DriftingKeys(random, of.tokens, cols, shape.geometry.block_size);
    sequence.v = Normal(random, of.tokens, cols);
    if (Often(random, 3)) sequence.tempered = {~uint64_t{0}};
    rows += sequence.num_rows;
    made.sequences.push_back(std::move(sequence));
  }
  made.q = Normal(random, rows, int64_t{made.num_query_heads} * shape.geometry.head_dim);
  return made;
}

class CudaWindows : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!WhyMissing({"cuda"}).empty()) GTEST_SKIP() << WhyMissing({"cuda"});
  }

  // A step without prefill rows runs launched twice, captured and replayed.
  void ExpectAsTheReference(const AttentionCase& made) {
    Device judge({"reference"});
    const AttentionResult want = AttentionStep(judge, made).Run();
    for (Device* device : {&rounding_, &precise_}) {
      const AttentionResult got = AttentionStep(*device, made).Run(4);
      const int32_t d = made.geometry.head_dim;
      const double most = 2e-3 + RoundingError(device->activation_dtype());
      int failures = 0;
      for (int64_t r = 0; r < want.out.rows && failures < 3; ++r) {
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

constexpr RowKind kDecodeRows = RowKind::kDecode;
constexpr RowKind kPrefillRows = RowKind::kPrefill;

TEST_F(CudaWindows, OneDecodeRow) {
  Random random(61);
  for (const WindowShape& shape : kWindowShapes) {
    const int32_t b = shape.geometry.block_size;
    for (const int32_t tokens : {1, b + 1, 5 * b + 3, 1030}) {
      for (const int32_t window : {1, b - 3, b, 2 * b + 5, 128, 5000}) {
        ExpectAsTheReference(MakeWindowCase(random, shape, window, {{kDecodeRows, tokens, 1}}));
      }
    }
  }
}

TEST_F(CudaWindows, ManyDecodeRows) {
  Random random(62);
  for (const WindowShape& shape : kWindowShapes) {
    for (const int32_t window : {7, 128, 300, 0x7FFFFFFF}) {
      std::vector<WindowRows> sequences;
      for (int i = 0; i < 40; ++i) {
        sequences.push_back({kDecodeRows, static_cast<int32_t>(Uniform(random, 1, 700)),
                             static_cast<int32_t>(Uniform(random, 1, 4))});
      }
      ExpectAsTheReference(MakeWindowCase(random, shape, window, sequences));
    }
  }
}

TEST_F(CudaWindows, ALongContextAmongShortOnes) {
  Random random(63);
  for (const int32_t window : {100, 1024, 5000}) {
    ExpectAsTheReference(
        MakeWindowCase(random, kWindowShapes[0], window,
                       {{kDecodeRows, 9000, 1}, {kDecodeRows, 40, 1}, {kDecodeRows, 300, 1}}));
  }
}

TEST_F(CudaWindows, PrefillRows) {
  Random random(64);
  for (const WindowShape& shape : kWindowShapes) {
    const int32_t b = shape.geometry.block_size;
    for (const int32_t window : {1, b, 130, 5000}) {
      ExpectAsTheReference(MakeWindowCase(random, shape, window,
                                          {{kPrefillRows, 70, 70},
                                           {kPrefillRows, 470, 140},
                                           {kDecodeRows, 300, 2},
                                           {kPrefillRows, 401, 1},
                                           {kPrefillRows, 3 * b + 1, 2}}));
    }
  }
}

// Long enough that the keys of a tile are cut into parts.
TEST_F(CudaWindows, PrefillRowsWithALongWindow) {
  Random random(65);
  for (const size_t shape : {0, 2, 5, 6, 7, 8}) {
    for (const int32_t window : {1500, 2900}) {
      ExpectAsTheReference(
          MakeWindowCase(random, kWindowShapes[shape], window, {{kPrefillRows, 5000, 20}}));
    }
  }
}

// A layer's cache with one sequence, on a device.
class MovingWindow {
 public:
  MovingWindow(Device& device, const AttentionCase& made) : device_(device), made_(made) {
    const KvLayout layout = *device->Layout(made.geometry);
    const auto blocks = static_cast<size_t>(Tokens() / made.geometry.block_size + 1);
    table_.resize(blocks);
    std::iota(table_.begin(), table_.end(), 0);
    no_table_.assign(blocks, -1);
    kv_ = {.tiles = device.Allocate(layout.tile_bytes * blocks), .table = 1};
    const int64_t cols = made.q.cols;
    k_ = device.Empty(1, made.sequences[0].k.cols, 4);
    v_ = device.Empty(1, made.sequences[0].k.cols, 4);
    q_ = device.Empty(1, cols, 4);
    out_ = device.Empty(1, cols, 0, device.activation_dtype());
  }

  // Turns query and key of `position`, appends the key and attends to the window, as a graph from
  // the third row on.
  HostTensor Decode(int32_t position) {
    Upload(made_.sequences[0].k.row(position), k_);
    Upload(made_.sequences[0].v.row(position), v_);
    Upload(made_.q.row(position), q_);
    const int32_t gone = WindowBegin(position, made_.window) / made_.geometry.block_size;
    std::fill_n(table_.begin(), gone, -1);
    const auto some = static_cast<size_t>(position / made_.geometry.block_size + 1);
    const std::span<const int32_t> more[] = {std::span(table_).first(some)};
    const SequenceRows rows = {.num_rows = 1,
                               .position = position,
                               .rope_theta = 1e4f,
                               .block_table = std::span(no_table_).first(some),
                               .more_tables = more};
    const int32_t token = 0;
    device_->Plan({std::span(&token, 1), std::span(&rows, 1)});
    device_->Rope({.q = q_, .k = k_, .head_dim = made_.geometry.head_dim});
    device_->AppendKv({.k = k_, .v = v_, .geometry = made_.geometry, .kv = kv_});
    const AttentionParams attention = {.q = q_,
                                       .num_query_heads = made_.num_query_heads,
                                       .geometry = made_.geometry,
                                       .kv = kv_,
                                       .softmax_scale = made_.softmax_scale(),
                                       .gate = Gate::kSilu,
                                       .beta = 5.0f,
                                       .out = out_,
                                       .window = made_.window};
    device_->DecodeAttention(attention);
    EXPECT_EQ(device_->Finish(), absl::OkStatus());
    return device_.Get(out_);
  }

  int32_t Tokens() const { return made_.sequences[0].num_keys(); }

 private:
  void Upload(const float* row, const TensorView& to) {
    device_->Upload(reinterpret_cast<std::byte*>(to.data), row,
                    static_cast<size_t>(to.cols) * sizeof(float));
  }

  Device& device_;
  const AttentionCase& made_;
  std::vector<int32_t> table_;
  std::vector<int32_t> no_table_;
  KvLayerView kv_;
  TensorView k_;
  TensorView v_;
  TensorView q_;
  TensorView out_;
};

TEST_F(CudaWindows, AGraphFollowsTheWindow) {
  Random random(66);
  for (const WindowShape& shape : kWindowShapes) {
    for (const int32_t window : {20, 64}) {
      AttentionCase made = MakeWindowCase(random, shape, window,
                                          {{kDecodeRows, 3 * shape.geometry.block_size + 20, 1}});
      made.q = Normal(random, made.sequences[0].num_keys(), made.q.cols);
      Device judge({"reference"});
      MovingWindow wanted(judge, made);
      MovingWindow moving(rounding_, made);
      for (int32_t position = 0; position < wanted.Tokens() && !HasFailure(); ++position) {
        const HostTensor want = wanted.Decode(position);
        const HostTensor got = moving.Decode(position);
        EXPECT_TRUE(RelativeError(got.data.data(), want.data.data(), want.cols) <
                    2e-3 + RoundingError(rounding_.activation_dtype()))
            << made.Describe() << "position " << position;
      }
      rounding_.Clear();
    }
  }
}

}  // namespace
}  // namespace eta::testing
