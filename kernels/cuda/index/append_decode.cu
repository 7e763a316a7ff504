// AppendDecodeRows does NormHeads, Rope, AppendKv and PredictThresholds of a layer as one kernel,
// for a step in which every sequence decodes a few rows (eta-semantics.md, "Model" and "Block
// index").
// The shapes are those of the four ops: q [R, HQ * d], k and v [R, HKV * d], thresholds [R, HQ]. In
// a layer with neither norms nor RoPE q and k stay as they are. A layer with a window has neither
// thresholds nor records.
//
// Launches bind: each costs as much as the work, so there is one instead of four. A cluster has
// one CTA per KV head. The first clusters norm and rotate the keys of kAppendRows rows each, or of
// all rows of a sequence, store keys and values, and write the records of the blocks that these
// fill. The other clusters do so
// with the queries of kPredictRows rows each and predict. There each CTA multiplies its own heads'
// queries with their columns of the weight, for all thresholds, and sends each sum to the CTA that
// adds it up. So a cluster reads the weight once.

#include <cooperative_groups.h>

#include <algorithm>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/index/block_record.cuh"
#include "kernels/cuda/rows/thresholds.cuh"

namespace eta::cuda {
namespace {

constexpr int32_t kAppendRows = 2;
constexpr int32_t kPredictRows = 4;
// The largest cluster size that every device supports.
constexpr int32_t kMaxKvHeads = 8;
// Elements of the queries that share a KV head, which are kept in shared memory.
constexpr int64_t kMaxWidth = 1024;

struct DecodeArgs {
  AppendArgs append;
  ThresholdArgs thresholds;
  float* q;
  const float* q_norm;  // [d]; null: heads are not normed
  const float* k_norm;  // [d]; likewise
  float eps;
  const float2* angles;  // [R, d / 2]; null: q and k do not turn
  // A bundle for each sequence, with all its rows; null: every sequence has one row.
  const RowBundle* bundles;
  int32_t num_bundles;  // padded
};

#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
using Cluster = cooperative_groups::cluster_group;

constexpr int32_t kWarps = kAppendThreads / 32;
// Predicting threads form groups. A group takes kHeads thresholds of kTileRows rows at a time.
constexpr int32_t kTileRows = 2;
constexpr int32_t kTiles = kPredictRows / kTileRows;
constexpr int32_t kHeads = 32 / kTileRows;
constexpr int32_t kGroupThreads = 128;
constexpr int32_t kGroups = kAppendThreads / kGroupThreads;
constexpr int32_t kGroupWarps = kGroupThreads / 32;

template <typename T>
__device__ __forceinline__ void Append(const DecodeArgs& args, const StepView& step,
                                       int32_t first_row, int32_t kv_head) {
  extern __shared__ __align__(16) float keys[];
  __shared__ RecordScratch scratch;
  const AppendArgs& append = args.append;
  const KvTile& tile = append.tile;
  const int32_t d = tile.head_dim;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const int32_t end = min(first_row + kAppendRows, step.counts->num_rows);
  if (first_row >= end) {
    WaitForPrevious();
    return;
  }
  const int32_t own = first_row + warp / 2;
  const bool value = warp % 2 != 0;
  const bool stores = own < end;
  const StepRow& at = step.rows[stores ? own : first_row];
  const int32_t block = stores ? step.tables[at.table_begin + at.position / tile.block_size] : 0;
  const auto next_filling = [&](int32_t row) {
    while (row < end && (step.rows[row].position + 1) % tile.block_size != 0) ++row;
    return row;
  };
  const auto work_on = [&](int32_t row) {
    const StepRow& filling = step.rows[row];
    return BlockRecordWork(append, step.tables + filling.table_begin,
                           filling.position / tile.block_size, kv_head, /*chained=*/true, keys,
                           scratch);
  };
  // A sequence has one row, so earlier steps stored the other tokens.
  const int32_t filling = append.records != nullptr ? next_filling(first_row) : end;
  BlockRecordWork record = work_on(min(filling, end - 1));
  if (filling < end) record.Prepare<T>();
  WaitForPrevious();
  AllowNext();
  if (stores) {
    const bool norms = !value && args.k_norm != nullptr;
    float* k = append.k + own * append.k_stride + kv_head * d;
    HeadVector vector;
    vector.Load(value ? append.v + own * append.v_stride + kv_head * d : k, d);
    if (norms) {
      HeadVector factors;
      factors.Load(args.k_norm, d);
      vector.Normalise(factors, d, args.eps);
    }
    if (!value && args.angles != nullptr) {
      vector.Rotate(args.angles + static_cast<int64_t>(own) * (d / 2), d);
    }
    if (norms || (!value && args.angles != nullptr)) vector.Store(k, d);
    StoreToken<T>(vector, tile, append.tiles, block, kv_head, at.position % tile.block_size, value);
    if (own == filling)
      AsStored<T>(vector).Store(value ? record.last_value() : record.last_key(), d);
  }
  __syncthreads();
  if (filling >= end) return;
  record.Finish();
  for (int32_t row = next_filling(filling + 1); row < end; row = next_filling(row + 1)) {
    BlockRecordWork other = work_on(row);
    other.template Prepare<T>();
    other.template LoadLast<T>();
    __syncthreads();
    other.Finish();
  }
}

// Of all rows that the step has of a sequence. They are no more than a block has tokens, so they
// fill one at most, and its other tokens are theirs or those of earlier steps.
template <typename T>
__device__ __forceinline__ void AppendBundle(const DecodeArgs& args, const StepView& step,
                                             const RowBundle& bundle, int32_t kv_head) {
  extern __shared__ __align__(16) float keys[];
  __shared__ RecordScratch scratch;
  const AppendArgs& append = args.append;
  const KvTile& tile = append.tile;
  const int32_t d = tile.head_dim;
  const int32_t count = bundle.num_rows * 2;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto row_of = [&](int32_t i) { return bundle.row_begin + i / 2; };
  const auto is_value = [](int32_t i) { return i % 2 != 0; };
  const auto key = [&](int32_t i) { return append.k + row_of(i) * append.k_stride + kv_head * d; };
  WaitForPrevious();
  AllowNext();
  for (int32_t first = warp; first < count; first += kHeldVectors * kWarps) {
    HeadVector vectors[kHeldVectors];
    ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) {
      vectors[n].Load(is_value(i) ? append.v + row_of(i) * append.v_stride + kv_head * d : key(i),
                      d);
    });
    if (args.k_norm != nullptr) {
      HeadVector factors;
      factors.Load(args.k_norm, d);
      ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) {
        if (!is_value(i)) vectors[n].Normalise(factors, d, args.eps);
      });
    }
    if (args.angles != nullptr) {
      ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) {
        if (is_value(i)) return;
        vectors[n].Rotate(args.angles + static_cast<int64_t>(row_of(i)) * (d / 2), d);
      });
    }
    const bool turned = args.k_norm != nullptr || args.angles != nullptr;
    ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) {
      if (turned && !is_value(i)) vectors[n].Store(key(i), d);
      const StepRow& at = step.rows[row_of(i)];
      const int32_t block = step.tables[at.table_begin + at.position / tile.block_size];
      StoreToken<T>(vectors[n], tile, append.tiles, block, kv_head, at.position % tile.block_size,
                    is_value(i));
    });
  }
  const StepRow& start = step.rows[bundle.row_begin];
  const int32_t filled = (start.position + bundle.num_rows) / tile.block_size - 1;
  if (append.records == nullptr || bundle.num_rows == 0 ||
      filled < start.position / tile.block_size) {
    return;
  }
  BlockRecordWork record(append, step.tables + start.table_begin, filled, kv_head, /*chained=*/true,
                         keys, scratch);
  __syncthreads();
  record.Prepare<T>();
  record.LoadLast<T>();
  __syncthreads();
  record.Finish();
}

