// The computing side of decode attention: gate, mask and online softmax of one warp. In its
// tensor-core products the keys are on the long side, so a group of 1 to 16 heads wastes nothing,
// and rows of one list fill what a small group leaves empty.
#pragma once

#include <algorithm>
#include <type_traits>

#include "kernels/cuda/decode/decode_operands.cuh"
#include "kernels/cuda/decode/decode_stages.cuh"
#include "kernels/cuda/device/fast_math.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/quantize.h"

namespace eta::cuda::decode {

// One warp's part of the online softmax of a list: all heads of the group, or the columns of its
// half, over a quarter of the tokens of its stages. A lane holds heads 2t and 2t + 1 of each tile
// of eight, t = lane % 4.
template <typename Element, int D, int HeadTiles, int Halves = 0>
struct WarpState {
  using Tokens = StageTokens<Element, D>;
  using Factor = typename Tokens::Factor;
  static constexpr bool kBundled = Halves > 0;

  // The queries as B operands, each a sum of two Factors. Keys keep all their bits, and so do
  // queries. So a logit is as precise as its keys.
  uint32_t query_high[HeadTiles][D / 16][2];
  uint32_t query_low[HeadTiles][D / 16][2];
  float gate_shift[HeadTiles][2];  // beta * tau_eff, in units of log2
  float max[HeadTiles][2];         // of gated logits, in units of log2
  float sum[HeadTiles][2];         // of this lane's tokens
  float values[HeadTiles][D / 16][4];
  float floor_weight[HeadTiles][2];  // of a pruned key: exp(0 - max) with the floor, else 0
  // If values have scales, weights are multiplied by the scale of their value relative to
  // 2^value_exponent, the largest scale so far. What float16 cannot hold is then small beside it.
  // `values` are relative too.
  int value_exponent;
  // Of bundles: which row of the list a column belongs to, and the tiles with columns.
  int row_of[HeadTiles][2];
  int live_tiles;

  __device__ void Start(const DecodeArgs& args, const ListRows& rows) {
    const int32_t kv_head = rows.kv_head;
    const int32_t group = args.num_query_heads / args.tile.num_kv_heads;
    const int lane = threadIdx.x % 32;
    value_exponent = kMinScaleExponent;
    if constexpr (kBundled) {
      const int columns = rows.count * group - FirstColumn<HeadTiles, Halves>();
      live_tiles = std::min(std::max((columns + 7) / 8, 0), HeadTiles);
    }
    const float* q =
        args.q + rows.first * args.q_stride + static_cast<int64_t>(kv_head) * group * D;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
      const Column of_query(args, rows, tile * 8 + lane / 4);
#pragma unroll
      for (int k = 0; k < D / 16; ++k) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float2 pair = make_float2(0.0f, 0.0f);
          if (of_query.exists) {
            pair = *reinterpret_cast<const float2*>(q + of_query.row * args.q_stride +
                                                    static_cast<int64_t>(of_query.head) * D +
                                                    Tokens::QueryCoordinate(k, half));
          }
          const uint32_t high = PackPair<Factor>(pair.x, pair.y);
          const float2 rounded = UnpackPair<Factor>(high);
          query_high[tile][k][half] = high;
          query_low[tile][k][half] = PackPair<Factor>(pair.x - rounded.x, pair.y - rounded.y);
        }
#pragma unroll
        for (int i = 0; i < 4; ++i) values[tile][k][i] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const Column column(args, rows, tile * 8 + lane % 4 * 2 + i);
        if constexpr (kBundled) row_of[tile][i] = column.row;
        const int32_t row_index = rows.first + column.row;
        const StepRow& row = args.step.rows[row_index];
        const float threshold =
            args.gated && column.exists
                ? args.thresholds[row_index * args.thresholds_stride +
                                  static_cast<int64_t>(kv_head) * group + column.head] -
                      row.attention.offset
                : 0.0f;
        gate_shift[tile][i] = args.beta * kLog2E * threshold;
        const bool floored = !kBundled && column.exists &&
                             HasFloor(args, row, row_index, kv_head * group + column.head);
        max[tile][i] = floored ? 0.0f : kNoScore;
        floor_weight[tile][i] = floored ? 1.0f : 0.0f;
        sum[tile][i] = 0.0f;
      }
    }
  }

  // Adds the warp's 16 tokens of a stage to the first `Live` tiles of its state.
  template <int Live = HeadTiles>
  __device__ void Add(const DecodeArgs& args, const WarpNote& note, const Tokens& tokens) {
    const int lane = threadIdx.x % 32;
    float scores[HeadTiles][4] = {};
    float corrections[HeadTiles][4] = {};
#pragma unroll
    for (int k = 0; k < D / 16; k += Tokens::kLoads) {
      uint32_t a[Tokens::kLoads][4];
      tokens.LoadKeys(k, a);
#pragma unroll
      for (int i = 0; i < Tokens::kLoads; ++i) {
#pragma unroll
        for (int tile = 0; tile < Live; ++tile) {
          const auto& high = query_high[tile][k + i];
          const auto& low = query_low[tile][k + i];
          Mma<Factor>(scores[tile], a[i], high[0], high[1]);
          Mma<Factor>(corrections[tile], a[i], low[0], low[1]);
        }
      }
    }

    if (note.tempered() != 0) Temper(note, scores, corrections);
    const auto is_own = [&](int token, [[maybe_unused]] int tile, [[maybe_unused]] int i) {
      if constexpr (kBundled) {
        return token + note.first_token() == row_of[tile][i];
      } else {
        return token == note.own();
      }
    };

    // Logits in units of log2. A token that is not admitted weighs nothing.
    float logit_scale[2] = {args.scale * kLog2E, args.scale * kLog2E};
    int exponents[2];  // exponents of the values
    bool grows = false;
    if constexpr (Tokens::kScaled) {
      const auto scales = tokens.LoadScales();
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        logit_scale[half] *= scales.key[half];
        exponents[half] = scales.value_exponent[half];
        grows = grows || exponents[half] > value_exponent;
      }
    }
    bool admitted[HeadTiles][4];
