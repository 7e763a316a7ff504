// Embed, RmsNorm, AddBias, NormHeads, PredictThresholds and SwiGlu: the ops that treat every row by
// itself. Embed copies a row's token vector [D] from the table [V, D], times a scale. RmsNorm
// scales a row [D] to a root mean square of 1 and multiplies it with the weight [D], or adds that
// to out; NormHeads does so with every head [d] of q and k. PredictThresholds computes q W^T + b
// [HQ] (eta-semantics.md, "Model"). SwiGlu computes activation(gate) * up [F] from [2F], or the
// clamped form of it.
//
// A row's sums run in one fixed order, whatever the other rows are. append_decode.cu adds up the
// predictor in another order. Start, end and latency of the kernels bind.

#include <algorithm>
#include <initializer_list>
#include <type_traits>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/head_vector.cuh"
#include "kernels/cuda/rows/thresholds.cuh"

namespace eta::cuda {
namespace {

constexpr int32_t kThreads = 256;
constexpr int32_t kWarps = kThreads / 32;

unsigned Grid(int64_t count) {
  return static_cast<unsigned>(count);
}

// Calls visit(integral_constant) with the number of elements that a thread moves at once: `width`
// if every one of `sizes` (row lengths and strides) is a multiple of it, else 1.
template <int width, typename Visit>
void WithWidth(std::initializer_list<int64_t> sizes, Visit&& visit) {
  if (std::all_of(sizes.begin(), sizes.end(), [](int64_t size) { return size % width == 0; })) {
    visit(std::integral_constant<int, width>());
  } else {
    visit(std::integral_constant<int, 1>());
  }
}

template <typename T, int width>
__global__ void __launch_bounds__(kThreads)
    EmbedRows(const T* table, int64_t cols, float scale, float* out, int64_t out_stride,
              StepView step) {
  WaitForPrevious();
  AllowNext();
  const StepRow& row = step.rows[blockIdx.x];
  const bool padding = row.role == RowRole::kPadding;
  const T* from = table + (padding ? 0 : row.token * cols);
  float* to = out + blockIdx.x * out_stride;
  for (int64_t i = threadIdx.x * width; i < cols; i += kThreads * width) {
    float x[width] = {};
    if (!padding) LoadElements(from + i, x);
#pragma unroll
    for (int j = 0; j < width; ++j) x[j] *= scale;
    StoreElements(x, to + i);
  }
}

// The sum of one value of every thread. All threads get the same bits.
__device__ float BlockSum(float value) {
  __shared__ float sums[kWarps];
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) value += __shfl_xor_sync(~0u, value, lanes);
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = value;
  __syncthreads();
  float sum = 0.0f;
#pragma unroll
  for (int warp = 0; warp < kWarps; ++warp) sum += sums[warp];
  return sum;
}

// Stores a piece of a normalised row, or adds it to what is there.
template <bool add, int width, typename T>
__device__ __forceinline__ void StoreNormed(float (&values)[width], T* to) {
  if constexpr (add) {
    float old[width];
    LoadElements(to, old);
#pragma unroll
    for (int j = 0; j < width; ++j) values[j] += old[j];
  }
  StoreElements(values, to);
}

// A thread keeps its first kHeld pieces in registers between the sum and the product. The rest of a
// longer row is read twice. With a width of 4 a row has the bits that row_norm.cuh gives it.
template <typename T, int width, bool add>
__global__ void __launch_bounds__(kThreads)
    NormRows(const float* x, int64_t x_stride, const float* weight, float eps, const int32_t* rows,
             T* out, int64_t out_stride, int64_t cols) {
  constexpr int kHeld = 4;
  constexpr int64_t kPass = kThreads * width;
  const int64_t source = rows != nullptr ? rows[blockIdx.x] : blockIdx.x;
  const float* from = x + source * x_stride;
  T* to = out + blockIdx.x * out_stride;
  const int64_t first = threadIdx.x * width;
  float values[kHeld][width];
  float factors[kHeld][width];
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if (first + n * kPass < cols) LoadElements(weight + first + n * kPass, factors[n]);
  }
  WaitForPrevious();
  AllowNext();
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if (first + n * kPass < cols) LoadElements(from + first + n * kPass, values[n]);
  }
  float squares = 0.0f;
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if (first + n * kPass >= cols) break;
#pragma unroll
    for (int j = 0; j < width; ++j) squares = fmaf(values[n][j], values[n][j], squares);
  }
