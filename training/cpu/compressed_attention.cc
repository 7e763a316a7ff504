// Attention to compressed keys, a tile of queries at a time, and the choice of blocks by its
// weights. A row's scores are all in memory: there is one for every 16 tokens.

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

#include "training/cpu/ops.h"
#include "training/cpu/product.h"
#include "training/cpu/vector_math.h"

namespace eta::training::cpu {
namespace {

// Queries [first, first + queries) of a head of a sequence.
struct QueryTile {
  int32_t sequence;
  int32_t head;
  int32_t first;
  int32_t queries;
  int32_t keys;  // that its last query sees

  static QueryTile Of(const AttentionShape& shape, int32_t sequence, int32_t tile) {
    const int32_t first = tile * kTileKeys;
    const int32_t queries = std::min(kTileKeys, shape.length - first);
    return {sequence, 0, first, queries, CompressedCountAt(first + queries - 1)};
  }
  Tensor Queries(const AttentionShape& shape, const Tensor& x) const {
    return x.Rows(int64_t{sequence} * shape.length + first, queries)
        .Columns(int64_t{head} * shape.head_dim, shape.head_dim);
  }
  Tensor Keys(const AttentionShape& shape, const Tensor& x) const {
    return x.Rows(int64_t{sequence} * CompressedCount(shape.length), keys)
        .Columns(int64_t{head} / shape.group() * shape.head_dim, shape.head_dim);
  }
  float* Lse(const AttentionShape& shape, float* lse) const {
    return lse + (int64_t{sequence} * shape.num_query_heads + head) * shape.length + first;
  }
};

Operand As(const Tensor& x, Transposed transposed = Transposed::kNo) {
  return {x.as<float>(), x.stride, transposed};
}

// The tile's scores [queries, keys] become the weights of what a query sees, and 0.
void WeighTile(const QueryTile& tile, float* scores, float* lse) {
  for (int32_t r = 0; r < tile.queries; ++r) {
    const int32_t seen = CompressedCountAt(tile.first + r);
    float* row = scores + int64_t{r} * tile.keys;
    lse[r] = -std::numeric_limits<float>::infinity();
    if (seen > 0) {
      const float largest = Largest(row, seen);
      const float total = ExpShifted(row, largest, seen);
      for (int32_t i = 0; i < seen; ++i) row[i] /= total;
      lse[r] = largest + std::log(total);
    }
    std::fill(row + seen, row + tile.keys, 0.0f);
  }
}

// Adds to the importance [blocks] of a row what one head's weights [keys] give.
void AddImportance(const float* weights, int32_t keys, float* importance) {
  static_assert(kCompressedWindow == 2 * kCompressedStride);
  constexpr int32_t kStrides = kRegulariserBlock / kCompressedStride;
  for (int32_t i = 0; i < keys; ++i) {
    importance[i / kStrides] += weights[i];
    importance[(i + 1) / kStrides] += weights[i];
  }
}

// Marks the blocks that query `t` selects in `selected` [N, N].
void SelectBlocks(const float* importance, int32_t t, int64_t n, uint64_t* selected) {
  const int32_t own = t / kTileKeys;
  const auto mark = [&](int32_t j) { selected[j * n + own] |= uint64_t{1} << t % kTileKeys; };
  for (const int32_t j : {0, std::max(own - 1, 0), own}) mark(j);
  if (own < 3) return;
  std::vector<int32_t> between(static_cast<size_t>(own) - 2);
  std::iota(between.begin(), between.end(), 1);
  std::stable_sort(between.begin(), between.end(),
                   [&](int32_t a, int32_t b) { return importance[a] > importance[b]; });
  if (between.size() > kSelectedBlocks - 3) between.resize(kSelectedBlocks - 3);
  for (const int32_t j : between) mark(j);
}

void AttendCompressed(const CompressedAttentionParams& params, int32_t sequence, int32_t kv_head,
                      int32_t index, eta::cpu::Scratch& scratch) {
  const AttentionShape& shape = params.shape;
  const int64_t n = KeySelection::Blocks(shape.length);
  QueryTile tile = QueryTile::Of(shape, sequence, index);
  auto* importance = scratch.Reserve<float>(static_cast<size_t>(kTileKeys * (n + tile.keys)));
  float* scores = importance + kTileKeys * n;
  std::fill_n(importance, kTileKeys * n, 0.0f);
  for (int32_t g = 0; g < shape.group(); ++g) {
    tile.head = kv_head * shape.group() + g;
    const Tensor out = tile.Queries(shape, params.out);
    if (tile.keys > 0) {
      Multiply(tile.queries, tile.keys, shape.head_dim, shape.scale,
               As(tile.Queries(shape, params.q)), As(tile.Keys(shape, params.k), Transposed::kYes),
               false, scores, tile.keys);
    }
    WeighTile(tile, scores, tile.Lse(shape, params.lse));
    for (int32_t r = 0; r < tile.queries; ++r) {
      std::fill_n(Row(out, r), shape.head_dim, 0.0f);
      AddImportance(scores + int64_t{r} * tile.keys, tile.keys, importance + r * n);
    }
    if (tile.keys == 0) continue;
    Multiply(tile.queries, shape.head_dim, tile.keys, 1.0f, {scores, tile.keys},
             As(tile.Keys(shape, params.v)), false, out.as<float>(), out.stride);
  }
  uint64_t* selected = params.selected + (int64_t{sequence} * shape.num_kv_heads + kv_head) * n * n;
  for (int64_t j = 0; j < n; ++j) selected[j * n + index] = 0;
  for (int32_t r = 0; r < tile.queries; ++r) {
    SelectBlocks(importance + r * n, tile.first + r, n, selected);
  }
}

// Adds one tile and head to the gradients of keys and values, and writes that of its queries.
void AttendCompressedBackward(const CompressedAttentionBackwardParams& params,
                              const QueryTile& tile, float* weights, float* grad_weights) {
  const CompressedAttentionParams& f = params.forward;
  const AttentionShape& shape = f.shape;
  const int64_t d = shape.head_dim;
  const Tensor q = tile.Queries(shape, f.q);
  const Tensor k = tile.Keys(shape, f.k);
  const Tensor out = tile.Queries(shape, f.out);
  const Tensor grad_out = tile.Queries(shape, params.grad_out);
  const Tensor grad_q = tile.Queries(shape, params.grad_q);
  const Tensor grad_k = tile.Keys(shape, params.grad_k);
  const Tensor grad_v = tile.Keys(shape, params.grad_v);
  for (int32_t r = 0; r < tile.queries; ++r) std::fill_n(Row(grad_q, r), d, 0.0f);
  if (tile.keys == 0) return;
  Multiply(tile.queries, tile.keys, d, shape.scale, As(q), As(k, Transposed::kYes), false, weights,
           tile.keys);
  float lse[kTileKeys];
  WeighTile(tile, weights, lse);
  Multiply(tile.queries, tile.keys, d, 1.0f, As(grad_out),
           As(tile.Keys(shape, f.v), Transposed::kYes), false, grad_weights, tile.keys);
  Multiply(tile.keys, d, tile.queries, 1.0f, {weights, tile.keys, Transposed::kYes}, As(grad_out),
           true, grad_v.as<float>(), grad_v.stride);
  for (int32_t r = 0; r < tile.queries; ++r) {
    const float mean = Dot(Row(grad_out, r), Row(out, r), d);
    for (int64_t at = int64_t{r} * tile.keys; at < int64_t{r + 1} * tile.keys; ++at) {
      weights[at] *= grad_weights[at] - mean;  // dS from here on
    }
  }
  Multiply(tile.queries, d, tile.keys, shape.scale, {weights, tile.keys}, As(k), false,
           grad_q.as<float>(), grad_q.stride);
  Multiply(tile.keys, d, tile.queries, shape.scale, {weights, tile.keys, Transposed::kYes}, As(q),
           true, grad_k.as<float>(), grad_k.stride);
}

}  // namespace

void CompressedAttention(const Context& context, const CompressedAttentionParams& params) {
  const AttentionShape& shape = params.shape;
  const int32_t tiles = KeySelection::Blocks(shape.length);
  const int64_t heads = int64_t{shape.sequences} * shape.num_kv_heads;
  context.workers.Run(heads * tiles, [&](int64_t task, int thread) {
    const auto head = static_cast<int32_t>(task % heads);
    AttendCompressed(params, head / shape.num_kv_heads, head % shape.num_kv_heads,
                     tiles - 1 - static_cast<int32_t>(task / heads),
                     context.scratch[static_cast<size_t>(thread)]);
  });
}

// A task is a KV head of a sequence, whole, as in AttentionBackward.
void CompressedAttentionBackward(const Context& context,
                                 const CompressedAttentionBackwardParams& params) {
  const AttentionShape& shape = params.forward.shape;
  const int64_t count = CompressedCount(shape.length);
  context.workers.Run(int64_t{shape.sequences} * shape.num_kv_heads, [&](int64_t task, int thread) {
    const auto sequence = static_cast<int32_t>(task / shape.num_kv_heads);
    const auto kv_head = static_cast<int32_t>(task % shape.num_kv_heads);
    for (const Tensor* grad : {&params.grad_k, &params.grad_v}) {
      for (int64_t i = 0; i < count; ++i) {
        std::fill_n(Row(*grad, sequence * count + i) + int64_t{kv_head} * shape.head_dim,
                    shape.head_dim, 0.0f);
      }
    }
    auto* weights = context.scratch[static_cast<size_t>(thread)].Reserve<float>(
        static_cast<size_t>(2 * kTileKeys * count));
    for (int32_t index = 0; index < KeySelection::Blocks(shape.length); ++index) {
      QueryTile tile = QueryTile::Of(shape, sequence, index);
      for (int32_t g = 0; g < shape.group(); ++g) {
        tile.head = kv_head * shape.group() + g;
        AttendCompressedBackward(params, tile, weights, weights + kTileKeys * count);
      }
    }
  });
}

}  // namespace eta::training::cpu
