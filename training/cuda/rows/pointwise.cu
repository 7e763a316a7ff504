// The ops that treat every element by itself, or pairs of them. Memory binds.

#include "kernels/cuda/rows/rope.cuh"
#include "training/cuda/rows/column_sums.cuh"
#include "training/cuda/rows/elements.cuh"
#include "training/cuda/rows/ops.h"

namespace eta::training::cuda {
namespace {

template <typename From, typename To, int kWidth>
struct ConvertElements {
  Rows<const From> from;
  Rows<To> to;
  __device__ void operator()(int64_t row, int64_t col) const {
    float values[kWidth];
    from.Load(row, col, values);
    to.Store(values, row, col);
  }
};

template <typename T, int kWidth>
struct AddBiasTo {
  Rows<T> x;
  const float* bias;
  __device__ void operator()(int64_t row, int64_t col) const {
    float values[kWidth];
    x.Load(row, col, values);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) values[i] += bias[col + i];
    x.Store(values, row, col);
  }
};

template <typename T, int kWidth>
struct AddElements {
  Rows<const T> from;
  Rows<T> to;
  __device__ void operator()(int64_t row, int64_t col) const {
    float values[kWidth];
    float sums[kWidth];
    from.Load(row, col, values);
    to.Load(row, col, sums);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) sums[i] += values[i];
    to.Store(sums, row, col);
  }
};

template <typename T>
struct ElementOf {
  Rows<const T> x;
  template <int kWidth>
  __device__ void operator()(int64_t row, int64_t col, float (&out)[kWidth]) const {
    x.Load(row, col, out);
  }
};

template <int kWidth>
struct SwiGluOf {
  Rows<const __nv_bfloat16> gate_up;
  Rows<__nv_bfloat16> out;
  int64_t width;
  __device__ void operator()(int64_t row, int64_t col) const {
    float gate[kWidth];
    float up[kWidth];
    gate_up.Load(row, col, gate);
    gate_up.Load(row, col + width, up);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) up[i] *= gate[i] * Sigmoid(gate[i]);
    out.Store(up, row, col);
  }
};

template <int kWidth>
struct SwiGluGrad {
  Rows<const __nv_bfloat16> gate_up;
  Rows<const __nv_bfloat16> grad_out;
  Rows<__nv_bfloat16> grad_gate_up;
  int64_t width;
  __device__ void operator()(int64_t row, int64_t col) const {
    float gate[kWidth];
    float up[kWidth];
    float grad[kWidth];
    gate_up.Load(row, col, gate);
    gate_up.Load(row, col + width, up);
    grad_out.Load(row, col, grad);
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      const float sigmoid = Sigmoid(gate[i]);
      const float grad_gate = grad[i] * up[i] * sigmoid * (1.0f + gate[i] * (1.0f - sigmoid));
      up[i] = grad[i] * gate[i] * sigmoid;
      gate[i] = grad_gate;
    }
    grad_gate_up.Store(gate, row, col);
    grad_gate_up.Store(up, row, col + width);
  }
};

struct RopeArgs {
  Rows<__nv_bfloat16> q;
  Rows<__nv_bfloat16> k;
  const float2* angles;  // [T, d / 2]
  int32_t query_heads;
  int32_t heads;  // of q and k
  int32_t head_dim;
  int32_t length;
  int64_t rows;
};

// Computes in double precision, so that far positions lose nothing.
__global__ void __launch_bounds__(kThreads)
    ComputeAngles(float2* angles, int32_t length, int32_t head_dim, double theta,
                  RopeScaling scaling, bool inverse, int32_t first, int32_t stride) {
  Begin();
  const int64_t index = ThreadIndex();
  const int32_t half = head_dim / 2;
  if (index >= int64_t{length} * half) return;
  constexpr double kTurn = 6.283185307179586;
  const auto i = static_cast<int32_t>(index % half);
  const double turns = exp2(-2.0 * i / head_dim * log2(theta)) / kTurn;
  double sine;
  double cosine;
  const auto position = static_cast<double>(first + index / half * stride);
  sincospi(position * (2.0 * scaling.Scaled(turns, i)), &sine, &cosine);
  angles[index] =
      make_float2(static_cast<float>(scaling.attention_factor * cosine),
                  static_cast<float>(scaling.attention_factor * (inverse ? -sine : sine)));
}