#pragma unroll
    for (int tile = 0; tile < Live; ++tile) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int token = Tokens::TokenOfRow(lane / 4 + i / 2 * 8);
        float& logit = scores[tile][i];
        logit = (logit + corrections[tile][i]) * logit_scale[i / 2];
        if (args.gated && !is_own(token, tile, i % 2)) {
          logit *= Reciprocal(1.0f + Exp2(gate_shift[tile][i % 2] - args.beta * logit));
        }
        if constexpr (kBundled) {
          admitted[tile][i] = Sees(note, token, row_of[tile][i % 2]);
        } else {
          const int head = tile * 8 + lane % 4 * 2 + i % 2;
          const bool seen = static_cast<uint32_t>(token - note.before()) <
                            static_cast<uint32_t>(note.valid() - note.before());
          admitted[tile][i] = seen && (note.heads >> head & 1u) != 0;
        }
        grows = grows || (admitted[tile][i] && logit > max[tile][i % 2] + kSlack);
      }
    }
    if (__any_sync(0xffffffffu, grows)) {
      if constexpr (Tokens::kScaled) GrowExponent(std::max(exponents[0], exponents[1]));
      Grow<Live>(scores, admitted);
    }

    uint32_t weights[HeadTiles][2];
    uint32_t weights_low[HeadTiles][2];
#pragma unroll
    for (int tile = 0; tile < Live; ++tile) {
      float p[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const bool no_floor = kBundled || note.Has(WarpNote::kTail);
        const float floor = no_floor ? 0.0f : floor_weight[tile][i % 2];
        p[i] = admitted[tile][i] ? Exp2(scores[tile][i] - max[tile][i % 2]) - floor : 0.0f;
        sum[tile][i % 2] += p[i];
        if constexpr (Tokens::kScaled) {
          p[i] *= PowerOfTwo(exponents[i / 2] - value_exponent + kWeightShift);
        }
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const uint32_t pair = PackPair<Factor>(p[2 * half], p[2 * half + 1]);
        weights[tile][half] = TransposeMatrix(pair);
        if constexpr (kSplitWeights) {
          const float2 rounded = UnpackPair<Factor>(pair);
          weights_low[tile][half] = TransposeMatrix(
              PackPair<Factor>(p[2 * half] - rounded.x, p[2 * half + 1] - rounded.y));
        }
      }
      Tokens::OrderWeights(weights[tile]);
      if constexpr (kSplitWeights) Tokens::OrderWeights(weights_low[tile]);
    }

