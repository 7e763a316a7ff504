// The computing side of decode attention: gate, mask and online softmax of one warp, in tensor-core
// products with the keys on the long side, so that a group of 1 to 16 heads wastes nothing.
#pragma once

#include "kernels/cuda/decode_stages.cuh"
#include "kernels/cuda/mma.cuh"

namespace eta::cuda::decode {

__device__ __forceinline__ float Exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}
__device__ __forceinline__ float Reciprocal(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// Where the 16-byte chunk of a stage's row stands; KvTile::Chunk for the tensor-core geometries.
template <int D>
__device__ __forceinline__ uint32_t ChunkOffset(int token, int chunk) {
  const int place = D == 96 ? chunk ^ ((token >> 1) & 3) : chunk ^ (token & 7);
  return static_cast<uint32_t>(token * D * 2 + place * 16);
}

// One warp's part of the online softmax of a list: all heads of the group over a quarter of the
// tokens. A lane holds heads 2t and 2t + 1 of each tile of eight, t = lane % 4.
template <typename Element, int D, int HeadTiles>
struct WarpState {
  // The queries as B operands, each a sum of two Elements: keys keep all their bits, so queries do
  // too, and a logit is as good as its keys.
  uint32_t query_high[HeadTiles][D / 16][2];
  uint32_t query_low[HeadTiles][D / 16][2];
  float gate_shift[HeadTiles][2];  // beta * tau_eff, in units of log2
  float max[HeadTiles][2];         // of gated logits, in units of log2
  float sum[HeadTiles][2];         // of this lane's tokens
  float values[HeadTiles][D / 16][4];
  float floor_weight[HeadTiles][2];  // of a pruned key: exp(0 - max) with the floor, else 0

  __device__ void Start(const DecodeArgs& args, int32_t row_index, int32_t kv_head) {
    const StepRow& row = args.step.rows[row_index];
    const int32_t group = args.num_query_heads / args.tile.num_kv_heads;
    const int lane = threadIdx.x % 32;
    const float* q = args.q + row_index * args.q_stride + static_cast<int64_t>(kv_head) * group * D;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
      const int column_head = tile * 8 + lane / 4;
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float2 pair = make_float2(0.0f, 0.0f);
          if (column_head < group) {
            pair = *reinterpret_cast<const float2*>(q + static_cast<int64_t>(column_head) * D +
                                                    k * 16 + half * 8 + lane % 4 * 2);
          }
          const uint32_t high = PackPair<Element>(pair.x, pair.y);
          const float2 rounded = UnpackPair<Element>(high);
          query_high[tile][k][half] = high;
          query_low[tile][k][half] = PackPair<Element>(pair.x - rounded.x, pair.y - rounded.y);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) values[tile][k][i] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const int head = tile * 8 + lane % 4 * 2 + i;
        const float threshold =
            head < group ? args.thresholds[row_index * args.thresholds_stride +
                                           static_cast<int64_t>(kv_head) * group + head] -
                               row.offset
                         : 0.0f;
        gate_shift[tile][i] = args.beta * kLog2e * threshold;
        const bool floored = head < group && HasFloor(args, row, row_index, kv_head * group + head);
        max[tile][i] = floored ? 0.0f : kNoScore;
        floor_weight[tile][i] = floored ? 1.0f : 0.0f;
        sum[tile][i] = 0.0f;
      }
    }
  }

  // Adds the warp's 16 tokens of a stage: keys and values are shared-memory addresses of the
  // stage's halves.
  __device__ void Add(const DecodeArgs& args, const WarpNote& note, uint32_t keys, uint32_t vals) {
    const int lane = threadIdx.x % 32;
    const int first_token = threadIdx.x / 32 * 16;
    float scores[HeadTiles][4] = {};
    float corrections[HeadTiles][4] = {};
    const int matrix = lane / 8;
    const int key_row = first_token + matrix % 2 * 8 + lane % 8;
#pragma unroll
    for (int k = 0; k < D / 16; ++k) {
      uint32_t a[4];
      LoadMatrices(a, keys + ChunkOffset<D>(key_row, 2 * k + matrix / 2));
#pragma unroll
      for (int tile = 0; tile < HeadTiles; ++tile) {
        Mma<Element>(scores[tile], a, query_high[tile][k][0], query_high[tile][k][1]);
        Mma<Element>(corrections[tile], a, query_low[tile][k][0], query_low[tile][k][1]);
      }
    }

    // In units of log2; what is not admitted weighs nothing.
    bool admitted[HeadTiles][4];
    bool grows = false;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = lane / 4 + i / 2 * 8;
        const int head = tile * 8 + lane % 4 * 2 + i % 2;
        float& logit = scores[tile][i];
        logit = (logit + corrections[tile][i]) * (args.scale * kLog2e);
        if (args.gated && token != note.own()) {
          logit *= Reciprocal(1.0f + Exp2(gate_shift[tile][i % 2] - args.beta * logit));
        }
        admitted[tile][i] = token < note.valid() && (note.heads >> head & 1u) != 0;
        grows = grows || (admitted[tile][i] && logit > max[tile][i % 2] + kSlack);
      }
    }
    if (__any_sync(0xffffffffu, grows)) Grow(scores, admitted);

    uint32_t weights[HeadTiles][2];
    uint32_t weights_low[HeadTiles][2];
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float floor = note.Has(WarpNote::kTail) ? 0.0f : floor_weight[tile][i % 2];
        p[i] = admitted[tile][i] ? Exp2(scores[tile][i] - max[tile][i % 2]) - floor : 0.0f;
        sum[tile][i % 2] += p[i];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = PackPair<Element>(p[2 * half], p[2 * half + 1]);
        weights[tile][half] = TransposeMatrix(pair);
        if constexpr (kSplitWeights) {
          const float2 rounded = UnpackPair<Element>(pair);
          weights_low[tile][half] = TransposeMatrix(
              PackPair<Element>(p[2 * half] - rounded.x, p[2 * half + 1] - rounded.y));
        }
      }
    }

    const int value_row = first_token + matrix / 2 * 8 + lane % 8;
