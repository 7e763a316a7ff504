// CollectCalibration adds every causal score of the calibrating prefill rows to cells
// [HQ, CalibrationCells::size()]: a histogram of scores, the sum of gates, and the z that each
// above-threshold key needs (the paper's Algorithm 1; eta-semantics.md, "Profile" and "Per-head z";
// kernels/calibration_cells.h).
//
// Additions in shared memory bind. A CTA takes tiles of 64 rows of one query head and keeps the
// head's histogram in shared memory, if there is room for it. Each of its eight warps multiplies 16
// rows with half of a tile of 64 keys on tensor cores. Queries are split into parts until the
// products are exact in float32. For a few tiles of keys the CTA notes which blocks hold keys above
// the threshold, and how many. Then each thread takes a row and searches the z that admits those
// blocks.
#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/calibration/calibration_scores.cuh"
#include "kernels/cuda/calibration/calibration_tile.cuh"
#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/prefill/prefill_mma.cuh"
#include "kernels/cuda/prefill/prefill_tile.cuh"
#include "kernels/cuda/prefill/prefill_widen.h"
#include "kernels/cuda/select/plain_products.cuh"

namespace eta::cuda {
namespace {

constexpr int kThreads = kMmaThreads;
constexpr int kWarps = kThreads / 32;

struct CalibrationArgs {
  PrefillParams prefill;  // its tiles are of one query head; it has no output
  KvTile tile;            // the cache itself, for its records
  const std::byte* records;
  const float* centre;  // of kind outlier: [HKV, d] or null
  int32_t num_query_heads;
  int32_t num_tiles;
  ScoreCellFinder finder;
  CalibrationCells layout;
  unsigned long long* cells;
  bool shared_cells;  // true: weights are summed in shared memory
};

// The sums of a CTA over its tiles, beside the weights.
struct HeadSums {
  OutsideScores outside;
  uint32_t unconditional = 0;
  unsigned long long gate = 0;
};

// Adds to a 64-bit sum in shared memory, kept as two words, since a 64-bit atomic addition is a
// loop there. The high word of a sum is complete once all additions are done.
__device__ __forceinline__ void AddWeight(const CalibrationArgs& args, uint32_t* sums,
                                          unsigned long long* cells, int32_t cell,
                                          unsigned long long weight) {
  if (!args.shared_cells) {
    atomicAdd(cells + cell, weight);
    return;
  }
  const auto low = static_cast<uint32_t>(weight);
  const uint32_t before = atomicAdd(sums + cell, low);
  const uint32_t high = static_cast<uint32_t>(weight >> 32) + (before + low < low ? 1 : 0);
  if (high != 0) atomicAdd(sums + args.finder.num_cells() + cell, high);
}

// Loads the queries, thresholds and norms of a tile's rows. Rows after the tile's end become zeros.
template <int kHeadDim>
__device__ __forceinline__ void LoadRows(const CalibrationArgs& args, const PrefillTile& tile,
                                         int32_t head, const CalibrationMemory& memory) {
  constexpr int kPairs = kHeadDim / 2;
  constexpr int kStride = CalibrationShape<kHeadDim>::kQueryStride;
  const PrefillParams& prefill = args.prefill;
  for (int32_t i = threadIdx.x; i < kCalibrationRows * kPairs; i += kThreads) {
    const int32_t row = i / kPairs;
    const int32_t column = i % kPairs * 2;
    float2 pair = make_float2(0.0f, 0.0f);
    if (row < tile.tokens) {
      pair =
          *reinterpret_cast<const float2*>(prefill.q + (tile.row_begin + row) * prefill.q_stride +
                                           static_cast<int64_t>(head) * kHeadDim + column);
    }
    *reinterpret_cast<float2*>(memory.queries + row * kStride + column) = pair;
  }
  const auto own = static_cast<int32_t>(threadIdx.x);
  if (own < kCalibrationRows) {
    float threshold = 0.0f;
    if (own < tile.tokens) {
      const int64_t row = tile.row_begin + own;
      threshold = prefill.thresholds[row * prefill.thresholds_stride + head] -
                  prefill.step.rows[row].attention.offset;
    }
    memory.thresholds[own] = threshold;
  }
  __syncthreads();
  if (own < kCalibrationRows) {
    float squares = 0.0f;
    for (int32_t i = 0; i < kPairs; ++i) {
      const float2 pair = *reinterpret_cast<const float2*>(memory.queries + own * kStride + 2 * i);
      squares += pair.x * pair.x + pair.y * pair.y;
    }
    memory.norms[own] = sqrtf(squares);
  }
}

// Adds the keys counted in `memory.above`, of key tiles [begin, end), to the cell of the z that
// admits their blocks. A warp takes 32 rows and a block, or as much of a block as a key tile holds.
template <int kHeadDim>
__device__ __forceinline__ void CountNeeded(const CalibrationArgs& args, const PrefillTile& tile,
                                            int32_t head, int32_t begin, int32_t end,
                                            const CalibrationMemory& memory,
                                            unsigned long long* cells, HeadSums& totals) {
  constexpr int kStride = CalibrationShape<kHeadDim>::kQueryStride;
  const KvTile& cache = args.tile;
  const int32_t b = cache.block_size;
  const int32_t kv_head = head / args.prefill.group;
  const int32_t piece_keys = min(b, kTileKeys);
  const int32_t pieces = kTileKeys / piece_keys;  // pieces of a key tile
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const StepRow& of_sequence = args.prefill.step.rows[tile.row_begin];
  const int32_t sinks = of_sequence.attention.sink_blocks;
  const int32_t pinned = of_sequence.attention.pinned_blocks;
  const float* centre =
      args.centre != nullptr ? args.centre + static_cast<int64_t>(kv_head) * kHeadDim : nullptr;
  const int32_t* table = args.prefill.step.tables + tile.table_begin + args.prefill.tables_begin;
  const int32_t tasks = (end - begin) * pieces * (kCalibrationRows / 32);
  for (int32_t task = threadIdx.x / 32; task < tasks; task += kWarps) {
    const int32_t row = task % (kCalibrationRows / 32) * 32 + lane;
    const int32_t piece = task / (kCalibrationRows / 32);
    const int32_t first_key = begin * kTileKeys + piece * piece_keys;
    const int32_t first_byte = piece % pieces * (piece_keys / kCountedKeys);
    const uint32_t bytes =
        memory.above[piece / pieces * kCalibrationRows + row] >> (8 * first_byte);
    const uint32_t mask = piece_keys == kTileKeys ? ~0u : (1u << piece_keys / kCountedKeys * 8) - 1;
    const uint32_t count = __dp4a(bytes & mask, 0x01010101u, 0u);
    const int32_t block = first_key / b;
    const int32_t num_full = (tile.position + row + 1) / b;
    const bool is_read = AlwaysRead(sinks, pinned, num_full).Has(block);
    if (is_read) totals.unconditional += count;
    const bool searches = count != 0 && !is_read;
    if (!__any_sync(~0u, searches)) continue;

    const std::byte* record =
        args.records + static_cast<size_t>(table[block]) * cache.record_bytes();
    const float* queries = memory.queries + row * kStride;
    RecordProducts products{};
    QueryTerms query = {.norm = memory.norms[row]};
#pragma unroll 4
    for (int32_t pair = 0; pair < kHeadDim / 2; ++pair) {
      const float2 q = *reinterpret_cast<const float2*>(queries + 2 * pair);
      products.Add(q, LoadPair(cache, record, kv_head, pair));
      query.size += fabsf(q.x) + fabsf(q.y);
      if (centre != nullptr) query.centre += q.x * centre[2 * pair] + q.y * centre[2 * pair + 1];
    }
    if (!searches) continue;
    const BlockBound bound = products.Bound(cache.form, ScalarsOf(cache, record, kv_head), query,
                                            args.prefill.softmax_scale);
    const int32_t needed = NeededZBin(bound, memory.thresholds[row]);
    atomicAdd(cells + args.layout.needed(needed), static_cast<unsigned long long>(count));
  }
}

// The scores of one lane: two rows of a tile against the keys of its warp.
struct LaneRows {
  int32_t position[2];  // -1: no such row
  float threshold[2];
  unsigned long long weight[2];
  double gate[2];

