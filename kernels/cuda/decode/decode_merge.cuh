// The end of a list's sums in decode attention. Either they become the result, with the floor and
// the head's sink added, or a partial result that a kernel of its own merges with those of other
// units.
#pragma once

#include "kernels/cuda/decode/decode_softmax.cuh"
#include "kernels/cuda/device/launch.cuh"

namespace eta::cuda::decode {

__device__ __forceinline__ void AddScaled(float4& to, float factor, const float4& value) {
  to.x += factor * value.x;
  to.y += factor * value.y;
  to.z += factor * value.z;
  to.w += factor * value.w;
}

// Where the result of one list goes, and the floor's part of it. A column is a head of the group,
// and in a launch of bundles one of any of the list's rows.
template <int D, bool kBundled = false>
struct Result {
  int32_t row = 0;  // the first
  int32_t kv_head = 0;
  int32_t group = 0;
  int32_t columns = 0;
  int32_t full_tokens = 0;        // tokens of full blocks if a head may have a floor, else 0
  const float* totals = nullptr;  // the sum of V over these tokens [D]

  Result() = default;
  __device__ Result(const DecodeArgs& args, const ListRows& rows)
      : row(rows.first),
        kv_head(rows.kv_head),
        group(args.num_query_heads / args.tile.num_kv_heads),
        columns(kBundled ? rows.count * group : group) {
    if constexpr (kBundled) return;  // its rows prune nothing
    const StepRow& step_row = args.step.rows[row];
    const int32_t num_full = (step_row.position + 1) / args.tile.block_size;
    if (!args.gated || !step_row.attention.uniform_floor || step_row.attention.admit_all ||
        num_full == 0) {
      return;
    }
    const int32_t last = args.step.tables[step_row.table_begin + num_full - 1];
    full_tokens = num_full * args.tile.block_size;
    totals = ValueTotal(args.tile, args.records, last, kv_head);
  }

  __device__ int32_t RowOf(int column) const { return kBundled ? row + column / group : row; }
  __device__ int32_t HeadOf(int column) const {
    return kv_head * group + (kBundled ? column % group : column);
  }

  // The floor's part of elements i .. i + 3 of a column and of its sum of weights, at weight 1.
  struct Floor {
    float4 values = {};
    float keys = 0.0f;
  };
  __device__ Floor FloorOf(const DecodeArgs& args, int column, int i) const {
    if (kBundled || full_tokens == 0 || !HasFloor(args, args.step.rows[row], row, HeadOf(column))) {
      return {};
    }
    return {*reinterpret_cast<const float4*>(totals + i), static_cast<float>(full_tokens)};
  }

  // Finishes elements i .. i + 3 of a column: adds floor and sink, divides by the sum of weights
  // and stores. The floor covers full blocks only, since every head admits the tail and its floor
  // would cancel.
  __device__ void Store(const DecodeArgs& args, int column, int i, float max, float sum,
                        float4 value, const Floor& floor) const {
    const float share = Exp2(-max);
    if (floor.keys > 0.0f) {
      sum += share * floor.keys;
      AddScaled(value, share, floor.values);
    }
    // Far above the maximum a sink's weight is infinite, and the output 0.
    if (args.sinks != nullptr) {
      sum += Exp2(args.sinks[HeadOf(column)] * kLog2E - max);
    }
    const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
    value = make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor);
    const int64_t at =
        RowOf(column) * args.out_stride + static_cast<int64_t>(HeadOf(column)) * D + i;
    if (args.out_dtype == DType::kFloat32) {
      reinterpret_cast<float4*>(args.out)[at / 4] = value;
    } else if (args.out_dtype == DType::kFloat16) {
      reinterpret_cast<uint2*>(args.out)[at / 4] =
          make_uint2(PackPair<Half>(value.x, value.y), PackPair<Half>(value.z, value.w));
    } else {
      reinterpret_cast<uint2*>(args.out)[at / 4] =
          make_uint2(PackPair<BFloat16>(value.x, value.y), PackPair<BFloat16>(value.z, value.w));
    }
  }
};

// The partial result of one unit for a list that other units share.
template <int D, int HeadTiles, int Halves = 0>
struct Partial {
  static constexpr int kHeads = 8 * HeadTiles * (Halves == kShareColumns ? 2 : 1);
  static constexpr int64_t kFloats = kHeads * (D + 2);
  float* values;  // [heads, D], then m [heads] and l [heads]