// Norms and rotates the queries that share a KV head, of rows [first_row, end), in place and into
// `shared`, [rows][width].
__device__ __forceinline__ void TurnQueries(const DecodeArgs& args, int32_t first_row, int32_t end,
                                            int32_t kv_head, int32_t width, float* shared) {
  const int32_t d = args.append.tile.head_dim;
  const int32_t group = width / d;
  const int32_t count = (end - first_row) * group;
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto query = [&](int32_t i) {
    return args.q + (first_row + i / group) * args.thresholds.q_stride + kv_head * width +
           i % group * d;
  };
  for (int32_t first = warp; first < count; first += kHeldVectors * kWarps) {
    HeadVector vectors[kHeldVectors];
    ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) { vectors[n].Load(query(i), d); });
    if (args.q_norm != nullptr) {
      HeadVector factors;
      factors.Load(args.q_norm, d);
      ForHeldVectors<kWarps>(first, count,
                             [&](int n, int32_t) { vectors[n].Normalise(factors, d, args.eps); });
    }
    if (args.angles != nullptr) {
      ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) {
        vectors[n].Rotate(args.angles + static_cast<int64_t>(first_row + i / group) * (d / 2), d);
      });
    }
    ForHeldVectors<kWarps>(first, count, [&](int n, int32_t i) {
      vectors[n].Store(query(i), d);
      vectors[n].Store(shared + i * d, d);
    });
  }
}

