// Rope rotates q [R, HQ * d] and k [R, HKV * d] in place by their rows' positions
// (eta-semantics.md, "Model"). The angles of a step's rows are computed once, since they are the
// same in every layer, or of two kinds. Launches bind.

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/rope.cuh"

namespace eta::cuda {
namespace {

constexpr int32_t kThreads = 256;

// Computes in double precision, so that far positions lose nothing.
__global__ void __launch_bounds__(kMaxHeadDim / 2)
    ComputeAngles(float2* angles, int32_t head_dim, RopeScaling scaling, float theta,
                  StepView step) {
  WaitForPrevious();
  AllowNext();
  const StepRow& row = step.rows[blockIdx.x];
  const auto i = static_cast<int32_t>(threadIdx.x);
  const int32_t half = head_dim / 2;
  if (row.role == RowRole::kPadding || i >= half) return;
  constexpr double kTurn = 6.283185307179586;
  const double exponent = -2.0 * i / head_dim;
  const double base = theta > 0.0f ? theta : row.rope_theta;
  const double turns = exp2(exponent * log2(base)) / kTurn;
  double sine;
  double cosine;
  sincospi(row.position * (2.0 * scaling.Scaled(turns, i)), &sine, &cosine);
  angles[static_cast<int64_t>(blockIdx.x) * half + i] =
      make_float2(static_cast<float>(scaling.attention_factor * cosine),
                  static_cast<float>(scaling.attention_factor * sine));
}

struct RopeArgs {
  float* q;
  float* k;
  const float2* angles;  // [R, d / 2]
  int64_t q_stride;
  int64_t k_stride;
  int32_t num_query_heads;
  int32_t num_kv_heads;
  int32_t head_dim;
};

__global__ void __launch_bounds__(kThreads) RotateRows(RopeArgs args, StepView step) {
  constexpr int kHeld = 2;   // pieces of the row that a thread loads at once
  constexpr int kWidth = 4;  // coordinate pairs of a piece
  WaitForPrevious();
  AllowNext();
  if (step.rows[blockIdx.x].role == RowRole::kPadding) return;
  const int32_t half = args.head_dim / 2;
  const int32_t pieces = half / kWidth;  // of a head
  const int32_t count = (args.num_query_heads + args.num_kv_heads) * pieces;
  float* q = args.q + blockIdx.x * args.q_stride;
  float* k = args.k + blockIdx.x * args.k_stride;
  const float2* angles = args.angles + static_cast<int64_t>(blockIdx.x) * half;
  const auto first_of_pair = [&](int32_t piece) {
    const int32_t head = piece / pieces;
    float* at = head < args.num_query_heads ? q + head * args.head_dim
                                            : k + (head - args.num_query_heads) * args.head_dim;
    return at + piece % pieces * kWidth;
  };

  for (int32_t begin = 0; begin < count; begin += kHeld * kThreads) {
    float a[kHeld][kWidth];
    float b[kHeld][kWidth];
    float turn[kHeld][2 * kWidth];  // cosines and sines
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const auto piece = static_cast<int32_t>(begin + n * kThreads + threadIdx.x);
      if (piece >= count) continue;
      LoadElements(first_of_pair(piece), a[n]);
      LoadElements(first_of_pair(piece) + half, b[n]);
      LoadElements(&angles[piece % pieces * kWidth].x, turn[n]);
    }
#pragma unroll
    for (int n = 0; n < kHeld; ++n) {
      const auto piece = static_cast<int32_t>(begin + n * kThreads + threadIdx.x);
      if (piece >= count) continue;
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        RotatePair(make_float2(turn[n][2 * j], turn[n][2 * j + 1]), a[n][j], b[n][j]);
      }
      StoreElements(a[n], first_of_pair(piece));
      StoreElements(b[n], first_of_pair(piece) + half);
    }
  }
}

}  // namespace

const float2* Angles(Context& context, const RopeParams& params) {
  const int32_t num_rows = context.step.num_rows;
  const bool local = params.theta > 0.0f;
  RopeAngles& known = local ? context.local_angles : context.angles;
  if (known.data != nullptr && known.head_dim == params.head_dim &&
      known.scaling == params.scaling && known.theta == params.theta &&
      known.num_rows >= num_rows) {
    return known.data;
  }
  const int32_t half = params.head_dim / 2;
  const size_t bytes = static_cast<size_t>(num_rows) * static_cast<size_t>(half) * sizeof(float2);
  auto* angles = reinterpret_cast<float2*>(
      context.scratch.Get(local ? Scratch::Use::kLocalAngles : Scratch::Use::kAngles, bytes));
  if (angles == nullptr) return nullptr;
  const auto threads = static_cast<unsigned>((half + 31) / 32 * 32);
  Launch(context.device, "Rope", {.grid = static_cast<unsigned>(num_rows), .block = threads},
         ComputeAngles, angles, params.head_dim, params.scaling, params.theta, context.step);
  known = {angles, params.head_dim, num_rows, params.scaling, params.theta};
  return angles;
}

void Rope(Context& context, const RopeParams& params) {
  const RopeArgs args = {.q = params.q.data,
                         .k = params.k.data,
                         .angles = Angles(context, params),
                         .q_stride = params.q.stride,
                         .k_stride = params.k.stride,
                         .num_query_heads = static_cast<int32_t>(params.q.cols / params.head_dim),
                         .num_kv_heads = static_cast<int32_t>(params.k.cols / params.head_dim),
                         .head_dim = params.head_dim};
  if (args.angles == nullptr) return;
  Launch(context.device, "Rope",
         {.grid = static_cast<unsigned>(context.step.num_rows), .block = kThreads}, RotateRows,
         args, context.step);
}

}  // namespace eta::cuda
