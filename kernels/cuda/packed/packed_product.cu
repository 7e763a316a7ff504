// RunPackedProduct computes out [R, N] = x [R, K] * weight [N, K]^T for up to 64 rows and weights
// of 4 to 8 bits, with RmsNorm in front and AddBias, the sum with out or SwiGlu behind.
//
// Memory binds: weights are read once, and all else is small. A thread block has 128 channels, a
// tile of 16 for each warp, and a slice of K; the thread blocks of a cluster have the slices of the
// same channels. Chunks go from memory into registers, several ahead of the tensor cores; the first
// of them are on their way before the kernel waits for its predecessor. Rows of x come through a
// ring in shared memory. A group's sum is exact in its products, is scaled once, and is added in
// the order of K; at the end the slices' sums are added in the order of their ranks.

#include <algorithm>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/packed/packed_args.cuh"
#include "kernels/cuda/packed/packed_chunk.cuh"
#include "kernels/cuda/packed/packed_finish.cuh"
#include "kernels/cuda/packed/packed_product.h"
#include "kernels/cuda/packed/packed_ring.cuh"
#include "kernels/cuda/rows/row_norm.cuh"

namespace eta::cuda {
namespace packed {
namespace {

using product::NormMemory;

constexpr int kMostCtasPerSm = 2;

// Of two rows of a column: the sums of x over a group. A row has the same bits whichever warp adds
// it up.
template <typename T>
__device__ __forceinline__ float2 SumsOfX(const uint4 (&x)[1]) {
  constexpr uint4 kAll = {kOnes<T>, kOnes<T>, kOnes<T>, kOnes<T>};
  float sums[1][4] = {};
  product::Multiply<T>(kAll, kAll, x, sums);
  return {sums[0][0], sums[0][1]};
}

// Adds a chunk's products: of each group the sum, scaled, less the minimum times the sum of x.
// `load_x(column, group)`: the lane's numbers of x. `sums_of_x(column, group, x)`: SumsOfX of them.
template <typename T, int kColumns, typename Loaded, typename LoadX, typename SumX>
__device__ __forceinline__ void MultiplyChunk(const Loaded& chunk, const LoadX& load_x,
                                              const SumX& sums_of_x, float (&sums)[kColumns][4]) {
#pragma unroll
  for (int group = 0; group < kChunkGroups; ++group) {
    const uint4 low = chunk.template Widen<T>(group, 0);
    const uint4 high = chunk.template Widen<T>(group, 1);
    const GroupScales scales = chunk.Scales(group);
#pragma unroll
    for (int column = 0; column < kColumns; ++column) {
      const uint4 x[1] = {load_x(column, group)};
      float part[1][4] = {};
      product::Multiply<T>(low, high, x, part);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[column][i] = fmaf(scales.scale[i / 2], part[0][i], sums[column][i]);
      }
      if constexpr (Loaded::kHasLow) {
        const float2 of_x = sums_of_x(column, group, x);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          const float sum = i % 2 == 0 ? of_x.x : of_x.y;
          sums[column][i] = fmaf(-scales.low[i / 2], sum, sums[column][i]);
        }
      }
    }
  }
}

// The sums of x over a stage's groups, in shared memory: with many rows every warp would compute
// the same ones.
template <int kColumns>
using StageSums = float2[kStageChunks * kChunkGroups][kColumns * 4];

template <int kColumns>
inline constexpr bool kSharesSums = kColumns >= 4;

// Chunks that a warp has in flight. Sums of many rows, and those of a norm, need the registers.
template <PackedType type, int kColumns, bool kNorm>
inline constexpr int kDepth = type == PackedType::kSixteen ? 2
                              : kNorm || kColumns > 2      ? 4
                              : type == PackedType::kInt4  ? 8
                                                           : 6;

// All warps of a thread block pass the same stages, those without a tile too.
template <typename T, int kColumns, bool kNorm, PackedType type>
__device__ __forceinline__ void MultiplySlice(const Args& args, const std::byte* chunks,
                                              int32_t first_chunk, int32_t num_chunks,
                                              std::byte* memory, float (&sums)[kColumns][4]) {
  constexpr int kInFlight = kDepth<type, kColumns, kNorm>;
  Chunk<type> loaded[kInFlight];
#pragma unroll
  for (int d = 0; d < kInFlight; ++d) {
    if (chunks != nullptr && d < num_chunks) loaded[d].Load(chunks + d * ChunkBytes(type));
  }
  const NormMemory<T> norm(args.product, memory);
  Ring<T, kColumns> ring(args.product, memory, first_chunk * kChunk);
  const int32_t num_stages = (num_chunks + kStageChunks - 1) / kStageChunks;
  if constexpr (kNorm) norm.RequestFactors(args.product);
  WaitForPrevious();
  AllowNext();
  if constexpr (kNorm) {
    NormaliseRows(args.product, norm);
  } else {
    ring.ClearRest();
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < num_stages) ring.Request(stage);
      CommitGroup();
    }
  }
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  // Chunk `at` of the slice, or for a stage its first one and all its groups.
  const auto load_x = [&](int32_t at, int column, int32_t group) {
    const int32_t row = column * 8 + lane / 4;
    const int32_t k = group * 32 + lane % 4 * 8;
    const T* from = ring.At(at / kStageChunks, row, at % kStageChunks * kChunk + k);
    if constexpr (kNorm) {
      const int32_t whole_k = (first_chunk + at) * kChunk + k;
      if (row >= args.product.rows || whole_k >= args.product.k) return uint4{};
      from = norm.rows + row * product::SharedStride(args.product.k) + whole_k;
    }
    return *reinterpret_cast<const uint4*>(from);
  };
  constexpr bool kShares = !kNorm && kSharesSums<kColumns> && Chunk<type>::kHasLow;
  auto& stage_sums = *reinterpret_cast<StageSums<kColumns>*>(memory + Ring<T, kColumns>::kBytes);
  const auto add_stage = [&](int32_t at) {
    constexpr int kTogether = kColumns < kWarps ? kWarps / kColumns : 1;
    const int32_t column = warp % kColumns;
#pragma unroll
    for (int32_t i = 0; i < kStageChunks * kChunkGroups; i += kTogether) {
      const int32_t group = i + warp / kColumns;
      const uint4 x[1] = {load_x(at, column, group)};
      const float2 of_x = SumsOfX<T>(x);
      if (lane < 4) stage_sums[group][column * 4 + lane] = of_x;
    }
    __syncthreads();
  };
  for (int32_t base = 0; base < num_chunks; base += kInFlight) {
#pragma unroll
    for (int d = 0; d < kInFlight; ++d) {
      const int32_t at = base + d;
      if (at >= num_chunks) break;
      if constexpr (!kNorm) {
        if (at % kStageChunks == 0) {
          ring.Enter(at / kStageChunks, num_stages);
          if constexpr (kShares) add_stage(at);
        }
      }
      if (chunks == nullptr) continue;
      const auto sums_of_x = [&](int column, int group, const uint4(&x)[1]) {
        if constexpr (!kShares) return SumsOfX<T>(x);
        return stage_sums[at % kStageChunks * kChunkGroups + group][column * 4 + lane % 4];
      };
      MultiplyChunk<T>(
          loaded[d], [&](int column, int group) { return load_x(at, column, group); }, sums_of_x,
          sums);
      if (at + kInFlight < num_chunks) {
        loaded[d].Load(chunks + (at + kInFlight) * ChunkBytes(type));
      }
    }
  }
}

