// RunIntegerProduct computes out [R, N] = x [R, K] * weight [N, K]^T for one or two rows and
// weights of int8 and int4 alone, with RmsNorm in front and AddBias, the sum with out or SwiGlu
// behind.
//
// Memory binds, if the instructions of a chunk are few. So tensor cores multiply bytes: those of
// int8 as they are, those of int4 after one shift and two masks, and x as digits of a byte
// (integer_rows.cuh). A multiprocessor has one thread block, which takes tiles of 16 channels in
// turns, with SwiGLU one of the gate and what it meets. The warps share the tile's chunks, each
// with a ring of its own; the first chunks are on their way before the kernel waits for its
// predecessor, and a tile's chunks follow the last one's without a pause. A group's sum is exact,
// and is scaled once; then the warps' sums are added in their order.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/packed/integer_product.cuh"
#include "kernels/cuda/packed/integer_rows.cuh"
#include "kernels/cuda/packed/packed_chunk.cuh"
#include "kernels/cuda/packed/packed_finish.cuh"
#include "kernels/cuda/packed/slice_ring.cuh"

namespace eta::cuda::packed {
namespace {

constexpr int kSlots = 3;
constexpr int kSlotBytes = 4 * static_cast<int>(ChunkBytes(PackedType::kInt4));
constexpr size_t kRingBytes = size_t{kIntegerWarps} * kSlots * kSlotBytes;
static_assert(kRingBytes % 128 == 0);

// The bytes of a group that the lane multiplies: of channels r and r + 8, then their other halves.
__device__ __forceinline__ void Bytes(const Chunk<PackedType::kInt8>& chunk, int group,
                                      uint32_t (&a)[4]) {
  const uint4& all = chunk.numbers.of_group[group];
  a[0] = all.x;
  a[1] = all.z;
  a[2] = all.y;
  a[3] = all.w;
}
__device__ __forceinline__ void Bytes(const Chunk<PackedType::kInt4>& chunk, int group,
                                      uint32_t (&a)[4]) {
  constexpr uint32_t kNibbles = 0x0F0F0F0Fu;
  const uint32_t low = group == 0 ? chunk.numbers.x : chunk.numbers.z;
  const uint32_t high = group == 0 ? chunk.numbers.y : chunk.numbers.w;
  a[0] = low & kNibbles;
  a[1] = high & kNibbles;
  a[2] = low >> 4 & kNibbles;
  a[3] = high >> 4 & kNibbles;
}

// The bytes of x in the order of the weight's: those of int8 lie as 0, 2, 1, 3, then 4, 6, 5, 7.
template <PackedType type>
__device__ __forceinline__ uint2 InOrder(uint2 x) {
  if constexpr (type == PackedType::kInt4) return x;
  return {__byte_perm(x.x, x.y, 0x6240), __byte_perm(x.x, x.y, 0x7351)};
}

__host__ __device__ __forceinline__ int32_t WarpsOfTile(const Args& args) {
  return args.product.activated != nullptr ? kIntegerWarps / 2 : kIntegerWarps;
}

// The tile of a task that a warp multiplies.
__device__ __forceinline__ TilePlace TileOf(const Args& args, int32_t task, int32_t warp) {
  if (args.product.activated != nullptr) return {warp / (kIntegerWarps / 2), task};
  const int32_t segment = SegmentOf(args, task);
  return {segment, task - args.segments[segment].first_cluster};
}

__device__ __forceinline__ Slice SliceOf(const Args& args, int32_t task) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const TilePlace place = TileOf(args, task, warp);
  const Segment& segment = args.segments[place.segment];
  return SliceOfTile(segment.type, segment.tiles, place.tile, args.chunks, warp % WarpsOfTile(args),
                     args.slice);
}

// The tasks of the thread block.
struct TaskWalk {
  const Args& args;
  int32_t tasks;
  int32_t task = static_cast<int32_t>(blockIdx.x);

  __device__ __forceinline__ bool done() const { return task >= tasks; }
  __device__ __forceinline__ void Advance() { task += static_cast<int32_t>(gridDim.x); }
  __device__ __forceinline__ Slice Own() const { return SliceOf(args, task); }
};
using ChunkRing = SliceRing<TaskWalk, kSlots, kSlotBytes>;

// Adds a chunk's products to the sums of channels r and r + 8.
template <PackedType type>
__device__ __forceinline__ void MultiplyChunk(const std::byte* from, const IntegerRows& rows,
                                              int32_t at, float (&sums)[2]) {
  Chunk<type> chunk;
  chunk.template Load<InShared>(from);
  const float4 of_x = rows.Scales(at);
#pragma unroll
  for (int group = 0; group < kChunkGroups; ++group) {
    const uint2 x = InOrder<type>(rows.Factor(at, group));
    uint32_t a[4];
    Bytes(chunk, group, a);
    int32_t parts[4] = {};
    MmaBytes(parts, a, x.x, x.y);
    const GroupScales scales = chunk.Scales(group);
    const float scale = group == 0 ? of_x.x : of_x.z;
    const float sum = group == 0 ? of_x.y : of_x.w;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const auto part = static_cast<float>(parts[2 * half] * 256 + parts[2 * half + 1]);
      sums[half] = fmaf(scales.scale[half], scale * part, sums[half]);
      if constexpr (Chunk<type>::kHasLow) sums[half] = fmaf(-scales.low[half], sum, sums[half]);
    }
  }
}

