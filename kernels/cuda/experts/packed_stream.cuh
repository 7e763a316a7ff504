// The products of few places with packed weights. A task is two tiles of 16 channels, with SwiGlu
// one of the gate and what it meets. Each tile has four warps, which share its chunks
// (task_ring.cuh). A place's sum runs in an order that K alone fixes: by chunks, then by warps.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/cuda/experts/expert_args.cuh"
#include "kernels/cuda/experts/expert_stream.cuh"
#include "kernels/cuda/experts/stream_tasks.cuh"
#include "kernels/cuda/experts/task_ring.cuh"
#include "kernels/cuda/packed/chunk_numbers.cuh"
#include "kernels/cuda/packed/packed_layout.h"
#include "kernels/cuda/packed/packed_multiply.cuh"

namespace eta::cuda::stream {

// The units of a task's two tiles; 0 where there is no tile.
template <bool kSwiGlu, typename Tasks>
__device__ __forceinline__ void LoadUnits(const ExpertArgs& args, const Tasks& task,
                                          packed::LaneUnits (&units)[2]) {
  const std::byte* expert = args.weights + task.expert() * args.stride;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const TileOf<kSwiGlu, Tasks> of(args, task, half);
    if (!of.exists) continue;
    units[half] = packed::UnitsOf(reinterpret_cast<const float*>(expert + of.part.units), of.tile);
  }
}

// Adds a slice's products to the sums of the first kUsed columns.
template <typename T, int kUsed, PackedType type, int kColumns, typename Ring>
__device__ __forceinline__ void MultiplySlice(const ExpertArgs& args, const Slice& slice,
                                              const Rows<kColumns>& rows, Ring& ring,
                                              float (&sums)[kUsed][4]) {
  constexpr int kSlotChunks = Ring::SlotChunks(type);
  constexpr int kAhead = kUsed == 1 ? kSlotChunks : 1;  // chunks of x, as many as registers hold
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  for (int32_t from = 0; from < slice.count; from += kSlotChunks) {
    const std::byte* slot = nullptr;
    uint4 x[kAhead][kUsed][kChunkGroups];
#pragma unroll
    for (int c = 0; c < kSlotChunks; ++c) {
      if (from + c >= slice.count) break;
      if (c % kAhead == 0) {
#pragma unroll
        for (int i = 0; i < kAhead * kUsed * kChunkGroups; ++i) {
          const int ahead = i / (kUsed * kChunkGroups);
          const int column = i / kChunkGroups % kUsed;
          const int32_t chunk = slice.first + from + c + ahead;
          const int32_t k = chunk * kChunk + i % kChunkGroups * 32 + lane % 4 * 8;
          x[ahead][column][i % kChunkGroups] =
              rows[column] != nullptr && k < args.k
                  ? *reinterpret_cast<const uint4*>(rows[column] + int64_t{k} * 2)
                  : uint4{};
        }
      }
      if (c == 0) slot = ring.Await();
      packed::Chunk<type> chunk;
      chunk.template Load<packed::InShared>(slot + c * ChunkBytes(type));
      packed::MultiplyChunk<T>(
          chunk, [&](int column, int group) { return x[c % kAhead][column][group]; },
          [](int, int, const uint4& of_x) { return packed::SumsOfX<T>(of_x); }, sums);
    }
    ring.Release();
  }
}

// MultiplyTasks (stream_tasks.cuh) with packed weights. `memory`: kRingBytes, aligned to 128 bytes.
template <typename T, bool kSwiGlu, int kColumns, typename Tasks, typename Begin, typename Finish>
__device__ __forceinline__ void MultiplyPacked(const ExpertArgs& args, const Tasks& tasks,
                                               std::byte* memory, Sums<kColumns>& shared,
                                               Begin&& begin, Finish&& finish) {
  __shared__ Barrier arrived[kWarps][kSlots];
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  TaskRing<kSwiGlu, Tasks> ring({args, tasks}, memory + warp * kSlots * kSlotBytes, arrived[warp]);
  ring.Start();
  begin();

  int32_t num_tasks = 0;
  int32_t num_sums = 0;
  for (Tasks task = tasks; !task.done(); task.Advance()) {
    const Slice slice = SliceOf<kSwiGlu>(args, task);
    Rows<kColumns> rows;
    FindRows<kColumns>(args, task, rows);
    auto& of_warps = shared[num_tasks++ % 2];
    const int used = kColumns > 1 && task.count() > 8 ? kColumns : 1;
    const bool finishes = warp == num_sums % kWarps;
    packed::LaneUnits units[2] = {};
    if (finishes) LoadUnits<kSwiGlu>(args, task, units);  // on their way meanwhile
    const auto multiply = [&](auto columns) {
      float sums[columns()][4] = {};
      WithPartType(slice.type, [&](auto type) {
        MultiplySlice<T, columns(), type(), kColumns>(args, slice, rows, ring, sums);
      });
#pragma unroll
      for (int i = 0; i < 4 * columns(); ++i) of_warps[warp][i][lane] = sums[i / 4][i % 4];
    };
    if (used == 1) {
      multiply(std::integral_constant<int, 1>());
    } else {
      multiply(std::integral_constant<int, kColumns>());
    }
    __syncthreads();
    if (finishes) {
#pragma unroll
      for (int column = 0; column < kColumns; ++column) {
        if (column >= used) break;
        float of_tiles[2][4] = {};
#pragma unroll
        for (int half = 0; half < 2; ++half) {
#pragma unroll
          for (int w = 0; w < kTileWarps; ++w) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
              of_tiles[half][i] += of_warps[half * kTileWarps + w][4 * column + i][lane];
            }
          }
#pragma unroll
          for (int i = 0; i < 4; ++i) of_tiles[half][i] *= units[half].of[i / 2];
        }
#pragma unroll
        for (int part = 0; part < 2; ++part) {
          float totals[4];
#pragma unroll
          for (int i = 0; i < 4; ++i) {
            totals[i] = kSwiGlu ? of_tiles[i / 2][2 * part + i % 2] : of_tiles[part][i];
          }
          finish(task, part, column, totals);
        }
      }
    }
    if (task.ends_sum()) ++num_sums;
  }
}

template <typename T, bool kSwiGlu, bool kPacked, int kColumns, typename Tasks, typename Begin,
          typename Finish>
__device__ __forceinline__ void MultiplyTasks(const ExpertArgs& args, const Tasks& tasks,
                                              std::byte* memory, Sums<kColumns>& shared,
                                              Begin&& begin, Finish&& finish) {
  if constexpr (kPacked) {
    MultiplyPacked<T, kSwiGlu, kColumns>(args, tasks, memory, shared, begin, finish);
  } else {
    MultiplyWide<T, kSwiGlu, kColumns>(args, tasks, shared, begin, finish);
  }
}

}  // namespace eta::cuda::stream
