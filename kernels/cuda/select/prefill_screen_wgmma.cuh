// SelectPrefillBlocks with wgmma (sm_90a) for float16 records of kind moment at d = 64: what
// prefill_screen.cuh does with the same factors (screen_bounds.cuh), 64 queries by 64 blocks at a
// time. The squares of sigma are taken once for the 64 queries of a CTA, queries are rows of the
// products, and a lane has 16 neighbouring pairs of bits of two masks, so no vote is needed.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/cuda/device/async_copy.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/select/launch_prefill_screen.h"
#include "kernels/cuda/select/prefill_query_masks.cuh"
#include "kernels/cuda/select/screen.cuh"
#include "kernels/cuda/select/screen_bounds.cuh"

namespace eta::cuda {

struct WideScreen {
  static constexpr int kThreads = 32 * kWideScreenWarps;
  static constexpr int kTileBytes = 64 * 64 * 2;        // 64 rows of float16, as products read them
  static constexpr int kStageBytes = 3 * kTileBytes;    // mu, sigma^2, what rounding it lost
  static constexpr int kQueries = 2 * kStageBytes;      // after two stages
  static constexpr int kNorms = kQueries + kTileBytes;  // M of two stages
  static constexpr int kSharedBytes = kNorms + 2 * 64 * 4 + 1024;  // with room to align
};

// The two queries whose scores a lane holds: columns lane / 4 and lane / 4 + 8 of its warp.
struct QueryRows {
  float scale[2];      // s, without the scale of q
  float ceiling[2];    // s |q|: times M it is the bound's ceiling
  float threshold[2];  // tau - offset; +infinity where there is no query
  float z[2];

  // And the operands: q and q^2 as ScreenQueries has them. The rest of q^2 is in shared memory;
  // there are no registers for it.
  uint32_t high[4][4];
  uint32_t low[4][4];
  uint32_t square[4][4];

  __device__ __forceinline__ void Load(const PrefillScreenArgs& args, const QueryMasks& masks,
                                       const StepRow& row, std::byte* square_rest) {
    const int32_t lane = threadIdx.x % 32;
    const int64_t first_head = static_cast<int64_t>(masks.rows.kv_head) * masks.group;
    const float* head_z = HeadZ(args.step, row, args.num_query_heads, first_head);
    uint32_t rest[4][4];
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int32_t column = lane / 4 + 8 * i;
      const bool valid = column < masks.num_queries;
      const int32_t head = column % masks.group;
      const float* q =
          args.q + masks.Row(column) * args.q_stride + (first_head + head) * 64 + lane % 4 * 2;
      float2 pairs[8];
      float norm = 0.0f;
      float largest = 0.0f;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        pairs[k] = valid ? *reinterpret_cast<const float2*>(q + 8 * k) : make_float2(0.0f, 0.0f);
        norm += pairs[k].x * pairs[k].x + pairs[k].y * pairs[k].y;
        largest = fmaxf(largest, fmaxf(fabsf(pairs[k].x), fabsf(pairs[k].y)));
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        norm += __shfl_xor_sync(~0u, norm, step);
        largest = fmaxf(largest, __shfl_xor_sync(~0u, largest, step));
      }
      const PowerScale power(largest);
      scale[i] = args.scale * power.inverse;
      ceiling[i] = args.scale * sqrtf(norm);
      z[i] = head_z != nullptr && valid ? head_z[head] : row.attention.z;
      threshold[i] = INFINITY;
      if (valid) {
        threshold[i] =
            args.thresholds[masks.Row(column) * args.thresholds_stride + first_head + head] -
            row.attention.offset;
      }
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float x = pairs[k].x * power.factor;
        const float y = pairs[k].y * power.factor;
        const int at = k % 2 * 2 + i;
        SplitPair(x, y, high[k / 2][at], low[k / 2][at]);
        SplitPair(x * x, y * y, square[k / 2][at], rest[k / 2][at]);
      }
    }
    wgmma::WriteRows(square_rest, static_cast<int32_t>(threadIdx.x / 32) * 16, rest);
  }
};