template <PackedType type>
__device__ __forceinline__ void MultiplySlice(const Slice& slice, const IntegerRows& rows,
                                              ChunkRing& ring, float (&sums)[2]) {
  constexpr int kSlotChunks = ChunkRing::SlotChunks(type);
  for (int32_t from = 0; from < slice.count; from += kSlotChunks) {
    const std::byte* slot = ring.Await();
#pragma unroll
    for (int32_t i = 0; i < kSlotChunks; ++i) {
      if (from + i >= slice.count) break;
      MultiplyChunk<type>(slot + i * ChunkBytes(type), rows, slice.first + from + i, sums);
    }
    ring.Release();
  }
}

// The sums of a task's warps. A lane has channels r and r + 8, of a row and its digits.
using TaskSums = float2[kIntegerWarps][32];

// The end of a task, which one warp does. What it needs is on its way while the others multiply.
template <typename T>
struct Ending {
  float units[2][2] = {};  // of a tile, with SwiGLU of two, by channels r and r + 8
  float old[2] = {};

  // Calls visit(half, row, channel) for what the lane stores; `channel` is one of the segment.
  template <typename Visit>
  static __device__ __forceinline__ void ForOutputs(const Args& args, int32_t task, Visit&& visit) {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const TilePlace place = TileOf(args, task, 0);
    const Segment& segment = args.segments[place.segment];
    const int32_t row = lane % 4 / 2;
    if (lane % 2 != 0 || row >= args.product.rows) return;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int32_t channel = place.tile * kTileChannels + lane / 4 + 8 * half;
      if (channel < segment.channels) visit(half, row, channel, segment);
    }
  }

  __device__ __forceinline__ void Load(const Args& args, int32_t task) {
    ForOutputs(args, task, [&](int half, int32_t row, int32_t channel, const Segment& segment) {
      units[0][half] = segment.units[channel];
      if (args.product.activated != nullptr) units[1][half] = args.segments[1].units[channel];
      if (args.product.accumulate) {
        old[half] = product::LoadOut<T>(args.product, row, segment.first_channel + channel);
      }
    });
  }

  __device__ __forceinline__ void Store(const Args& args, int32_t task,
                                        const TaskSums& sums) const {
    const auto lane = static_cast<int32_t>(threadIdx.x % 32);
    const bool activates = args.product.activated != nullptr;
    float totals[2][2] = {};  // of a half of the warps each, with SwiGLU of a tile
#pragma unroll
    for (int warp = 0; warp < kIntegerWarps; ++warp) {
      const float2 more = sums[warp][lane];
      totals[warp / (kIntegerWarps / 2)][0] += more.x;
      totals[warp / (kIntegerWarps / 2)][1] += more.y;
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      if (!activates) totals[0][half] += totals[1][half];
#pragma unroll
      for (auto& of_half : totals) of_half[half] += __shfl_xor_sync(~0u, of_half[half], 1);
    }
    ForOutputs(args, task, [&](int half, int32_t row, int32_t channel, const Segment& segment) {
      StoreOutput<T>(args, segment, row, channel, __fmul_rn(totals[0][half], units[0][half]),
                     old[half], __fmul_rn(totals[1][half], units[1][half]));
    });
  }
};

template <typename T>
__global__ void __launch_bounds__(kIntegerThreads, 1)
    IntegerKernel(const __grid_constant__ Args args, int32_t tasks) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Barrier arrived[kIntegerWarps][kSlots];
  __shared__ TaskSums sums[2];  // of two tasks, in turns
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  ChunkRing ring({args, tasks}, memory + warp * kSlots * kSlotBytes, arrived[warp]);
  ring.Start();
  const IntegerRows rows(args.product, args.chunks, memory + kRingBytes);
  WaitForPrevious();
  AllowNext();
  rows.Fill<T>();
  int32_t count = 0;
  for (TaskWalk walk = {args, tasks}; !walk.done(); walk.Advance(), ++count) {
    const bool ends = warp == count % kIntegerWarps;
    Ending<T> ending;
    if (ends) ending.Load(args, walk.task);
    const Slice slice = walk.Own();
    float own[2] = {};
    if (slice.type == PackedType::kInt4) {
      MultiplySlice<PackedType::kInt4>(slice, rows, ring, own);
    } else {
      MultiplySlice<PackedType::kInt8>(slice, rows, ring, own);
    }
    sums[count % 2][warp][lane] = {own[0], own[1]};
    __syncthreads();
    if (ends) ending.Store(args, walk.task, sums[count % 2]);
  }
  product::RequestAhead(args.product);
}

}  // namespace

bool LaunchInteger(Device& device, DType dtype, int32_t tasks, Args& args) {
  for (int32_t i = 0; i < args.num_segments; ++i) {
    const PackedType type = args.segments[i].type;
    if (type != PackedType::kInt8 && type != PackedType::kInt4) return false;
  }
  constexpr size_t kStatic = 2 * sizeof(TaskSums) + 1024;
  const size_t bytes = kRingBytes + IntegerRows::Bytes(args.product.rows, args.chunks);
  if (bytes + kStatic > device.shared_memory_per_block()) return false;
  const int32_t warps = WarpsOfTile(args);
  args.slice = (args.chunks + warps - 1) / warps;
  WithElementType(dtype, [&](auto element) {
    using T = decltype(element);
    if constexpr (!std::is_same_v<T, float>) {
      Launch(device, "product of packed integers",
             {.grid = static_cast<unsigned>(std::min(tasks, device.num_sms())),
              .block = kIntegerThreads,
              .shared_bytes = bytes},
             IntegerKernel<T>, args, tasks);
    }
  });
  return true;
}

}  // namespace eta::cuda::packed