#pragma unroll
    for (int m = 0; m < D / 16; m += Tokens::kLoads) {
      uint32_t a[Tokens::kLoads][4];
      tokens.LoadValues(m, a);
#pragma unroll
      for (int i = 0; i < Tokens::kLoads; ++i) {
#pragma unroll
        for (int tile = 0; tile < Live; ++tile) {
          float(&sums)[4] = values[tile][m + i];
          Mma<Factor>(sums, a[i], weights[tile][0], weights[tile][1]);
          if constexpr (kSplitWeights) {
            Mma<Factor>(sums, a[i], weights_low[tile][0], weights_low[tile][1]);
          }
        }
      }
    }
  }

  // Column `place` of the warp's: a row of the list, and a head of the group.
  struct Column {
    int32_t row;
    int32_t head;
    bool exists;

    __device__ Column(const DecodeArgs& args, const ListRows& rows, int place) {
      const int32_t group = args.num_query_heads / args.tile.num_kv_heads;
      if constexpr (kBundled) {
        const int32_t column = FirstColumn<HeadTiles, Halves>() + place;
        exists = column < rows.count * group;
        row = exists ? column / group : 0;
        head = column - row * group;
      } else {
        row = 0;
        head = place;
        exists = head < group;
      }
    }
  };

  // Whether a token is a key of row `row` of a bundle.
  __device__ static bool Sees(const WarpNote& note, int token, int row) {
    return token < note.valid() && token + note.first_token() <= row &&
           token + note.from_window() > row;
  }

  // Sets the scores of tempered tokens to 0, the row's own one excepted: the gate leaves 0 as it
  // is.
  __device__ void Temper(const WarpNote& note, float (&scores)[HeadTiles][4],
                         float (&corrections)[HeadTiles][4]) const {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int token = Tokens::TokenOfRow(static_cast<int>(threadIdx.x) % 32 / 4 + i / 2 * 8);
      if ((!kBundled && token == note.own()) || (note.tempered() >> token & 1u) == 0) continue;
#pragma unroll
      for (int tile = 0; tile < HeadTiles; ++tile) {
        if (kBundled && token + note.first_token() == row_of[tile][i % 2]) continue;
        scores[tile][i] = corrections[tile][i] = 0.0f;
      }
    }
  }

  // Raises value_exponent to the largest `exponent` of the lanes.
  __device__ void GrowExponent(int exponent) {
    const int grown = std::max(value_exponent, __reduce_max_sync(0xffffffffu, exponent));
    const float rescale = PowerOfTwo(value_exponent - grown);
    value_exponent = grown;
#pragma unroll
    for (int tile = 0; tile < HeadTiles; ++tile) {
#pragma unroll
      for (int m = 0; m < D / 16; ++m) {
#pragma unroll
        for (int i = 0; i < 4; ++i) values[tile][m][i] *= rescale;
      }
    }
  }

  // Raises the maximum to the largest admitted logit. The maximum may lag behind by kSlack, so that
  // most stages need no agreement on it. Weights then reach 2^kSlack, which every format here can
  // hold.
  template <int Live>
  __device__ void Grow(const float (&logits)[HeadTiles][4], const bool (&admitted)[HeadTiles][4]) {
#pragma unroll
    for (int tile = 0; tile < Live; ++tile) {
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

  // Writes the state to shared memory for FinishList.
  using Layout = SharedLayout<Element, D, HeadTiles, Halves>;
  __device__ void Leave(float* sums, typename Layout::Fixed& fixed) const {
    const int lane = threadIdx.x % 32;
    const int warp = threadIdx.x / 32 + (kTwoHalves<Halves> ? OwnHalf() * kComputeWarps : 0);
    const float unit = Tokens::kScaled ? PowerOfTwo(value_exponent - kWeightShift) : 1.0f;
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
          float* to = sums + (warp * Layout::kHeads + head) * Layout::kSumStride;
          to[Tokens::ValueCoordinate(m, 0)] = unit * values[tile][m][i];
          to[Tokens::ValueCoordinate(m, 1)] = unit * values[tile][m][i + 2];
        }
      }
    }
  }

  static constexpr float kSlack = 8.0f;
  // Relative weights times 2^kWeightShift reach 2^15, where float16 ends.
  static constexpr int kWeightShift = 7;
  // bfloat16 keeps 8 bits of a weight. The other 8 bits go into a product of their own.
  static constexpr bool kSplitWeights = std::is_same_v<Element, BFloat16>;
};

}  // namespace eta::cuda::decode
