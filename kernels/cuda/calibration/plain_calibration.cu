// CollectCalibration for any geometry and type (kernels/calibration_cells.h). A CTA takes a row and
// KV head, a warp a block of keys, a lane a key. Each score is added to the cells in memory by
// itself: exact and slow.

#include "kernels/cuda/calibration/calibration_scores.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/select/plain_products.cuh"

namespace eta::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;

struct PlainCalibrationArgs {
  StepView step;
  CalibrationParams params;
  ScoreCellFinder finder;
  unsigned long long* cells;
};

template <typename T>
__global__ void __launch_bounds__(kThreads, 2)
    CollectRows(const __grid_constant__ PlainCalibrationArgs args) {
  extern __shared__ __align__(16) float queries[];  // [G up to a multiple of 4, d]
  __shared__ double gates[kWarps][kMaxGroup];
  WaitForPrevious();
  AllowNext();
  const CalibrationParams& params = args.params;
  const auto row_index = static_cast<int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32;
  const int32_t warp = thread / 32;
  const StepRow row = args.step.rows[row_index];
  if (row.role != RowRole::kPrefill || args.step.sequences[row.sequence].calibrate == 0) return;
  const KvTile tile(params.geometry);
  const CalibrationCells layout(params.bins);
  const int32_t group = params.num_query_heads / tile.num_kv_heads;
  const int32_t padded_group = (group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce;
  const int32_t first_head = kv_head * group;
  unsigned long long* cells = args.cells + first_head * layout.size();

  const float* q = params.q.data + row_index * params.q.stride +
                   static_cast<int64_t>(first_head) * tile.head_dim;
  for (int32_t i = thread; i < padded_group * tile.head_dim; i += kThreads) {
    queries[i] = i < group * tile.head_dim ? q[i] : 0.0f;
  }
  __syncthreads();
  const float* centre = params.kv.index_centre;
  const QueryTerms query = TermsOf(queries, group, tile.head_dim,
                                   centre != nullptr ? centre + kv_head * tile.head_dim : nullptr);
  // The threshold of head `lane`.
  float threshold = 0.0f;
  if (lane < group) {
    threshold = params.thresholds.data[row_index * params.thresholds.stride + first_head + lane] -
                row.attention.offset;
  }
  const int32_t num_keys = row.position + 1;
  const int32_t num_full = num_keys / tile.block_size;
  const AlwaysRead always(row.attention.sink_blocks, row.attention.pinned_blocks, num_full);
  const int32_t num_blocks = (num_keys + tile.block_size - 1) / tile.block_size;
  const unsigned long long weight = WeightOfRow(num_keys);
  const bool gated = params.gate == Gate::kSilu;
  double gate = 0.0;
  unsigned long long unconditional = 0;

  for (int32_t block = warp; block < num_blocks; block += kWarps) {
    const int32_t physical = args.step.tables[row.table_begin + block];
    const std::byte* key_tile = params.kv.tiles + tile.K(physical, kv_head);
    const int32_t first_key = block * tile.block_size;
    const int32_t block_keys = min(tile.block_size, num_keys - first_key);
    uint32_t above = 0;  // keys that reach the threshold of head `lane`
    for (int32_t first = 0; first < block_keys; first += 32) {
      const bool valid = first + lane < block_keys;
      for (int32_t head = 0; head < group; head += kHeadsAtOnce) {
        float products[kHeadsAtOnce];
        MultiplyKey<T>(tile, key_tile, valid ? first + lane : 0, queries + head * tile.head_dim,
                       products);
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          const int32_t g = head + h;
          if (g >= group) break;
          const float score = products[h] * params.softmax_scale;
          const float tau = __shfl_sync(~0u, threshold, g);
          unsigned long long* of_head = cells + g * layout.size();
          if (valid) {
            OutsideScores outside;
            const int32_t cell = args.finder.Find(score, outside);
            if (cell >= 0) atomicAdd(of_head + cell, weight);
            if (outside.below != 0) atomicAdd(of_head + layout.below(), 1ull);
            if (outside.above != 0) atomicAdd(of_head + layout.above(), 1ull);
            if (outside.not_finite != 0) atomicAdd(of_head + layout.not_finite(), 1ull);
          }
          const uint32_t hits = __ballot_sync(~0u, valid && score >= tau);
          if (lane == g) above += __popc(hits);
          if (!gated) continue;
          float sum = valid ? GateOf(score, tau, params.beta) : 0.0f;
#pragma unroll
          for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(~0u, sum, step);
          if (lane == g) gate += sum;
        }
      }
    }
    if (always.Has(block)) {  // the tail comes last
      unconditional += above;
      continue;
    }
    if (!__any_sync(~0u, above != 0)) continue;
    const std::byte* record =
        params.kv.records + static_cast<size_t>(physical) * tile.record_bytes();
    const RecordProducts products = MultiplyRecord(queries, group, tile, record, kv_head);
    if (above == 0) continue;
    const BlockBound bound =
        products.Bound(tile.form, ScalarsOf(tile, record, kv_head), query, params.softmax_scale);
    atomicAdd(cells + lane * layout.size() + layout.needed(NeededZBin(bound, threshold)),
              static_cast<unsigned long long>(above));
  }

  if (lane < group) {
    gates[warp][lane] = gate;
    if (unconditional != 0) {
      atomicAdd(cells + lane * layout.size() + layout.unconditional(), unconditional);
    }
  }
  __syncthreads();
  if (!gated || thread >= group) return;
  double sum = 0.0;
  for (int i = 0; i < kWarps; ++i) sum += gates[i][thread];
  atomicAdd(cells + thread * layout.size() + layout.gate(), GateUnits(sum, num_keys));
}

}  // namespace

void PlainCollectCalibration(Context& context, const CalibrationParams& params) {
  const KvGeometry& geometry = params.geometry;
  const int32_t group = params.num_query_heads / geometry.num_kv_heads;
  const auto padded_group =
      static_cast<size_t>((group + kHeadsAtOnce - 1) / kHeadsAtOnce * kHeadsAtOnce);
  const LaunchShape shape{dim3(static_cast<unsigned>(context.step.num_rows),
                               static_cast<unsigned>(geometry.num_kv_heads)),
                          dim3(kThreads),
                          padded_group * static_cast<size_t>(geometry.head_dim) * sizeof(float)};
  static_assert(sizeof(uint64_t) == sizeof(unsigned long long));
  const PlainCalibrationArgs args{context.step, params, ScoreCellFinder(params.bins),
                                  reinterpret_cast<unsigned long long*>(params.cells)};
  WithCacheType(geometry.dtype, [&](auto element) {
    Launch(context.device, "PlainCollectCalibration", shape, CollectRows<decltype(element)>, args);
  });
}

}  // namespace eta::cuda