#pragma unroll
    for (int m = 0; m < D / 16; ++m) {
      uint32_t a[4];
      LoadMatricesTransposed(a, vals + ChunkOffset<D>(value_row, 2 * m + matrix % 2));
#pragma unroll
      for (int tile = 0; tile < HeadTiles; ++tile) {
        Mma<Element>(values[tile][m], a, weights[tile][0], weights[tile][1]);
        if constexpr (kSplitWeights) {
          Mma<Element>(values[tile][m], a, weights_low[tile][0], weights_low[tile][1]);
        }
      }
    }
  }

  // Raises the maximum to the largest admitted logit. It may lag behind by kSlack, so that most
  // stages need not agree on it: weights reach 2^kSlack then, which every format here can hold.
  __device__ void Grow(const float (&logits)[HeadTiles][4], const bool (&admitted)[HeadTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
      float rescale[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float top = fmaxf(admitted[tile][i] ? logits[tile][i] : kNoScore,
                          admitted[tile][i + 2] ? logits[tile][i + 2] : kNoScore);
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 4));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 8));
        top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 16));
        const float grown = fmaxf(max[tile][i], top);
        rescale[i] = Exp2(max[tile][i] - grown);
        max[tile][i] = grown;
        sum[tile][i] *= rescale[i];
        floor_weight[tile][i] *= rescale[i];
      }
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[tile][m][i] *= rescale[i % 2];
      }
    }
  }

  // Hands the state over to the CTA.
  __device__ void Leave(float* sums, typename SharedLayout<D, HeadTiles>::Fixed& fixed) const {
    using Layout = SharedLayout<D, HeadTiles>;
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        float total = sum[tile][i];
        total += __shfl_xor_sync(0xffffffffu, total, 4);
        total += __shfl_xor_sync(0xffffffffu, total, 8);
        total += __shfl_xor_sync(0xffffffffu, total, 16);
        const int head = tile * 8 + lane % 4 * 2 + i;
        if (lane < 4) {
          fixed.max[warp][head] = max[tile][i];
          fixed.sum[warp][head] = total;
        }
#pragma unroll
        for (int m = 0; m < D / 16; ++m) {
          float* to =
              sums + (warp * Layout::kHeads + head) * Layout::kSumStride + m * 16 + lane / 4;
          to[0] = values[tile][m][i];
          to[8] = values[tile][m][i + 2];
        }
      }
    }
  }

  static constexpr float kSlack = 8.0f;
  // bfloat16 keeps 8 bits of a weight; the other 8 go in a product of their own.
  static constexpr bool kSplitWeights = std::is_same_v<Element, BFloat16>;
};

}  // namespace eta::cuda::decode