// A thread's share of a stage's records: the same chunk of 16 bytes of mu and of sigma, of four
// blocks.
struct RecordShare {
  // Requests the records of blocks [first, end), at most 64.
  __device__ __forceinline__ static void Request(const PrefillScreenArgs& args,
                                                 const int32_t* table, int32_t kv_head,
                                                 int32_t first, int32_t end, std::byte* stage,
                                                 float* norms) {
    const KvTile& tile = args.tile;
    const auto chunk = static_cast<int32_t>(threadIdx.x % 8);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const int32_t block = static_cast<int32_t>(threadIdx.x / 8) + 16 * i;
      if (first + block >= end) return;
      const std::byte* record =
          args.records + static_cast<size_t>(table[first + block]) * tile.record_bytes();
      std::byte* to = stage + Place(block);
      CopyAsync<16>(to, record + tile.Mu(kv_head) + chunk * 16);
      CopyAsync<16>(to + WideScreen::kTileBytes, record + tile.Sigma(kv_head) + chunk * 16);
      if (chunk == 0) CopyAsync<4>(norms + block, record + tile.Scalars(kv_head));
    }
  }

  // Squares what this thread requested, once it has arrived.
  __device__ __forceinline__ static void SquareDeviations(std::byte* stage) {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      auto* sigma = reinterpret_cast<uint4*>(stage + WideScreen::kTileBytes +
                                             Place(static_cast<int32_t>(threadIdx.x / 8) + 16 * i));
      const uint4 from = *sigma;
      uint4 top;
      uint4 rest;
      Square(from.x, top.x, rest.x);
      Square(from.y, top.y, rest.y);
      Square(from.z, top.z, rest.z);
      Square(from.w, top.w, rest.w);
      *sigma = top;
      sigma[WideScreen::kTileBytes / 16] = rest;
    }
  }

 private:
  __device__ __forceinline__ static int32_t Place(int32_t block) {
    return block * 128 + ((static_cast<int32_t>(threadIdx.x % 8) ^ (block & 7)) * 16);
  }
};

// The best bounds of the lane's two queries among their first blocks.
struct BestOfRows {
  float bound[2] = {-INFINITY, -INFINITY};
  int32_t block[2] = {0, 0};

  // The block with the best bound of column `lane`.
  __device__ __forceinline__ int32_t Block() const {
    uint64_t own = 0;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      auto key = static_cast<unsigned long long>(BoundKey(bound[i], block[i]));
      key = max(key, __shfl_xor_sync(~0u, key, 1));
      key = max(key, __shfl_xor_sync(~0u, key, 2));
      key = __shfl_sync(~0u, key, threadIdx.x % 8 * 4);
      if (threadIdx.x % 32 / 8 == i) own = key;
    }
    return BlockOfKey(own);
  }
};

// A word of the mask of column `lane`, from the bits of the lane's two queries: bit 8 (n % 4) + e
// of bits[i][n / 4] is block 8 n + own + e.
__device__ __forceinline__ uint64_t WordOfColumn(const uint32_t (&bits)[2][2], int32_t own) {
  uint64_t word = 0;
#pragma unroll
  for (int i = 0; i < 2; ++i) {
    auto whole =
        static_cast<unsigned long long>(static_cast<uint64_t>(bits[i][1]) << 32 | bits[i][0])
        << own;
    whole |= __shfl_xor_sync(~0u, whole, 1);
    whole |= __shfl_xor_sync(~0u, whole, 2);
    whole = __shfl_sync(~0u, whole, threadIdx.x % 8 * 4);
    if (threadIdx.x % 32 / 8 == i) word = whole;
  }
  return word;
}

