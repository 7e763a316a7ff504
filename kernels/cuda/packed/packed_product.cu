// RunPackedProduct computes out [R, N] = x [R, K] * weight [N, K]^T for up to 64 rows and weights
// of 4 to 8 bits, with RmsNorm in front and AddBias, the sum with out or SwiGlu behind. One or two
// rows of integers alone are integer_product.cu's.
//
// Memory binds: weights are read once, and all else is small. A thread block has 128 channels, a
// tile of 16 for each warp, and a slice of K; the thread blocks of a cluster have the slices of the
// same channels. Each warp has a ring of chunks in shared memory, well ahead of the tensor cores;
// the first of them are on their way before the kernel waits for its predecessor. Rows of x come
// through a ring for the thread block. A group's sum is exact in its products, is scaled once, and
// is added in the order of K; at the end the slices' sums are added in the order of their ranks.

#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/packed/integer_product.cuh"
#include "kernels/cuda/packed/packed_args.cuh"
#include "kernels/cuda/packed/packed_chunk.cuh"
#include "kernels/cuda/packed/packed_finish.cuh"
#include "kernels/cuda/packed/packed_multiply.cuh"
#include "kernels/cuda/packed/packed_product.h"
#include "kernels/cuda/packed/packed_ring.cuh"
#include "kernels/cuda/packed/wide_product.cuh"
#include "kernels/cuda/rows/row_norm.cuh"

namespace eta::cuda {
namespace packed {
namespace {

using product::NormMemory;

constexpr int kMostCtasPerSm = 2;
static_assert(product::kMostNormed >= kMostNormedRows);

// The sums of x over a stage's groups, in shared memory: with many rows every warp would compute
// the same ones.
template <int kColumns>
using StageSums = float2[kStageChunks<kColumns> * kChunkGroups][kColumns * 4];

template <int kColumns>
inline constexpr bool kSharesSums = kColumns >= 4;

// Dynamic shared memory: rows of x, the sums of a stage, and the rings of the warps. At the end the
// sums of the warps stand where it begins.
template <typename T, int kColumns, bool kNorm>
struct SharedBytes {
  static __host__ __device__ size_t OfX(const product::Args& args) {
    if (kNorm) return NormMemory<T>::Bytes(args.rows, args.k);
    return Ring<T, kColumns>::kBytes;
  }
  static __host__ __device__ size_t RingsAt(const product::Args& args) {
    const size_t of_stage = kSharesSums<kColumns> ? sizeof(StageSums<kColumns>) : 0;
    return (OfX(args) + of_stage + 127) / 128 * 128;
  }
  static size_t All(const product::Args& args) {
    constexpr size_t kRings = size_t{kWarps} * kWarpBytes<kColumns>;
    static_assert(kRings >= sizeof(SharedSums<kColumns>));
    return RingsAt(args) + kRings;
  }
};

// All warps of a thread block pass the same stages, those without a tile too.
template <typename T, int kColumns, bool kNorm, PackedType type>
__device__ __forceinline__ void MultiplySlice(const Args& args, const std::byte* chunks,
                                              int32_t first_chunk, int32_t num_chunks,
                                              std::byte* memory, Barrier* arrived,
                                              float (&sums)[kColumns][4]) {
  using Weights = WeightRing<type, kWarpBytes<kColumns>>;
  using Bytes = SharedBytes<T, kColumns, kNorm>;
  constexpr int kChunksOfStage = kStageChunks<kColumns>;
  static_assert(kChunksOfStage % Weights::kSlotChunks == 0);
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  Weights weights(memory + Bytes::RingsAt(args.product) + warp * kWarpBytes<kColumns>, arrived,
                  chunks, num_chunks);
  weights.Start();
  const NormMemory<T> norm(args.product, memory);
  Ring<T, kColumns> ring(args.product, memory, first_chunk * kChunk);
  const int32_t num_stages = (num_chunks + kChunksOfStage - 1) / kChunksOfStage;
  if constexpr (kNorm) norm.RequestFactors(args.product);
  WaitForPrevious();
  AllowNext();
  if constexpr (kNorm) {
    NormaliseRows<product::WholeBlock>(args.product, norm);
  } else {
    ring.ClearRest();
#pragma unroll
    for (int stage = 0; stage < kStages - 1; ++stage) {
      if (stage < num_stages) ring.Request(stage);
      CommitGroup();
    }
  }
  // Group `group` of chunk `chunk` of a stage.
  const auto load_x = [&](int32_t stage, int32_t chunk, int column, int32_t group) {
    const int32_t row = column * 8 + lane / 4;
    const int32_t k = chunk * kChunk + group * 32 + lane % 4 * 8;
    const T* from = ring.At(stage, row, k);
    if constexpr (kNorm) {
      const int32_t whole_k = (first_chunk + stage * kChunksOfStage) * kChunk + k;
      if (row >= args.product.rows || whole_k >= args.product.k) return uint4{};
      from = norm.rows + row * product::SharedStride(args.product.k) + whole_k;
    }
    return *reinterpret_cast<const uint4*>(from);
  };
  constexpr bool kShares = !kNorm && kSharesSums<kColumns> && Chunk<type>::kHasLow;
  auto& stage_sums = *reinterpret_cast<StageSums<kColumns>*>(memory + Bytes::OfX(args.product));
  const auto add_stage = [&](int32_t stage) {
    constexpr int kTogether = kColumns < kWarps ? kWarps / kColumns : 1;
    const int32_t column = warp % kColumns;
#pragma unroll
    for (int32_t i = 0; i < kChunksOfStage * kChunkGroups; i += kTogether) {
      const int32_t group = i + warp / kColumns;
      const float2 of_x = SumsOfX<T>(load_x(stage, 0, column, group));
      if (lane < 4) stage_sums[group][column * 4 + lane] = of_x;
    }
    __syncthreads();
  };
  for (int32_t stage = 0; stage < num_stages; ++stage) {
    if constexpr (!kNorm) {
      ring.Enter(stage, num_stages);
      if constexpr (kShares) add_stage(stage);
    }
    if (chunks == nullptr) continue;
    const int32_t count = min(kChunksOfStage, num_chunks - stage * kChunksOfStage);
    for (int32_t first = 0; first < count; first += Weights::kSlotChunks) {
      const std::byte* slot = weights.Await();
#pragma unroll
      for (int c = 0; c < Weights::kSlotChunks; ++c) {
        const int32_t at = first + c;
        if (at >= count) break;
        const auto sums_of_x = [&](int column, int group, const uint4& x) {
          if constexpr (!kShares) return SumsOfX<T>(x);
          return stage_sums[at * kChunkGroups + group][column * 4 + lane % 4];
        };
        Chunk<type> chunk;
        chunk.template Load<InShared>(slot + c * ChunkBytes(type));
        MultiplyChunk<T>(
            chunk, [&](int column, int group) { return load_x(stage, at, column, group); },
            sums_of_x, sums);
      }
      weights.Release();
    }
  }
}

template <typename T, int kColumns, bool kNorm>
__global__ void __launch_bounds__(kThreads, kMostCtasPerSm)
    PackedKernel(const __grid_constant__ Args args) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Barrier arrived[kWarps][kMostSlots];
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
    MultiplySlice<T, kColumns, kNorm, type()>(args, chunks, first_chunk, num_chunks, memory,
                                              arrived[warp], sums);
  });
  Finish<T>(args, *reinterpret_cast<SharedSums<kColumns>*>(memory), sums);
  product::RequestAhead(args.product);
}

