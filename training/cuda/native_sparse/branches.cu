// The gated sum of the branches' outputs, and its gradients. Memory binds.

#include "training/cuda/native_sparse/native_sparse.h"
#include "training/cuda/rows/elements.cuh"

namespace eta::training::cuda {
namespace {

constexpr int kMixLanes = 16;  // threads of a head of a row

struct BranchRows {
  Rows<__nv_bfloat16> of[kBranches];
};

BranchRows BranchesOf(const std::array<Tensor, kBranches>& branches) {
  BranchRows rows;
  for (size_t c = 0; c < branches.size(); ++c) rows.of[c] = RowsOf<__nv_bfloat16>(branches[c]);
  return rows;
}

bool BranchesInFours(const std::array<Tensor, kBranches>& branches) {
  return InFours(branches[0]) && InFours(branches[1]) && InFours(branches[2]);
}

__device__ __forceinline__ float GateAt(const Rows<const __nv_bfloat16>& gates, int64_t row,
                                        int32_t col) {
  return Sigmoid(eta::cuda::ToFloat(*gates.At(row, col)));
}

template <int kWidth>
struct MixOf {
  Rows<const __nv_bfloat16> gates;
  BranchRows branches;
  Rows<__nv_bfloat16> out;
  int32_t heads;
  int32_t head_dim;
  __device__ void operator()(int64_t row, int64_t col) const {
    const int32_t head = static_cast<int32_t>(col) / head_dim;
    float sum[kWidth] = {};
#pragma unroll
    for (int c = 0; c < kBranches; ++c) {
      const float gate = GateAt(gates, row, c * heads + head);
      float values[kWidth];
      branches.of[c].Load(row, col, values);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) sum[i] = fmaf(gate, values[i], sum[i]);
    }
    out.Store(sum, row, col);
  }
};

// Gradients may lie where what they belong to lay.
struct MixGradArgs {
  Rows<const __nv_bfloat16> gates;
  BranchRows branches;
  Rows<const __nv_bfloat16> grad_out;
  Rows<__nv_bfloat16> grad_gates;
  BranchRows grad_branches;
  int64_t rows;
  int32_t heads;
  int32_t head_dim;
};

// kMixLanes threads take one head of one row.
template <int kWidth>
__global__ void __launch_bounds__(kThreads) MixGrad(const __grid_constant__ MixGradArgs args) {
  Begin();
  const int64_t index = ThreadIndex() / kMixLanes;
  const int64_t row = index / args.heads;
  if (row >= args.rows) return;
  const auto head = static_cast<int32_t>(index % args.heads);
  const int32_t lane = threadIdx.x % kMixLanes;
  float gate[kBranches];
  float sum[kBranches] = {};
#pragma unroll
  for (int c = 0; c < kBranches; ++c) gate[c] = GateAt(args.gates, row, c * args.heads + head);
  for (int32_t i = lane * kWidth; i < args.head_dim; i += kMixLanes * kWidth) {
    const int64_t col = int64_t{head} * args.head_dim + i;
    float grad[kWidth];
    args.grad_out.Load(row, col, grad);
#pragma unroll
    for (int c = 0; c < kBranches; ++c) {
      float values[kWidth];
      args.branches.of[c].Load(row, col, values);
#pragma unroll
      for (int e = 0; e < kWidth; ++e) {
        sum[c] = fmaf(grad[e], values[e], sum[c]);
        values[e] = gate[c] * grad[e];
      }
      args.grad_branches.of[c].Store(values, row, col);
    }
  }
  const uint32_t lanes = 0xffffu << (threadIdx.x % 32 / kMixLanes * kMixLanes);
#pragma unroll
  for (int c = 0; c < kBranches; ++c) {
#pragma unroll
    for (int step = kMixLanes / 2; step > 0; step /= 2) {
      sum[c] += __shfl_xor_sync(lanes, sum[c], step);
    }
    if (lane == 0) {
      *args.grad_gates.At(row, c * args.heads + head) =
          __float2bfloat16_rn(sum[c] * gate[c] * (1.0f - gate[c]));
    }
  }
}

}  // namespace

void MixBranches(Context& context, const MixBranchesParams& params) {
  const auto head_dim = static_cast<int32_t>(params.out.cols / params.num_heads);
  const bool fours = InFours(params.out) && BranchesInFours(params.branches) && head_dim % 4 == 0;
  WithWidth(fours, [&](auto width) {
    LaunchElements<width()>(
        context, "MixBranches", params.out.rows, params.out.cols,
        MixOf<width()>{RowsOf<const __nv_bfloat16>(params.gates), BranchesOf(params.branches),
                       RowsOf<__nv_bfloat16>(params.out), params.num_heads, head_dim});
  });
}

void MixBranchesBackward(Context& context, const MixBranchesBackwardParams& params) {
  const MixBranchesParams& forward = params.forward;
  const Tensor& grad_out = params.grad_out;
  const auto head_dim = static_cast<int32_t>(grad_out.cols / forward.num_heads);
  const bool fours = InFours(grad_out) && BranchesInFours(forward.branches) &&
                     BranchesInFours(params.grad_branches) && head_dim % 4 == 0;
  const MixGradArgs args = {.gates = RowsOf<const __nv_bfloat16>(forward.gates),
                            .branches = BranchesOf(forward.branches),
                            .grad_out = RowsOf<const __nv_bfloat16>(grad_out),
                            .grad_gates = RowsOf<__nv_bfloat16>(params.grad_gates),
                            .grad_branches = BranchesOf(params.grad_branches),
                            .rows = grad_out.rows,
                            .heads = forward.num_heads,
                            .head_dim = head_dim};
  WithWidth(fours, [&](auto width) {
    eta::cuda::Launch(context.device, "MixBranchesBackward",
                      {.grid = BlocksOf(args.rows * args.heads * kMixLanes), .block = kThreads},
                      MixGrad<width()>, args);
  });
}

}  // namespace eta::training::cuda