  // Takes row `row` of the tile and the row 8 behind it.
  __device__ __forceinline__ LaneRows(const PrefillTile& tile, const CalibrationMemory& memory,
                                      int32_t row) {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      position[i] = row + 8 * i < tile.tokens ? tile.position + row + 8 * i : -1;
      threshold[i] = memory.thresholds[row + 8 * i];
      weight[i] = WeightOfRow(max(position[i] + 1, 1));
      gate[i] = 0.0;
    }
  }

  // Counts the products with the warp's keys from `first_key` on. Returns how many of the lane's
  // keys reach the threshold: a byte per 16 keys, the second row's bytes above the first row's.
  __device__ __forceinline__ uint32_t Take(const CalibrationArgs& args, uint32_t* sums,
                                           unsigned long long* cells, HeadSums& totals,
                                           const float (&products)[kWarpKeys / 8][4],
                                           const float (&scale)[2], int32_t first_key) {
    uint32_t above = 0;
    float gates[2] = {};
#pragma unroll
    for (int n = 0; n < kWarpKeys / 8; ++n) {
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = e / 2;
        const int32_t key = first_key + 8 * n + static_cast<int32_t>(threadIdx.x % 4) * 2 + e % 2;
        if (key > position[i]) continue;
        const float score = products[n][e] * scale[i];
        const int32_t cell = args.finder.Find(score, totals.outside);
        if (cell >= 0) AddWeight(args, sums, cells, cell, weight[i]);
        if (args.prefill.gated) gates[i] += GateOf(score, threshold[i], args.prefill.beta);
        if (score >= threshold[i]) above += 1u << (8 * (8 * n / kCountedKeys) + 16 * i);
      }
    }
    gate[0] += gates[0];
    gate[1] += gates[1];
    return above;
  }
};