#pragma unroll 4
  for (int64_t i = first + kHeld * kPass; i < cols; i += kPass) {
    float value[width];
    LoadElements(from + i, value);
#pragma unroll
    for (int j = 0; j < width; ++j) squares = fmaf(value[j], value[j], squares);
  }
  const float scale = 1.0f / sqrtf(BlockSum(squares) / static_cast<float>(cols) + eps);
#pragma unroll
  for (int n = 0; n < kHeld; ++n) {
    if (first + n * kPass >= cols) return;
#pragma unroll
    for (int j = 0; j < width; ++j) values[n][j] = values[n][j] * scale * factors[n][j];
    StoreNormed<add>(values[n], to + first + n * kPass);
  }
#pragma unroll 4
  for (int64_t i = first + kHeld * kPass; i < cols; i += kPass) {
    float value[width];
    float factor[width];
    LoadElements(from + i, value);
    LoadElements(weight + i, factor);
#pragma unroll
    for (int j = 0; j < width; ++j) value[j] = value[j] * scale * factor[j];
    StoreNormed<add>(value, to + i);
  }
}

template <int width>
__global__ void __launch_bounds__(kThreads)
    AddBiasRows(float* x, int64_t stride, const float* bias, int64_t cols) {
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * width;
  float added[width];
  if (i < cols) LoadElements(bias + i, added);
  WaitForPrevious();
  AllowNext();
  if (i >= cols) return;
  float* at = x + blockIdx.x * stride + i;
  float values[width];
  LoadElements(at, values);
#pragma unroll
  for (int j = 0; j < width; ++j) values[j] += added[j];
  StoreElements(values, at);
}

struct NormHeadsArgs {
  float* q;
  float* k;
  const float* q_weight;
  const float* k_weight;
  int64_t q_stride;
  int64_t k_stride;
  int32_t num_query_heads;
  int32_t num_heads;  // of q and k together
  int32_t head_dim;
  float eps;
};

// A warp takes one head of one row.
__global__ void __launch_bounds__(kThreads) NormHeadRows(NormHeadsArgs args) {
  const auto head = static_cast<int32_t>(blockIdx.y * kWarps + threadIdx.x / 32);
  if (head >= args.num_heads) return;
  const bool query = head < args.num_query_heads;
  HeadVector factors;
  factors.Load(query ? args.q_weight : args.k_weight, args.head_dim);
  WaitForPrevious();
  AllowNext();
  float* at =
      query ? args.q + blockIdx.x * args.q_stride + head * args.head_dim
            : args.k + blockIdx.x * args.k_stride + (head - args.num_query_heads) * args.head_dim;
  HeadVector vector;
  vector.Load(at, args.head_dim);
  vector.Normalise(factors, args.head_dim, args.eps);
  vector.Store(at, args.head_dim);
}

// Thresholds of a tile of rows and heads. A CTA takes one tile at a time. Its warps and lanes share
// the inner dimension: all loads of a pass are in flight at once, and each element is read once per
// tile. Then lanes and warps are summed in a fixed order.
constexpr int32_t kTileRows = 4;
constexpr int32_t kTileHeads = 8;
static_assert(kTileRows * kTileHeads == 32, "one output per lane");