// The sums that a CTA sends to others, and those that it receives and adds up.
struct PredictScratch {
  float warps[kTiles][kWarps][32];
  float received[kMaxKvHeads][kPredictRows][kMaxGroup];  // from every CTA of the cluster
};

// Loads that need nothing of the previous kernel come first, above all those of the weight.
__device__ __forceinline__ void Predict(const DecodeArgs& args, const StepView& step,
                                        int32_t first_row, int32_t kv_head) {
  extern __shared__ __align__(16) float queries[];  // [kPredictRows][width]
  __shared__ PredictScratch scratch;
  const ThresholdArgs& to = args.thresholds;
  const int32_t num_kv_heads = args.append.tile.num_kv_heads;
  const int32_t group = to.num_heads / num_kv_heads;
  const int32_t width = group * args.append.tile.head_dim;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const int32_t lane = thread % 32;
  const int32_t first_column = thread % kGroupThreads * 4;
  const int32_t first_head = thread / kGroupThreads * kHeads;

  float w[kHeads][4];  // of the next heads and columns
  int32_t loaded_head = first_head;
  int32_t loaded_column = first_column;
  const auto load_weight = [&] {
    if (loaded_head >= to.num_heads || loaded_column >= width) return;
    const float* from = to.weight + kv_head * width + loaded_column;
#pragma unroll
    for (int h = 0; h < kHeads; ++h) {
      LoadElements(from + min(loaded_head + h, to.num_heads - 1) * to.width, w[h]);
    }
  };
  if (to.weight != nullptr) load_weight();

  const int32_t end = min(first_row + kPredictRows, step.counts->num_rows);
  const int32_t last_row = min(first_row + kPredictRows, step.num_rows) - 1;
  bool predicts = false;
  for (int32_t row = first_row; row <= last_row; ++row) {
    predicts = predicts || IsPredicted(to, step.rows[row]);
  }
  // The threshold that this thread writes.
  const int32_t own_row = first_row + thread / group;
  const int32_t own_head = kv_head * group + thread % group;
  const bool writes = to.out != nullptr && own_row <= last_row;
  bool adds = false;
  float threshold = 0.0f;
  if (writes) {
    const StepRow& at = step.rows[own_row];
    adds = IsPredicted(to, at);
    threshold = adds ? to.bias[own_head] : FixedThreshold(to, step, at, own_head);
  }
  if (predicts) Cluster::barrier_arrive();

  WaitForPrevious();
  AllowNext();
  TurnQueries(args, first_row, end, kv_head, width, queries);
  __syncthreads();
  if (predicts) {
    Cluster::barrier_wait();  // all CTAs of the cluster have started and can receive
    for (int32_t begin = 0; begin < to.num_heads; begin += kGroups * kHeads) {
      const int32_t head = begin + first_head;
      for (int32_t tile = 0; first_row + tile * kTileRows < end; ++tile) {
        float sums[32] = {};
        for (int32_t column = first_column; column < width; column += kGroupThreads * 4) {
          if (head != loaded_head || column != loaded_column) {
            loaded_head = head;
            loaded_column = column;
            load_weight();
          }
#pragma unroll
          for (int r = 0; r < kTileRows; ++r) {
            float q[4];
            LoadElements(queries + (tile * kTileRows + r) * width + column, q);
#pragma unroll
            for (int h = 0; h < kHeads; ++h) {
#pragma unroll
              for (int j = 0; j < 4; ++j) sums[r * kHeads + h] += q[j] * w[h][j];
            }
          }
        }
        scratch.warps[tile][thread / 32][lane] = FoldSums(sums);
      }
      __syncthreads();
      const int32_t tile = thread / (kGroups * 32);
      const int32_t of_group = thread / 32 % kGroups;
      const int32_t row = tile * kTileRows + lane / kHeads;
      const int32_t for_head = begin + of_group * kHeads + lane % kHeads;
      if (tile < kTiles && first_row + row < end && for_head < to.num_heads) {
        float sum = 0.0f;
#pragma unroll
        for (int warp = 0; warp < kGroupWarps; ++warp) {
          sum += scratch.warps[tile][of_group * kGroupWarps + warp][lane];
        }
        float* at = &scratch.received[kv_head][row][for_head % group];
        *cooperative_groups::this_cluster().map_shared_rank(at, for_head / group) = sum;
      }
      __syncthreads();
    }
    cooperative_groups::this_cluster().sync();
  }
  if (!writes) return;
  if (adds) {
    float sum = 0.0f;
    for (int32_t from = 0; from < num_kv_heads; ++from) {
      sum += scratch.received[from][own_row - first_row][thread % group];
    }
    threshold = sum + threshold;
  }
  to.out[own_row * to.out_stride + own_head] = threshold;
}
#endif

