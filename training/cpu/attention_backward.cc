// Gated attention backward (the paper's algorithm 2, "Derivation of the Attention Gradients"). A
// task is a KV head of a sequence, whole: it adds up dk and dv over queries and heads, and dq over
// keys, in one fixed order and without atomics.

#include <cmath>
#include <utility>
#include <vector>

#include "training/cpu/attention_tile.h"
#include "training/cpu/ops.h"
#include "training/cpu/product.h"

namespace eta::training::cpu {
namespace {

// A task's memory.
struct BackwardWorkspace {
  std::vector<ScoredTile> tiles;  // [G]
  float* weights;                 // [64, 64], P
  float* grad_weights;            // [64, 64], dP
  float* grad_scores;             // [64, 64], dS
  float* grad_q;                  // [G, 64, d]
  float* grad_tau;                // [G, 64]
  float* means;                   // [G, 64], sum_k P_k dP_k
  float* grad_k;                  // [T, d]
  float* grad_v;                  // [T, d]

  static BackwardWorkspace Make(eta::cpu::Scratch& scratch, const AttentionShape& shape) {
    const int64_t group = shape.group();
    const int64_t d = shape.head_dim;
    const int64_t elements = (3 * group + 3) * kTileElements + group * kTileKeys * (d + 2) +
                             2 * int64_t{shape.length} * d;
    auto* at = scratch.Reserve<float>(static_cast<size_t>(elements));
    std::fill_n(at, elements, 0.0f);
    const auto take = [&](int64_t count) { return std::exchange(at, at + count); };
    BackwardWorkspace ws{};
    for (int64_t g = 0; g < group; ++g) {
      ws.tiles.push_back({take(kTileElements), take(kTileElements), take(kTileElements)});
    }
    ws.weights = take(kTileElements);
    ws.grad_weights = take(kTileElements);
    ws.grad_scores = take(kTileElements);
    ws.grad_q = take(group * kTileKeys * d);
    ws.grad_tau = take(group * kTileKeys);
    ws.means = take(group * kTileKeys);
    ws.grad_k = take(shape.length * d);
    ws.grad_v = take(shape.length * d);
    return ws;
  }
};

float At(const RowGradient& gradient, int32_t b, int32_t h, int32_t t) {
  if (gradient.data == nullptr) return 0.0f;
  return gradient.data[b * gradient.sequence_stride + h * gradient.head_stride + t];
}

// Where the largest gate of a whole block is, of heads [first, first + heads) of the group.
struct Winner {
  int32_t g;
  int32_t key;
};
Winner WinnerOf(const BackwardWorkspace& ws, int32_t first, int32_t heads, int32_t r) {
  Winner winner = {first, 0};
  float largest = -1.0f;
  for (int32_t g = first; g < first + heads; ++g) {
    const float* open = ws.tiles[static_cast<size_t>(g)].open + r * kTileKeys;
    for (int32_t i = 0; i < kTileKeys; ++i) {
      if (open[i] > largest) {
        largest = open[i];
        winner = {g, i};
      }
    }
  }
  return winner;
}

// dS of the rows of one tile and head, and what they add to dtau.
void RowsBackward(const AttentionBackwardParams& params, const TilePlace& place,
                  const TileRows& rows, int32_t g, const BackwardWorkspace& ws) {
  const AttentionForwardParams& f = params.forward;
  const AttentionShape& shape = f.shape;
  const AttentionGate& gate = f.gate;
  const bool gated = gate.kind != GateKind::kNone;
  const ScoredTile& tile = ws.tiles[static_cast<size_t>(g)];
  const int32_t block_heads = gate.group_blocks ? shape.group() : 1;
  for (int32_t r = 0; r < rows.queries; ++r) {
    const int32_t t = rows.position + r;
    const int32_t keys = KeysSeen(place, rows, r);
    const bool diagonal = place.key_tile == place.query_tile;
    const int32_t at = r * kTileKeys;
    float* weights = ws.weights + at;
    float* grad_scores = ws.grad_scores + at;
    LogitsOfRow(f, place, tile, r, keys, weights);
    const float own = weights[keys - 1];
    const RowScalars scalars = {
        f.lse[(int64_t{place.sequence} * shape.num_query_heads + place.head) * shape.length + t],
        ws.means[g * kTileKeys + r], At(params.grad_gate_sum, place.sequence, place.head, t)};
    float through = GatedBackward(gate, scalars, diagonal ? keys - 1 : keys,
                                  {tile.scores + at, tile.open + at, tile.closed + at,
                                   ws.grad_weights + at, weights, grad_scores});
    const auto slope = [&](int32_t key) {
      return gate.beta * tile.open[at + key] * tile.closed[at + key];
    };
    if (diagonal) {  // S~ = S
      const int32_t key = keys - 1;
      weights[key] = std::exp(own - scalars.lse);
      const float by_sum = gated ? scalars.grad_gate_sum * slope(key) : 0.0f;
      grad_scores[key] = weights[key] * (ws.grad_weights[at + key] - scalars.mean) + by_sum;
      through += by_sum;
    }
    if (gated && params.grad_block_sum.data != nullptr && IsWhole(place, rows, r)) {
      const int32_t first = g / block_heads * block_heads;
      const Winner winner = WinnerOf(ws, first, block_heads, r);
      if (winner.g == g) {
        const float by_block =
            At(params.grad_block_sum, place.sequence, place.head / block_heads, t) *
            slope(winner.key);
        grad_scores[winner.key] += by_block;
        through += by_block;
      }
    }
    ws.grad_tau[g * kTileKeys + r] -= through;
  }
}

// Adds the tile to dq, dk and dv.
void TileBackward(const AttentionBackwardParams& params, const TilePlace& place,
                  const TileRows& rows, int32_t g, const BackwardWorkspace& ws) {
  const AttentionForwardParams& f = params.forward;
  const int64_t d = f.shape.head_dim;
  const int64_t kv_begin = place.head / f.shape.group() * d;
  const float* q = Row(f.q, rows.first_query) + place.head * d;
  const float* k = Row(f.k, rows.first_key) + kv_begin;
  const float* v = Row(f.v, rows.first_key) + kv_begin;
  const float* grad_out = Row(params.grad_out, rows.first_query) + place.head * d;
  const int64_t key = int64_t{place.key_tile} * kTileKeys;
  Multiply(rows.queries, rows.keys, d, 1.0f, {grad_out, params.grad_out.stride},
           {v, f.v.stride, Transposed::kYes}, false, ws.grad_weights, kTileKeys);
  RowsBackward(params, place, rows, g, ws);
  Multiply(rows.keys, d, rows.queries, 1.0f, {ws.weights, kTileKeys, Transposed::kYes},
           {grad_out, params.grad_out.stride}, true, ws.grad_v + key * d, d);
  Multiply(rows.keys, d, rows.queries, f.shape.scale, {ws.grad_scores, kTileKeys, Transposed::kYes},
           {q, f.q.stride}, true, ws.grad_k + key * d, d);
  Multiply(rows.queries, d, rows.keys, f.shape.scale, {ws.grad_scores, kTileKeys}, {k, f.k.stride},
           true, ws.grad_q + g * kTileKeys * d, d);
}

void QueriesBackward(const AttentionBackwardParams& params, int32_t sequence, int32_t kv_head,
                     int32_t query_tile, const BackwardWorkspace& ws) {
  const AttentionForwardParams& f = params.forward;
  const int32_t group = f.shape.group();
  const int64_t d = f.shape.head_dim;
  TilePlace place = {sequence, kv_head * group, query_tile, 0};
  TileRows rows = RowsOf(f.shape, place);
  std::fill_n(ws.grad_q, group * kTileKeys * d, 0.0f);
  std::fill_n(ws.grad_tau, group * kTileKeys, 0.0f);
  for (int32_t g = 0; g < group; ++g) {
    const int64_t begin = (kv_head * group + g) * d;
    for (int32_t r = 0; r < rows.queries; ++r) {
      ws.means[g * kTileKeys + r] = Dot(Row(params.grad_out, rows.first_query + r) + begin,
                                        Row(f.out, rows.first_query + r) + begin, d);
    }
  }
  for (; place.key_tile <= query_tile; ++place.key_tile) {
    if (!IsRead(f, place)) continue;
    rows = RowsOf(f.shape, place);
    for (int32_t g = 0; g < group; ++g) {
      place.head = kv_head * group + g;
      ScoreTile(f, place, ws.tiles[static_cast<size_t>(g)]);
    }
    for (int32_t g = 0; g < group; ++g) {
      place.head = kv_head * group + g;
      TileBackward(params, place, rows, g, ws);
    }
  }
  for (int32_t g = 0; g < group; ++g) {
    const int32_t head = kv_head * group + g;
    for (int32_t r = 0; r < rows.queries; ++r) {
      const int32_t at = g * kTileKeys + r;
      std::copy_n(ws.grad_q + at * d, d, Row(params.grad_q, rows.first_query + r) + head * d);
      if (params.grad_tau == nullptr) continue;
      params.grad_tau[(rows.first_query + r) * f.shape.num_query_heads + head] = ws.grad_tau[at];
    }
  }
}

}  // namespace

void AttentionBackward(const Context& context, const AttentionBackwardParams& params) {
  const AttentionShape& shape = params.forward.shape;
  const int32_t tiles = (shape.length + kTileKeys - 1) / kTileKeys;
  const int64_t d = shape.head_dim;
  context.workers.Run(int64_t{shape.sequences} * shape.num_kv_heads, [&](int64_t task, int thread) {
    const auto sequence = static_cast<int32_t>(task / shape.num_kv_heads);
    const auto kv_head = static_cast<int32_t>(task % shape.num_kv_heads);
    const BackwardWorkspace ws =
        BackwardWorkspace::Make(context.scratch[static_cast<size_t>(thread)], shape);
    for (int32_t tile = 0; tile < tiles; ++tile) {
      QueriesBackward(params, sequence, kv_head, tile, ws);
    }
    for (int32_t t = 0; t < shape.length; ++t) {
      const int64_t row = int64_t{sequence} * shape.length + t;
      std::copy_n(ws.grad_k + t * d, d, Row(params.grad_k, row) + kv_head * d);
      std::copy_n(ws.grad_v + t * d, d, Row(params.grad_v, row) + kv_head * d);
    }
  });
}

}  // namespace eta::training::cpu