// A thread rotates kWidth pairs of one head.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) RotateHeads(const __grid_constant__ RopeArgs args) {
  Begin();
  const int32_t half = args.head_dim / 2;
  const int32_t pieces = half / kWidth;
  const int64_t index = ThreadIndex();
  const int64_t row = index / (int64_t{args.heads} * pieces);
  if (row >= args.rows) return;
  const auto rest = static_cast<int32_t>(index % (int64_t{args.heads} * pieces));
  const int32_t head = rest / pieces;
  const int32_t pair = rest % pieces * kWidth;
  const bool is_query = head < args.query_heads;
  const Rows<__nv_bfloat16>& x = is_query ? args.q : args.k;
  const int64_t col = int64_t{is_query ? head : head - args.query_heads} * args.head_dim + pair;
  float first[kWidth];
  float second[kWidth];
  x.Load(row, col, first);
  x.Load(row, col + half, second);
  const float2* angles = args.angles + row % args.length * half + pair;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) eta::cuda::RotatePair(angles[i], first[i], second[i]);
  x.Store(first, row, col);
  x.Store(second, row, col + half);
}

}  // namespace

void Convert(Context& context, const Tensor& from, const Tensor& to) {
  WithType(from.dtype, [&]<typename From>(From) {
    WithType(to.dtype, [&]<typename To>(To) {
      WithWidth(InFours(from) && InFours(to), [&](auto width) {
        LaunchElements<width()>(
            context, "Convert", to.rows, to.cols,
            ConvertElements<From, To, width()>{RowsOf<const From>(from), RowsOf<To>(to)});
      });
    });
  });
}

void AddBias(Context& context, const AddBiasParams& params) {
  WithType(params.x.dtype, [&]<typename T>(T) {
    WithWidth(InFours(params.x), [&](auto width) {
      LaunchElements<width()>(context, "AddBias", params.x.rows, params.x.cols,
                              AddBiasTo<T, width()>{RowsOf<T>(params.x), params.bias});
    });
  });
}

void Add(Context& context, const AddParams& params) {
  WithType(params.to.dtype, [&]<typename T>(T) {
    WithWidth(InFours(params.from) && InFours(params.to), [&](auto width) {
      LaunchElements<width()>(
          context, "Add", params.to.rows, params.to.cols,
          AddElements<T, width()>{RowsOf<const T>(params.from), RowsOf<T>(params.to)});
    });
  });
}

void BiasBackward(Context& context, const BiasBackwardParams& params) {
  const Tensor& grad = params.grad_out;
  WithType(grad.dtype, [&]<typename T>(T) {
    AddColumnSums(context, "BiasBackward", ElementOf<T>{RowsOf<const T>(grad)}, grad.rows,
                  grad.cols, grad.cols, InFours(grad), params.grad_bias);
  });
}

void SwiGlu(Context& context, const SwiGluParams& params) {
  WithWidth(InFours(params.gate_up) && InFours(params.out), [&](auto width) {
    LaunchElements<width()>(context, "SwiGlu", params.out.rows, params.out.cols,
                            SwiGluOf<width()>{RowsOf<const __nv_bfloat16>(params.gate_up),
                                              RowsOf<__nv_bfloat16>(params.out), params.out.cols});
  });
}

void SwiGluBackward(Context& context, const SwiGluBackwardParams& params) {
  const bool fours =
      InFours(params.gate_up) && InFours(params.grad_out) && InFours(params.grad_gate_up);
  WithWidth(fours, [&](auto width) {
    LaunchElements<width()>(
        context, "SwiGluBackward", params.grad_out.rows, params.grad_out.cols,
        SwiGluGrad<width()>{RowsOf<const __nv_bfloat16>(params.gate_up),
                            RowsOf<const __nv_bfloat16>(params.grad_out),
                            RowsOf<__nv_bfloat16>(params.grad_gate_up), params.grad_out.cols});
  });
}

void Rope(Context& context, const RopeParams& params) {
  const int32_t half = params.head_dim / 2;
  const int64_t count = int64_t{params.length} * half;
  auto* angles = static_cast<float2*>(
      context.workspace.Get(Workspace::Use::kSums, static_cast<size_t>(count) * sizeof(float2)));
  if (angles == nullptr) return;
  eta::cuda::Launch(context.device, "Rope", {.grid = BlocksOf(count), .block = kThreads},
                    ComputeAngles, angles, params.length, params.head_dim, params.theta,
                    params.scaling, params.inverse, params.first, params.stride);
  const auto query_heads =
      params.q.empty() ? 0 : static_cast<int32_t>(params.q.cols / params.head_dim);
  const auto kv_heads = static_cast<int32_t>(params.k.cols / params.head_dim);
  const RopeArgs args = {.q = RowsOf<__nv_bfloat16>(params.q),
                         .k = RowsOf<__nv_bfloat16>(params.k),
                         .angles = angles,
                         .query_heads = query_heads,
                         .heads = query_heads + kv_heads,
                         .head_dim = params.head_dim,
                         .length = params.length,
                         .rows = params.k.rows};
  WithWidth(InFours(params.q) && InFours(params.k) && half % 4 == 0, [&](auto width) {
    eta::cuda::Launch(
        context.device, "Rope",
        {.grid = BlocksOf(args.rows * args.heads * (half / width())), .block = kThreads},
        RotateHeads<width()>, args);
  });
}

}  // namespace eta::training::cuda