template <typename T, int kColumns, bool kNorm>
__global__ void __launch_bounds__(kThreads, kMostCtasPerSm)
    PackedKernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::byte memory[];
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const int32_t cluster = static_cast<int32_t>(blockIdx.x) / args.ranks;
  const int32_t first_chunk = RankOf(args) * args.slice;
  const int32_t num_chunks = min(args.slice, args.chunks - first_chunk);
  const TilePlace place = PlaceOf(args, cluster, warp);
  const Segment& segment = args.segments[place.segment];
  float sums[kColumns][4] = {};
  // The warps of a thread block have one type.
  WithPackedType(segment.type, [&](auto type) {
    const std::byte* chunks = segment.tiles +
                              int64_t{place.tile} * args.chunks * ChunkBytes(type()) +
                              first_chunk * ChunkBytes(type());
    if (place.tile >= segment.num_tiles) chunks = nullptr;
    MultiplySlice<T, kColumns, kNorm, type()>(args, chunks, first_chunk, num_chunks, memory, sums);
  });
  Finish<T>(args, *reinterpret_cast<SharedSums<kColumns>*>(memory), sums);
  product::RequestAhead(args.product);
}

template <typename T, int kColumns, bool kNorm>
bool LaunchKernel(Device& device, const Args& args, int32_t clusters) {
  const product::Args& inner = args.product;
  const size_t of_x =
      kNorm ? NormMemory<T>::Bytes(inner.rows, inner.k) : size_t{Ring<T, kColumns>::kBytes};
  const size_t of_stage = kSharesSums<kColumns> ? sizeof(StageSums<kColumns>) : 0;
  const size_t bytes = std::max(of_x + of_stage, sizeof(SharedSums<kColumns>));
  constexpr size_t kStatic = 512;
  if (bytes + kStatic > device.shared_memory_per_block()) return false;
  Launch(device, "product of packed weights",
         {.grid = static_cast<unsigned>(clusters * args.ranks),
          .block = kThreads,
          .shared_bytes = bytes,
          .cluster = static_cast<unsigned>(args.ranks)},
         PackedKernel<T, kColumns, kNorm>, args);
  return true;
}