// This warp's share of the tile's products, summed over its lanes: lane r * kTileHeads + h holds
// the sum of row r and head h.
__device__ __forceinline__ float TileSum(const ThresholdArgs& args, int32_t row, int32_t last_row,
                                         int32_t head) {
  float sums[32] = {};
  for (int64_t i = threadIdx.x * 4; i < args.width; i += kThreads * 4) {
    float q[kTileRows][4];
    float w[kTileHeads][4];
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
      LoadElements(args.q + min(row + r, last_row) * args.q_stride + i, q[r]);
    }
#pragma unroll
    for (int h = 0; h < kTileHeads; ++h) {
      LoadElements(args.weight + min(head + h, args.num_heads - 1) * args.width + i, w[h]);
    }
#pragma unroll
    for (int r = 0; r < kTileRows; ++r) {
#pragma unroll
      for (int h = 0; h < kTileHeads; ++h) {
#pragma unroll
        for (int j = 0; j < 4; ++j) sums[r * kTileHeads + h] += q[r][j] * w[h][j];
      }
    }
  }
  return FoldSums(sums);
}

__global__ void __launch_bounds__(kThreads, 2) ThresholdRows(ThresholdArgs args, StepView step) {
  __shared__ float sums[kWarps][32];
  WaitForPrevious();
  AllowNext();
  const int32_t lane = threadIdx.x % 32;
  const auto first_head = static_cast<int32_t>(blockIdx.y) * kTileHeads;
  const int32_t head = first_head + lane % kTileHeads;
  const int32_t stride = static_cast<int32_t>(gridDim.x) * kTileRows;
  for (auto begin = static_cast<int32_t>(blockIdx.x) * kTileRows; begin < step.num_rows;
       begin += stride) {
    const int32_t row = begin + lane / kTileHeads;  // the row whose output this lane has
    const bool inside = row < step.num_rows && head < args.num_heads;
    const StepRow& at = step.rows[min(row, step.num_rows - 1)];
    const bool predicted = IsPredicted(args, at);
    if (__any_sync(~0u, inside && predicted)) {  // every warp sees the same rows
      const float sum = TileSum(args, begin, step.num_rows - 1, first_head);
      __syncthreads();  // all threads have read the previous tile
      sums[threadIdx.x / 32][lane] = sum;
      __syncthreads();
    }
    if (threadIdx.x >= 32 || !inside) continue;
    float threshold = 0.0f;
    if (predicted) {
#pragma unroll
      for (int warp = 0; warp < kWarps; ++warp) threshold += sums[warp][lane];
      threshold += args.bias[head];
    } else {
      threshold = FixedThreshold(args, step, at, head);
    }
    args.out[row * args.out_stride + head] = threshold;
  }
}

template <typename In, typename Out, int width>
__global__ void __launch_bounds__(kThreads)
    SwiGluRows(const In* gate_up, int64_t in_stride, Out* out, int64_t out_stride, int64_t cols,
               Activation activation) {
  WaitForPrevious();
  AllowNext();
  const int64_t i = (static_cast<int64_t>(blockIdx.y) * kThreads + threadIdx.x) * width;
  if (i >= cols) return;
  const In* from = gate_up + blockIdx.x * in_stride + i;
  float gate[width];
  float up[width];
  LoadElements(from, gate);
  LoadElements(from + cols, up);
#pragma unroll
  for (int j = 0; j < width; ++j) gate[j] = Activate(activation, gate[j], up[j]);
  StoreElements(gate, out + blockIdx.x * out_stride + i);
}

}  // namespace

void Embed(Context& context, const void* table, DType table_dtype, int64_t cols, float scale,
           const TensorView& out) {
  const LaunchShape shape = {.grid = Grid(context.step.num_rows), .block = kThreads};
  WithElementType(table_dtype, [&](auto element) {
    using T = decltype(element);
    WithWidth<8>({cols, out.stride}, [&](auto width) {
      Launch(context.device, "Embed", shape, EmbedRows<T, width()>, static_cast<const T*>(table),
             cols, scale, out.data, out.stride, context.step);
    });
  });
}