// Adds up the gates of the tile's rows, in an order that does not depend on the cut of the work.
__device__ __forceinline__ void AddGates(const PrefillTile& tile, const LaneRows& rows, int32_t row,
                                         int32_t half, const CalibrationMemory& memory,
                                         HeadSums& totals) {
  __syncthreads();  // AddGates uses the memory of the counts
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    double sum = rows.gate[i];
    sum += __shfl_xor_sync(~0u, sum, 1);
    sum += __shfl_xor_sync(~0u, sum, 2);
    if (threadIdx.x % 4 == 0) memory.gates[half * kCalibrationRows + row + 8 * i] = sum;
  }
  __syncthreads();
  const auto own = static_cast<int32_t>(threadIdx.x);
  if (own >= tile.tokens) return;
  totals.gate +=
      GateUnits(memory.gates[own] + memory.gates[kCalibrationRows + own], tile.position + own + 1);
}

template <typename Element, int kHeadDim>
__global__ void __launch_bounds__(kThreads, 1)
    CollectTiles(const __grid_constant__ CalibrationArgs args) {
  using Shape = CalibrationShape<kHeadDim>;
  extern __shared__ __align__(128) std::byte shared[];
  const CalibrationMemory memory = CalibrationMemory::At<kHeadDim>(shared);
  const uint32_t stages = SharedAddress(shared);
  const auto head = static_cast<int32_t>(blockIdx.y);
  const int32_t kv_head = head / args.prefill.group;
  unsigned long long* cells = args.cells + head * args.layout.size();
  const int32_t half = static_cast<int32_t>(threadIdx.x / 32) % 2;
  const int32_t warp_row = static_cast<int32_t>(threadIdx.x / 64) * 16;
  const int32_t lane_row = warp_row + static_cast<int32_t>(threadIdx.x % 32) / 4;
  HeadSums totals;
  if (args.shared_cells) {
    for (int32_t i = threadIdx.x; i < 2 * args.finder.num_cells(); i += kThreads) {
      memory.sums[i] = 0;
    }
  }
  WaitForPrevious();

  // CTAs take tiles there and back: tiles are sorted by length, so all CTAs get about as much work.
  for (int32_t round = 0; round * static_cast<int32_t>(gridDim.x) < args.num_tiles; ++round) {
    const uint32_t place = round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x;
    const PrefillTile tile = FindTile(
        args.prefill, round * static_cast<int32_t>(gridDim.x) + static_cast<int32_t>(place));
    if (tile.row_begin < 0) break;
    const auto copy = [&](int32_t key_tile) {
      if (key_tile < tile.key_tiles) {
        CopyKeyTile<kHeadDim, /*kValues=*/false>(args.prefill, tile, kv_head, key_tile,
                                                 stages + key_tile % 2 * Shape::kKeyBytes);
      }
      CommitGroup();
    };
    __syncthreads();  // all threads have read the last tile's memory
    copy(0);
    LoadRows<kHeadDim>(args, tile, head, memory);
    CalibrationQueries<Element, kHeadDim> queries;
    queries.Load(memory.queries + lane_row * Shape::kQueryStride, args.prefill.softmax_scale);
    LaneRows rows(tile, memory, lane_row);
    const int32_t last_position = tile.position + min(warp_row + 15, tile.tokens - 1);

    for (int32_t key_tile = 0; key_tile < tile.key_tiles; ++key_tile) {
      WaitGroups<0>();
      __syncthreads();
      copy(key_tile + 1);
      const int32_t first_key = key_tile * kTileKeys + half * kWarpKeys;
      uint32_t above = 0;
      if (first_key <= last_position) {
        float products[kWarpKeys / 8][4] = {};
        queries.Multiply(
            stages + key_tile % 2 * Shape::kKeyBytes + half * (kWarpKeys * kHeadDim * 2), products);
        above = rows.Take(args, memory.sums, cells, totals, products, queries.scale, first_key);
        above += __shfl_xor_sync(~0u, above, 1);
        above += __shfl_xor_sync(~0u, above, 2);
      }
      if (threadIdx.x % 4 == 0) {
        auto* to = reinterpret_cast<uint16_t*>(
            memory.above + key_tile % kBatchTiles * kCalibrationRows + lane_row);
        to[half] = static_cast<uint16_t>(above);
        to[8 * 2 + half] = static_cast<uint16_t>(above >> 16);
      }
      if ((key_tile + 1) % kBatchTiles == 0 || key_tile + 1 == tile.key_tiles) {
        __syncthreads();
        CountNeeded<kHeadDim>(args, tile, head, key_tile / kBatchTiles * kBatchTiles, key_tile + 1,
                              memory, cells, totals);
      }
    }
    if (args.prefill.gated) AddGates(tile, rows, lane_row, half, memory, totals);
  }
  WaitGroups<0>();
  AllowNext();
  __syncthreads();
  if (args.shared_cells) {
    for (int32_t i = threadIdx.x; i < args.finder.num_cells(); i += kThreads) {
      const unsigned long long sum =
          static_cast<unsigned long long>(memory.sums[args.finder.num_cells() + i]) << 32 |
          memory.sums[i];
      if (sum != 0) atomicAdd(cells + i, sum);
    }
  }
  AddOutside(totals.outside, args.layout, cells);
  AddOfWarp(totals.unconditional, cells + args.layout.unconditional());
  AddOfWarp(totals.gate, cells + args.layout.gate());
}