template <typename T>
bool LaunchFor(Device& device, const Args& args, int32_t clusters) {
  const int32_t rows = args.product.rows;
  if (args.product.norm_weight != nullptr) {
    return LaunchKernel<T, 1, true>(device, args, clusters);
  }
  if (rows <= 8) return LaunchKernel<T, 1, false>(device, args, clusters);
  if (rows <= 16) return LaunchKernel<T, 2, false>(device, args, clusters);
  if (rows <= 32) return LaunchKernel<T, 4, false>(device, args, clusters);
  return LaunchKernel<T, 8, false>(device, args, clusters);
}

// Fills the segments. Returns how many clusters they take.
int32_t FillSegments(const Weight& weight, bool activates, Args& args) {
  const auto* data = static_cast<const std::byte*>(weight.data);
  int32_t clusters = 0;
  int32_t channel = 0;
  const int32_t of_cluster = activates ? kWarps / 2 : kWarps;
  for (const WeightPart& part : weight.parts) {
    if (part.type == PackedType::kNone) break;
    const auto tiles = static_cast<int32_t>(Tiles(part.rows));
    args.segments[args.num_segments++] = {
        .tiles = data,
        .units = reinterpret_cast<const float*>(data + TilesBytes(part, weight.cols)),
        .type = part.type,
        .num_tiles = tiles,
        .channels = part.rows,
        .first_channel = channel,
        .first_cluster = clusters};
    const int32_t own = (tiles + of_cluster - 1) / of_cluster;
    clusters = activates ? own : clusters + own;
    channel += part.rows;
    data += PartBytes(part, weight.cols);
  }
  return clusters;
}

// Cuts K, so that thread blocks are no fewer than the multiprocessors, which take two each. Whether
// SwiGLU rides along changes nothing, so that it does not change a row's bits.
void CutK(const Device& device, const Weight& weight, Args& args) {
  constexpr int32_t kLeastSlice = 2 * kStageChunks;
  int64_t tiles = 0;
  for (const WeightPart& part : weight.parts) tiles += Tiles(part.rows);
  args.chunks = static_cast<int32_t>(Chunks(weight.cols));
  args.ranks = 1;
  while (HasClusters(device) && args.ranks < kMostRanks &&
         tiles * args.ranks < int64_t{kWarps} * device.num_sms() &&
         args.chunks >= 2 * args.ranks * kLeastSlice) {
    args.ranks *= 2;
  }
  args.slice = (args.chunks + args.ranks - 1) / args.ranks;
}

bool IsAligned(const void* data, int64_t stride, int64_t element_bytes) {
  return reinterpret_cast<uintptr_t>(data) % 16 == 0 && stride * element_bytes % 16 == 0;
}

// Indices of K are 32-bit.
constexpr int64_t kMostWidth = 1 << 24;

bool HasKernel(const RowProduct& product) {
  const Weight& weight = product.weight;
  const bool halves = weight.dtype == DType::kFloat16 || weight.dtype == DType::kBFloat16;
  const bool norm = product.norm.weight != nullptr;
  const bool fits = product.out.rows > 0 &&
                    product.out.rows <= (norm ? kMostNormedRows : kMostPackedRows) && halves &&
                    product.x.dtype == weight.dtype &&
                    (product.out.dtype == weight.dtype || product.out.dtype == DType::kFloat32) &&
                    weight.cols % 8 == 0 && weight.cols <= kMostWidth &&
                    IsAligned(product.x.data, product.x.stride, 2);
  if (!fits) return false;
  if (product.activated.data != nullptr) {
    const WeightParts& parts = weight.parts;
    if (parts[0] != parts[1] || parts[2].type != PackedType::kNone) return false;
  }
  return !norm || (IsAligned(product.norm.x.data, product.norm.x.stride, 4) &&
                   IsAligned(product.norm.weight, 0, 4));
}

}  // namespace
}  // namespace packed

bool RunPackedProduct(Context& context, const RowProduct& product) {
  if (!packed::HasKernel(product)) return false;
  const bool activates = product.activated.data != nullptr;
  packed::Args args = {};
  args.product = product::ArgsOf(context.device, product);
  const int32_t clusters = packed::FillSegments(product.weight, activates, args);
  packed::CutK(context.device, product.weight, args);
  if (product.weight.dtype == DType::kFloat16) {
    return packed::LaunchFor<Half>(context.device, args, clusters);
  }
  return packed::LaunchFor<BFloat16>(context.device, args, clusters);
}

}  // namespace eta::cuda