__host__ __device__ constexpr int32_t Clusters(int32_t num_rows, int32_t rows) {
  return (num_rows + rows - 1) / rows;
}

template <typename T, bool kBundled>
__global__ void __launch_bounds__(kAppendThreads, 2)
    AppendDecode([[maybe_unused]] DecodeArgs args, [[maybe_unused]] StepView step) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  const auto kv_head = static_cast<int32_t>(blockIdx.x);
  const auto cluster = static_cast<int32_t>(blockIdx.y);
  const int32_t appending = kBundled ? args.num_bundles : Clusters(step.num_rows, kAppendRows);
  if (cluster < appending) {
    if constexpr (kBundled) {
      AppendBundle<T>(args, step, args.bundles[cluster], kv_head);
    } else {
      Append<T>(args, step, cluster * kAppendRows, kv_head);
    }
  } else {
    Predict(args, step, (cluster - appending) * kPredictRows, kv_head);
  }
#endif
}

}  // namespace

bool AppendDecodeRows(Context& context, const NormHeadsParams* norms, const RopeParams* rope,
                      const AppendKvParams& append, const ThresholdParams* predict,
                      const RowBundle* bundles, int32_t num_bundles) {
  const KvGeometry& geometry = append.geometry;
  if (predict == nullptr && rope == nullptr) return false;
  if (bundles != nullptr && geometry.block_size < kBundleRows) return false;
  ThresholdParams thresholds = {};
  if (predict != nullptr) {
    thresholds = *predict;
  } else {
    thresholds.q = rope->q;
    thresholds.out.cols = rope->q.cols / geometry.head_dim;
  }
  const int32_t kv_heads = geometry.num_kv_heads;
  const int64_t heads = thresholds.out.cols;
  const int64_t d = geometry.head_dim;
  const TensorView& q = thresholds.q;
  const bool rotates_them =
      rope == nullptr || (rope->q == q && rope->k == append.k && rope->head_dim == d);
  const bool norms_them =
      norms == nullptr || (norms->q == q && norms->k == append.k && norms->head_dim == d);
  const bool one_layer = norms_them && rotates_them && append.k.cols == kv_heads * d &&
                         q.cols == heads * d && q.rows == append.k.rows;
  const bool divides = kv_heads <= kMaxKvHeads && (kv_heads & (kv_heads - 1)) == 0 &&
                       heads % kv_heads == 0 && heads / kv_heads <= kMaxGroup;
  if (!HasClusters(context.device) || !one_layer || !divides) return false;
  const int64_t width = heads / kv_heads * d;
  if (width > kMaxWidth) return false;

  const DecodeArgs args = {.append = MakeAppendArgs(append),
                           .thresholds = MakeThresholdArgs(thresholds),
                           .q = q.data,
                           .q_norm = norms == nullptr ? nullptr : norms->q_weight,
                           .k_norm = norms == nullptr ? nullptr : norms->k_weight,
                           .eps = norms == nullptr ? 0.0f : norms->eps,
                           .angles = rope == nullptr ? nullptr : Angles(context, *rope),
                           .bundles = bundles,
                           .num_bundles = num_bundles};
  if (rope != nullptr && args.angles == nullptr) return true;  // no memory: the device says so
  const int32_t num_rows = context.step.num_rows;
  const int32_t appending = bundles != nullptr ? num_bundles : Clusters(num_rows, kAppendRows);
  const auto clusters = static_cast<unsigned>(appending + Clusters(num_rows, kPredictRows));
  const size_t query_bytes = static_cast<size_t>(kPredictRows * width) * sizeof(float);
  const LaunchShape shape = {
      .grid = {static_cast<unsigned>(kv_heads), clusters},
      .block = kAppendThreads,
      .shared_bytes = std::max(query_bytes, RecordSharedBytes(args.append.tile)),
      .cluster = static_cast<unsigned>(kv_heads)};
  WithCacheType(geometry.dtype, [&](auto element) {
    Launch(context.device, "AppendDecodeRows", shape,
           bundles != nullptr ? AppendDecode<decltype(element), true>
                              : AppendDecode<decltype(element), false>,
           args, context.step);
  });
  return true;
}

}  // namespace eta::cuda