// All arguments but the sequences and their keys.
CalibrationArgs Prepare(const Context& context, const CalibrationParams& params) {
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));
  CalibrationArgs args = {.prefill = {},
                          .tile = KvTile(params.geometry),
                          .records = params.kv.records,
                          .centre = params.kv.index_centre,
                          .num_query_heads = params.num_query_heads,
                          .num_tiles = 0,
                          .finder = ScoreCellFinder(params.bins),
                          .layout = CalibrationCells(params.bins),
                          .cells = reinterpret_cast<unsigned long long*>(params.cells),
                          .shared_cells = false};
  PrefillParams& prefill = args.prefill;
  prefill.step = context.step;
  prefill.q = params.q.data;
  prefill.q_stride = params.q.stride;
  prefill.thresholds = params.thresholds.data;
  prefill.thresholds_stride = params.thresholds.stride;
  prefill.geometry = params.geometry;
  prefill.group = params.num_query_heads / params.geometry.num_kv_heads;
  prefill.tile_tokens = kCalibrationRows;
  prefill.max_parts = 1;
  prefill.softmax_scale = params.softmax_scale;
  prefill.beta = params.beta;
  prefill.gated = params.gate == Gate::kSilu;
  prefill.calibrates = true;
  return args;
}

template <typename Element, int kHeadDim>
void LaunchCollect(Context& context, CalibrationArgs& args) {
  const size_t sum_bytes = 2 * sizeof(uint32_t) * static_cast<size_t>(args.finder.num_cells());
  const size_t bytes = CalibrationShape<kHeadDim>::kSums + sum_bytes;
  args.shared_cells = bytes <= context.device.shared_memory_per_block();
  const auto heads = static_cast<unsigned>(args.num_query_heads);
  const auto each = static_cast<unsigned>(
      std::clamp(context.device.num_sms() / args.num_query_heads, 1, args.num_tiles));
  Launch(context.device, "calibration",
         {.grid = dim3(each, heads),
          .block = dim3(kThreads),
          .shared_bytes = args.shared_cells ? bytes : bytes - sum_bytes},
         CollectTiles<Element, kHeadDim>, args);
}