  // A unit begins inside at most one list and ends inside at most one more, so it has two places.
  __device__ Partial(const DecodeArgs& args, int32_t unit, bool begins_list)
      : values(args.partials + (static_cast<int64_t>(unit) * 2 + (begins_list ? 1 : 0)) * kFloats) {
  }
  __device__ float* Max() const { return values + kHeads * D; }
  __device__ float* Sum() const { return Max() + kHeads; }
};

// A merging CTA has one column of a list if lists are few and have many parts, else two.
inline constexpr int kMergeThreads = 256;

// Merges the partial results of the lists that several units share, in a fixed order. Of each head
// every lane, D / 4 threads wide, takes every kLanes-th partial result.
template <int D, int HeadTiles, int Halves, int kMergeHeads>
__global__ void __launch_bounds__(kMergeThreads)
    MergeKernel(const __grid_constant__ DecodeArgs args, int32_t decode_ctas) {
  constexpr int kQuads = D / 4;
  constexpr int kLanes = kMergeThreads / (kQuads * kMergeHeads);
  constexpr int kBatch = 6;
  __shared__ float4 values[kLanes][kMergeHeads][kQuads];
  __shared__ float maxima[kLanes][kMergeHeads];
  __shared__ float sums[kLanes][kMergeHeads];
  const int32_t list = blockIdx.x;
  const int quad = threadIdx.x % kQuads;
  const int in_cta = threadIdx.x / kQuads % kMergeHeads;
  const int lane = threadIdx.x / (kQuads * kMergeHeads);
  const int32_t head = blockIdx.y * kMergeHeads + in_cta;
  // These reads need nothing of the decode kernel. Whatever came before the decode kernel was
  // complete when it let this kernel start.
  using ListResult = Result<D, (Halves > 0)>;
  const ListResult result(args, RowsOf<(Halves > 0)>(args, list));
  const bool exists = head < result.columns && lane < kLanes;
  const typename ListResult::Floor floor =
      exists ? result.FloorOf(args, head, quad * 4) : typename ListResult::Floor{};
  WaitForPrevious();
  AllowNext();
  const int32_t begin = args.begin[list];
  const int32_t end = args.begin[list + 1];
  const Units units(args.begin[args.num_lists], decode_ctas);
  if (begin == end) {  // the row has no key, or is no decode row
    if (exists && lane == 0 && args.step.rows[result.row].role == RowRole::kDecode) {
      result.Store(args, head, quad * 4, 0.0f, 0.0f, {}, floor);
    }
    return;
  }
  const int32_t first = units.Of(begin);
  const int32_t last = units.Of(end - 1);
  if (first == last) return;

  float max = kNoScore;
  float sum = 0.0f;
  float4 value = {};
  if (exists) {
    for (int32_t batch = first + lane; batch <= last; batch += kBatch * kLanes) {
      float batch_max[kBatch];
      float batch_sum[kBatch];
      float4 batch_value[kBatch];
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const int32_t unit = batch + n * kLanes;
        const bool inside = unit <= last;
        const Partial<D, HeadTiles, Halves> part(args, inside ? unit : last, unit == first);
        batch_max[n] = inside ? part.Max()[head] : kNoScore;
        batch_sum[n] = inside ? part.Sum()[head] : 0.0f;
        batch_value[n] =
            inside ? reinterpret_cast<const float4*>(part.values)[head * kQuads + quad] : float4{};
      }
      float top = max;
#pragma unroll
      for (int n = 0; n < kBatch; ++n) top = fmaxf(top, batch_max[n]);
      const float factor = Exp2(max - top);
      max = top;
      sum *= factor;
      value = make_float4(value.x * factor, value.y * factor, value.z * factor, value.w * factor);
#pragma unroll
      for (int n = 0; n < kBatch; ++n) {
        const float weight = Exp2(batch_max[n] - max);
        sum += weight * batch_sum[n];
        AddScaled(value, weight, batch_value[n]);
      }
    }
  }
  if (lane < kLanes) {
    values[lane][in_cta][quad] = value;
    if (quad == 0) {
      maxima[lane][in_cta] = max;
      sums[lane][in_cta] = sum;
    }
  }
  __syncthreads();
  if (lane != 0 || !exists) return;
  float top = maxima[0][in_cta];
  for (int i = 1; i < kLanes; ++i) top = fmaxf(top, maxima[i][in_cta]);
  float total = 0.0f;
  float4 out = {};
  for (int i = 0; i < kLanes; ++i) {
    const float weight = Exp2(maxima[i][in_cta] - top);
    total += weight * sums[i][in_cta];
    AddScaled(out, weight, values[i][in_cta][quad]);
  }
  result.Store(args, head, quad * 4, top, total, out, floor);
}

}  // namespace eta::cuda::decode