__global__ void __launch_bounds__(WideScreen::kThreads, 3)
    WidePrefillScreen(const __grid_constant__ PrefillScreenArgs args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Shape = WideScreen;
  extern __shared__ std::byte unaligned[];
  std::byte* shared = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  auto* norms = reinterpret_cast<float*>(shared + Shape::kNorms);
  const ScreenWork work(args);
  if (work.sequence.num_rows == 0) return;
  const StepRow& row = args.step.rows[work.sequence.row_begin + work.begin];
  QueryMasks masks(args, work.RowsOfWarp(args), row.attention);
  WaitForPrevious();
  AllowNext();
  if (blockIdx.x == 0 && threadIdx.x == 0) args.plan->lists_made = 0;
  const int32_t end = work.FullBlocks(args);
  const int32_t* table = args.step.tables + work.sequence.table_begin;
  RecordShare::Request(args, table, work.kv_head, 0, min(end, 64), shared, norms);
  CommitGroup();
  QueryRows queries;
  queries.Load(args, masks, row, shared + Shape::kQueries);
  const uint64_t square_rest = wgmma::Describe(SharedAddress(shared) + Shape::kQueries);
  const int32_t own = 2 * static_cast<int32_t>(threadIdx.x % 4);
  const int32_t column = static_cast<int32_t>(threadIdx.x % 32 / 4);
  const int32_t warp_full = masks.rows.num_rows > 0 ? masks.FullBlocks(masks.num_queries - 1) : 0;
  const bool may_rescue = __any_sync(~0u, masks.MayRescue());
  const int32_t firsts[2] = {masks.Chunk(masks.FullBlocks(column)),
                             masks.Chunk(masks.FullBlocks(column + 8))};
  BestOfRows best;

  for (int32_t first = 0, side = 0; first < end; first += 64, side ^= 1) {
    std::byte* stage = shared + side * Shape::kStageBytes;
    WaitGroups<0>();
    RecordShare::SquareDeviations(stage);
    wgmma::PublishWrites();
    __syncthreads();  // all have squared theirs, and have left the other side
    const uint32_t at = SharedAddress(stage);
    const uint64_t mu = wgmma::Describe(at);
    const uint64_t top = wgmma::Describe(at + Shape::kTileBytes);
    const uint64_t rest = wgmma::Describe(at + 2 * Shape::kTileBytes);
    float bounds[8][4];  // at first <q, mu>
    float squares[8][4];
    wgmma::Fence();
    wgmma::Multiply<Half, false, false>(squares, queries.square[0], top);
    wgmma::Multiply<Half, false, false>(bounds, queries.high[0], mu);
#pragma unroll
    for (int k = 0; k < 4; ++k) {
      const uint64_t step = k * wgmma::kInnerStep;
      if (k > 0) {
        wgmma::Multiply<Half, false, true>(squares, queries.square[k], top + step);
        wgmma::Multiply<Half, false, true>(bounds, queries.high[k], mu + step);
      }
      wgmma::Multiply<Half, false, true>(squares, queries.square[k], rest + step);
      wgmma::MultiplyShared<Half, true>(squares, square_rest + step, top + step);
      wgmma::Multiply<Half, false, true>(bounds, queries.low[k], mu + step);
    }
    wgmma::Commit();
    if (first + 64 < end) {
      RecordShare::Request(args, table, work.kv_head, first + 64, min(end, first + 128),
                           shared + (side ^ 1) * Shape::kStageBytes, norms + (side ^ 1) * 64);
      CommitGroup();
    }
    wgmma::Wait<0>();
    wgmma::Pin(bounds);
    wgmma::Pin(squares);
    uint32_t bits[2][2] = {};
#pragma unroll
    for (int n = 0; n < 8; ++n) {
      const float2 norm = *reinterpret_cast<const float2*>(norms + side * 64 + 8 * n + own);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = e / 2;
        // A variance that float16 cannot hold comes out as NaN; then only the norms bound the
        // score.
        const float estimate =
            queries.scale[i] *
            (bounds[n][e] + queries.z[i] * SquareRoot(NotBelowZero(squares[n][e])));
        bounds[n][e] = fminf(estimate, queries.ceiling[i] * (e % 2 == 0 ? norm.x : norm.y));
        if (bounds[n][e] >= queries.threshold[i]) bits[i][n / 4] |= 1u << (n % 4 * 8 + e % 2);
      }
    }
    if (may_rescue && first < masks.rescue_chunk) {
#pragma unroll
      for (int n = 0; n < 8; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const int i = e / 2;
          const int32_t block = first + 8 * n + own + e % 2;
          if (block < firsts[i] && bounds[n][e] > best.bound[i]) {
            best.bound[i] = bounds[n][e];
            best.block[i] = block;
          }
        }
      }
    }
    if (first < warp_full) {
      masks.word = WordOfColumn(bits, own);
      masks.Store(args, first / 64);
    }
  }
  masks.Finish(args, (warp_full + 63) / 64, may_rescue ? best.Block() : 0);
#else
  __trap();
#endif
}

}  // namespace eta::cuda