template <typename T, int kColumns, bool kNorm>
bool LaunchKernel(Device& device, const Args& args, int32_t clusters) {
  const size_t bytes = SharedBytes<T, kColumns, kNorm>::All(args.product);
  constexpr size_t kStatic = 1024;
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

// The arguments without the segments and the cut of K.
Args ArgsOf(const Device& device, const RowProduct& product) {
  Args args = {};
  args.product = product::ArgsOf(device, product);
  args.chunks = static_cast<int32_t>(Chunks(product.weight.cols));
  return args;
}

// Fills the segments, for thread blocks of `owners` warps with tiles. Returns how many clusters
// they take.
int32_t FillSegments(const Weight& weight, bool activates, int32_t owners, Args& args) {
  const auto* data = static_cast<const std::byte*>(weight.data);
  int32_t clusters = 0;
  int32_t channel = 0;
  const int32_t of_cluster = activates ? owners / 2 : owners;
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

// Cuts K, so that thread blocks are no fewer than the multiprocessors, which take two each. Large
// clusters leave a quarter of that room, since each needs its own within one part of the chip: a
// last one that has to wait would take as long again as all others together. Whether SwiGLU rides
// along changes nothing, so that it does not change a row's bits.
void CutK(const Device& device, const Weight& weight, Args& args) {
  constexpr int32_t kLeastSlice = 8;
  int64_t tiles = 0;
  for (const WeightPart& part : weight.parts) tiles += Tiles(part.rows);
  const int64_t sms = device.num_sms();
  const auto fit = [&](int64_t ranks) {
    return ranks <= 2 || tiles * ranks <= kWarps * (kMostCtasPerSm * sms / 4 * 3);
  };
  args.ranks = 1;
  while (HasClusters(device) && args.ranks < kMostRanks && tiles * args.ranks < kWarps * sms &&
         args.chunks >= 2 * args.ranks * kLeastSlice && fit(2 * args.ranks)) {
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
  if (product.out.rows > kMostNarrowRows && HasClusters(context.device)) {
    return RunWideProduct(context, product);
  }
  if (!packed::HasKernel(product)) return false;
  const bool activates = product.activated.data != nullptr;
  if (product.out.rows <= kMostIntegerRows) {
    packed::Args args = packed::ArgsOf(context.device, product);
    const int32_t tasks = packed::FillSegments(product.weight, activates, activates ? 2 : 1, args);
    if (packed::LaunchInteger(context.device, product.weight.dtype, tasks, args)) return true;
  }
  packed::Args args = packed::ArgsOf(context.device, product);
  const int32_t clusters = packed::FillSegments(product.weight, activates, packed::kWarps, args);
  packed::CutK(context.device, product.weight, args);
  if (product.weight.dtype == DType::kFloat16) {
    return packed::LaunchFor<Half>(context.device, args, clusters);
  }
  return packed::LaunchFor<BFloat16>(context.device, args, clusters);
}

bool RunWideProduct(Context& context, const RowProduct& product) {
  if (!HasClusters(context.device) || !packed::HasKernel(product) ||
      product.out.rows <= kMostNarrowRows || product.norm.weight != nullptr ||
      product.activated.data != nullptr || product.x.stride > packed::kMostWideStride) {
    return false;
  }
  packed::Args args = packed::ArgsOf(context.device, product);
  const int32_t clusters = packed::FillSegments(product.weight, false, packed::kWideOwners, args);
  return packed::LaunchWide(context.device, product.weight.dtype, clusters, args);
}

}  // namespace eta::cuda