template <typename Element>
void LaunchForDim(Context& context, CalibrationArgs& args) {
  switch (args.prefill.geometry.head_dim) {
    case 64:
      return LaunchCollect<Element, 64>(context, args);
    case 96:
      return LaunchCollect<Element, 96>(context, args);
    default:
      return LaunchCollect<Element, 128>(context, args);
  }
}

bool Calibrates(const StepSequence& sequence) {
  return sequence.calibrate != 0;
}

// Collects over `sequences`, neighbours in the step; `args` has their keys.
void Collect(Context& context, CalibrationArgs args, std::span<const StepSequence> sequences) {
  PrefillParams& prefill = args.prefill;
  prefill.sequences = context.step.sequences + (sequences.data() - context.sequences.data());
  prefill.num_sequences = static_cast<int32_t>(sequences.size());
  for (const StepSequence& sequence : sequences) {
    if (!Calibrates(sequence)) continue;
    args.num_tiles += (sequence.num_rows + kCalibrationRows - 1) / kCalibrationRows;
  }
  if (args.num_tiles == 0) return;
  if (prefill.geometry.dtype == DType::kFloat16) {
    LaunchForDim<Half>(context, args);
  } else {
    LaunchForDim<BFloat16>(context, args);
  }
}

}  // namespace

void CollectCalibration(Context& context, const CalibrationParams& params) {
  if (std::ranges::none_of(context.sequences, Calibrates)) return;
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  if (!SupportsTensorCores(geometry.head_dim, geometry.block_size, group, geometry.dtype)) {
    PlainCollectCalibration(context, params);
    return;
  }
  CalibrationArgs args = Prepare(context, params);
  if (geometry.dtype != DType::kFloat8E4M3) {
    args.prefill.tiles = params.kv.tiles;
    args.prefill.tables = context.step.tables;
    Collect(context, args, context.sequences);
    return;
  }
  std::span<const StepSequence> rest = context.sequences;
  for (auto some = TakeWideRun(geometry, rest); !some.empty(); some = TakeWideRun(geometry, rest)) {
    if (std::ranges::none_of(some, Calibrates)) continue;
    const WideTiles wide = Widen(context, geometry, params.kv, /*window=*/0, some);
    if (wide.tiles == nullptr) return;
    args.prefill.geometry = wide.geometry;
    args.prefill.tiles = wide.tiles;
    args.prefill.tables = wide.tables;
    args.prefill.tables_begin = some.front().table_begin;
    Collect(context, args, some);
  }
}

}  // namespace eta::cuda