void RmsNorm(Context& context, const RmsNormParams& params, const int32_t* rows) {
  const LaunchShape shape = {.grid = Grid(params.out.rows), .block = kThreads};
  const int64_t cols = params.x.cols;
  const auto launch = [&](auto kernel, auto* out) {
    Launch(context.device, "RmsNorm", shape, kernel, params.x.data, params.x.stride, params.weight,
           params.eps, rows, out, params.out.stride, cols);
  };
  WithWidth<4>({cols, params.x.stride, params.out.stride}, [&](auto width) {
    if (params.add) return launch(NormRows<float, width(), true>, params.out.data);
    WithElementType(params.out.dtype, [&](auto element) {
      using T = decltype(element);
      launch(NormRows<T, width(), false>, reinterpret_cast<T*>(params.out.data));
    });
  });
}

void AddBias(Context& context, const AddBiasParams& params) {
  const int64_t cols = params.x.cols;
  WithWidth<4>({cols, params.x.stride}, [&](auto width) {
    const LaunchShape shape = {
        .grid = {Grid(params.x.rows), Grid(CeilDiv(cols, kThreads * width()))}, .block = kThreads};
    Launch(context.device, "AddBias", shape, AddBiasRows<width()>, params.x.data, params.x.stride,
           params.bias, cols);
  });
}

void NormHeads(Context& context, const NormHeadsParams& params) {
  const auto query_heads = static_cast<int32_t>(params.q.cols / params.head_dim);
  const NormHeadsArgs args = {
      .q = params.q.data,
      .k = params.k.data,
      .q_weight = params.q_weight,
      .k_weight = params.k_weight,
      .q_stride = params.q.stride,
      .k_stride = params.k.stride,
      .num_query_heads = query_heads,
      .num_heads = query_heads + static_cast<int32_t>(params.k.cols / params.head_dim),
      .head_dim = params.head_dim,
      .eps = params.eps};
  Launch(context.device, "NormHeads",
         {.grid = {Grid(params.q.rows), Grid(CeilDiv(args.num_heads, kWarps))}, .block = kThreads},
         NormHeadRows, args);
}

void PredictThresholds(Context& context, const ThresholdParams& params) {
  const ThresholdArgs args = MakeThresholdArgs(params);
  // Many rows take as many CTAs as the device holds. So a CTA reads its heads' weights from L2 once
  // and finds them in L1 for its further tiles.
  const int64_t head_tiles = CeilDiv(args.num_heads, kTileHeads);
  const int64_t resident = std::max<int64_t>(2 * context.device.num_sms() / head_tiles, 1);
  const int64_t row_tiles = std::min(CeilDiv(context.step.num_rows, kTileRows), resident);
  Launch(context.device, "PredictThresholds",
         {.grid = {Grid(row_tiles), Grid(head_tiles)}, .block = kThreads}, ThresholdRows, args,
         context.step);
}

void SwiGlu(Context& context, const SwiGluParams& params) {
  const int64_t cols = params.out.cols;
  WithElementType(params.gate_up.dtype, [&](auto in) {
    using In = decltype(in);
    WithElementType(params.out.dtype, [&](auto out) {
      using Out = decltype(out);
      WithWidth<8>({cols, params.gate_up.stride, params.out.stride}, [&](auto width) {
        const LaunchShape shape = {
            .grid = {Grid(params.out.rows), Grid(CeilDiv(cols, kThreads * width()))},
            .block = kThreads};
        Launch(context.device, "SwiGlu", shape, SwiGluRows<In, Out, width()>,
               reinterpret_cast<const In*>(params.gate_up.data), params.gate_up.stride,
               reinterpret_cast<Out*>(params.out.data), params.out.stride, cols, params.activation);
      });
    });
  });
}

}  // namespace eta::cuda
