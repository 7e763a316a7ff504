// Gated attention forward (the paper's algorithm 1): per KV head and tile of queries, over the
// tiles of keys, with an online softmax. The heads of a group go together, since block_sum may ask
// for the largest gate of them all.

#include <cmath>
#include <limits>
#include <utility>

#include "training/cpu/attention_tile.h"
#include "training/cpu/ops.h"
#include "training/cpu/product.h"

namespace eta::training::cpu {
namespace {

// A task's memory; [G] heads of [64] queries.
struct Workspace {
  ScoredTile tile;
  float* weights;      // [64, 64]
  float* sums;         // [G, 64, d], of P V
  float* largest;      // [G, 64]
  float* totals;       // [G, 64]
  float* gate_sums;    // [G, 64]
  float* block_sums;   // [G, 64]; row 0 for the whole group, if blocks are the group's
  float* block_gates;  // [64], of the group's heads so far

  static Workspace Make(eta::cpu::Scratch& scratch, int64_t group, int64_t d) {
    const int64_t rows = group * kTileKeys;
    const int64_t elements = 4 * kTileElements + rows * (d + 4) + kTileKeys;
    auto* at = scratch.Reserve<float>(static_cast<size_t>(elements));
    std::fill_n(at, elements, 0.0f);
    const auto take = [&](int64_t count) { return std::exchange(at, at + count); };
    Workspace ws{};
    ws.tile = {take(kTileElements), take(kTileElements), take(kTileElements)};
    ws.weights = take(kTileElements);
    ws.sums = take(rows * d);
    ws.largest = take(rows);
    ws.totals = take(rows);
    ws.gate_sums = take(rows);
    ws.block_sums = take(rows);
    ws.block_gates = take(kTileKeys);
    std::fill_n(ws.largest, rows, -std::numeric_limits<float>::infinity());
    return ws;
  }
};

// What the tile's gates add to the row sums of head `g` of the group.
void SumGates(const AttentionForwardParams& params, const TilePlace& place, const TileRows& rows,
              int32_t g, const Workspace& ws) {
  for (int32_t r = 0; r < rows.queries; ++r) {
    const float* open = ws.tile.open + r * kTileKeys;
    float sum = 0.0f;
    for (int32_t i = 0; i < KeysSeen(place, rows, r); ++i) sum += open[i];
    ws.gate_sums[g * kTileKeys + r] += sum;
    if (params.block_sum == nullptr || !IsWhole(place, rows, r)) continue;
    const float largest = Largest(open, kTileKeys);
    if (params.gate.group_blocks) {
      ws.block_gates[r] = g == 0 ? largest : std::max(ws.block_gates[r], largest);
    } else {
      ws.block_sums[g * kTileKeys + r] += largest;
    }
  }
}

// Adds the tile to the online softmax of head `g` of the group.
void AddTile(const AttentionForwardParams& params, const TilePlace& place, const TileRows& rows,
             int32_t g, const Workspace& ws) {
  const int64_t d = params.shape.head_dim;
  float* sums = ws.sums + g * kTileKeys * d;
  for (int32_t r = 0; r < rows.queries; ++r) {
    const int32_t keys = KeysSeen(place, rows, r);
    float* weights = ws.weights + r * kTileKeys;
    LogitsOfRow(params, place, ws.tile, r, keys, weights);
    float& largest = ws.largest[g * kTileKeys + r];
    float& total = ws.totals[g * kTileKeys + r];
    const float renewed = std::max(largest, Largest(weights, keys));
    const float shrink = std::exp(largest - renewed);
    largest = renewed;
    total = total * shrink + ExpShifted(weights, renewed, keys);
    std::fill(weights + keys, weights + kTileKeys, 0.0f);
    for (int64_t i = 0; i < d; ++i) sums[r * d + i] *= shrink;
  }
  const float* v = Row(params.v, rows.first_key) + place.head / params.shape.group() * d;
  Multiply(rows.queries, d, rows.keys, 1.0f, {ws.weights, kTileKeys}, {v, params.v.stride}, true,
           sums, d);
}

void Store(const AttentionForwardParams& params, const TilePlace& place, const TileRows& rows,
           int32_t g, const Workspace& ws) {
  const AttentionShape& shape = params.shape;
  const int64_t d = shape.head_dim;
  for (int32_t r = 0; r < rows.queries; ++r) {
    const int32_t at = g * kTileKeys + r;
    float* out = Row(params.out, rows.first_query + r) + place.head * d;
    for (int64_t i = 0; i < d; ++i) out[i] = ws.sums[at * d + i] / ws.totals[at];
    const int64_t row =
        (int64_t{place.sequence} * shape.num_query_heads + place.head) * shape.length +
        rows.position + r;
    params.lse[row] = ws.largest[at] + std::log(ws.totals[at]);
    if (params.gate_sum != nullptr) params.gate_sum[row] = ws.gate_sums[at];
    if (params.block_sum == nullptr) continue;
    if (!params.gate.group_blocks) {
      params.block_sum[row] = ws.block_sums[at];
    } else if (g == 0) {
      params.block_sum[(int64_t{place.sequence} * shape.num_kv_heads + place.head / shape.group()) *
                           shape.length +
                       rows.position + r] = ws.block_sums[r];
    }
  }
}

void AttendTile(const AttentionForwardParams& params, int32_t sequence, int32_t kv_head,
                int32_t query_tile, eta::cpu::Scratch& scratch) {
  const int32_t group = params.shape.group();
  const Workspace ws = Workspace::Make(scratch, group, params.shape.head_dim);
  TilePlace place = {sequence, kv_head * group, query_tile, 0};
  TileRows rows = RowsOf(params.shape, place);
  const bool sums = params.gate_sum != nullptr || params.block_sum != nullptr;
  for (; place.key_tile <= query_tile; ++place.key_tile) {
    if (!IsRead(params, place)) continue;
    rows = RowsOf(params.shape, place);
    for (int32_t g = 0; g < group; ++g) {
      place.head = kv_head * group + g;
      ScoreTile(params, place, ws.tile);
      if (sums) SumGates(params, place, rows, g, ws);
      AddTile(params, place, rows, g, ws);
    }
    if (params.block_sum == nullptr || !params.gate.group_blocks) continue;
    for (int32_t r = 0; r < rows.queries; ++r) {
      if (IsWhole(place, rows, r)) ws.block_sums[r] += ws.block_gates[r];
    }
  }
  for (int32_t g = 0; g < group; ++g) {
    place.head = kv_head * group + g;
    Store(params, place, rows, g, ws);
  }
}

}  // namespace

void Attention(const Context& context, const AttentionForwardParams& params) {
  const AttentionShape& shape = params.shape;
  const int32_t tiles = (shape.length + kTileKeys - 1) / kTileKeys;
  const int64_t heads = int64_t{shape.sequences} * shape.num_kv_heads;
  // The longest rows first, so that threads end together.
  context.workers.Run(heads * tiles, [&](int64_t task, int thread) {
    const auto head = static_cast<int32_t>(task % heads);
    AttendTile(params, head / shape.num_kv_heads, head % shape.num_kv_heads,
               tiles - 1 - static_cast<int32_t>(task / heads),
               context.scratch[static_cast<size_t>(thread)]);
  });
}

}  // namespace eta::training::cpu
