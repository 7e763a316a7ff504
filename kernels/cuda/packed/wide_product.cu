// RunWideProduct: packed weights by 17 to 64 rows. Weights, unpacked in registers, are the first
// factor of products of warpgroups, and rows of x in shared memory the second one.
//
// A thread block has 256 channels, a tile of 16 for each of its owners, and a slice of K. Each
// owner has a ring of chunks as in packed_product.cu, and x comes through a ring for the thread
// block, which a fifth warpgroup fills. So x is read once for 256 channels, and from shared memory
// once for 64. While the products of one group run, a warp unpacks the next group; while it scales
// sums, the other warpgroups multiply. Sums are those of packed_product.cu, but for the cut of K,
// and that a chunk with one scale is summed as a whole.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/wgmma.cuh"
#include "kernels/cuda/packed/packed_chunk.cuh"
#include "kernels/cuda/packed/packed_ring.cuh"
#include "kernels/cuda/packed/wide_finish.cuh"
#include "kernels/cuda/packed/wide_product.cuh"
#include "kernels/cuda/packed/wide_rows.cuh"

namespace eta::cuda::packed {
namespace {

// Of the ring of a warp's chunks.
constexpr int kWideRingBytes = 8960;

// Dynamic shared memory, with room to align it to the period of the swizzle: x, then the rings of
// the owners. At the end the owners' sums stand where it begins.
template <int kColumns>
struct WideShape {
  static constexpr int kRings = WideRows<kColumns>::kBytes;
  static constexpr int kEnd = kRings + kWideOwners * kWideRingBytes;
  static constexpr int kSharedBytes = kEnd + 1024;
  static_assert(kRings % 128 == 0 && kEnd >= sizeof(WideSums<kColumns>));
};

// Starts the products of a group as a group of their own: sums = weights * x, or added to sums.
// `x`: the group's columns, described.
template <typename T, bool kAccumulate, int kColumns>
__device__ __forceinline__ void StartGroup(const uint4& low, const uint4& high, uint64_t x,
                                           float (&sums)[kColumns][4]) {
  const uint32_t first[4] = {low.x, high.x, low.y, high.y};
  const uint32_t second[4] = {low.z, high.z, low.w, high.w};
  wgmma::Fence();
  wgmma::MultiplyInPlace<T, kAccumulate>(sums, first, x);
  wgmma::MultiplyInPlace<T, true>(sums, second, x + wgmma::kInnerStep);
  wgmma::Commit();
}

// Adds a group's sums, scaled, less the minimum times the sums of x.
template <bool kHasLow, int kColumns>
__device__ __forceinline__ void AddGroup(const GroupScales& scales, const float* sums_of_x,
                                         const float (&parts)[kColumns][4],
                                         float (&sums)[kColumns][4]) {
#pragma unroll
  for (int n = 0; n < kColumns; ++n) {
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[n][i] = fmaf(scales.scale[i / 2], parts[n][i], sums[n][i]);
    if constexpr (kHasLow) {
      const float2 of_x = *reinterpret_cast<const float2*>(sums_of_x + 8 * n + threadIdx.x % 4 * 2);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        sums[n][i] = fmaf(-scales.low[i / 2], i % 2 == 0 ? of_x.x : of_x.y, sums[n][i]);
      }
    }
  }
}

// Keeps the compiler from unpacking behind the next wait.
[[maybe_unused]] __device__ __forceinline__ void PinNumbers(uint4& numbers) {
  asm volatile("" : "+r"(numbers.x), "+r"(numbers.y), "+r"(numbers.z), "+r"(numbers.w));
}

// A warp's part of the products of its warpgroup.
template <typename T, int kColumns, PackedType type>
__device__ __forceinline__ void MultiplyOwn(WeightRing<type, kWideRingBytes>& weights,
                                            const WideRows<kColumns>& rows, int32_t num_chunks,
                                            float (&sums)[kColumns][4]) {
  using Rows = WideRows<kColumns>;
  constexpr int kSlotChunks = WeightRing<type, kWideRingBytes>::kSlotChunks;
  static_assert(Rows::kStages % kSlotChunks == 0);
  constexpr bool kHasLow = Chunk<type>::kHasLow;
  constexpr bool kOneScale = Chunk<type>::kScales == 1;
  // The next chunk is loaded while products run, but not where they read what was loaded: the
  // compiler takes a product's registers for free once it is issued.
  constexpr int kRunning = type == PackedType::kSixteen ? 0 : 1;
  constexpr uint64_t kGroupStep = 2 * wgmma::kInnerStep;
  const uint64_t all_rows = wgmma::Describe(SharedAddress(rows.memory));
  Chunk<type> chunk;
  chunk.template Load<InShared>(weights.Await());
  uint4 low = chunk.template Widen<T>(0, 0);
  uint4 high = chunk.template Widen<T>(0, 1);
  float parts[kColumns][4] = {};
  for (int32_t i = 0; i < num_chunks; i += kSlotChunks) {
    const int32_t first_stage = i % Rows::kStages;
    const uint32_t phase = Rows::PhaseOf(i);
    const uint64_t first_x =
        all_rows + static_cast<uint32_t>(first_stage * (Rows::kStageBytes >> 4));
#pragma unroll
    for (int c = 0; c < kSlotChunks; ++c) {
      if (c > 0 && i + c == num_chunks) break;
      const int32_t stage = first_stage + c;
      const uint64_t x = first_x + c * (Rows::kStageBytes >> 4);
      Wait(rows.full + stage, phase);
      StartGroup<T, false>(low, high, x, parts);
      uint4 second_low = chunk.template Widen<T>(1, 0);
      uint4 second_high = chunk.template Widen<T>(1, 1);
      PinNumbers(second_low);
      PinNumbers(second_high);
      if constexpr (kOneScale) {
        StartGroup<T, true>(second_low, second_high, x + kGroupStep, parts);
        wgmma::Wait<kRunning>();
      } else {
        wgmma::Wait<0>();
        wgmma::Pin(parts);
        AddGroup<kHasLow>(chunk.Scales(0), rows.Sums(stage, 0), parts, sums);
        StartGroup<T, false>(second_low, second_high, x + kGroupStep, parts);
      }
      const GroupScales scales = chunk.Scales(1);
      if (c + 1 < kSlotChunks) {
        chunk.template Load<InShared>(weights.Slot() + (c + 1) * ChunkBytes(type));
      } else if (i + kSlotChunks < num_chunks) {
        weights.Release();
        chunk.template Load<InShared>(weights.Await());
      }
      low = chunk.template Widen<T>(0, 0);
      high = chunk.template Widen<T>(0, 1);
      PinNumbers(low);
      PinNumbers(high);
      wgmma::Wait<0>();
      wgmma::Pin(parts);
      AddGroup<kHasLow>(scales, rows.Sums(stage, 1), parts, sums);
      ArriveAsWarp(rows.empty + stage);
    }
  }
}

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
// The calling warpgroup keeps, or takes, so many registers for each thread.
template <int kRegisters>
__device__ __forceinline__ void FreeRegisters() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
template <int kRegisters>
__device__ __forceinline__ void TakeRegisters() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(kRegisters));
}
#endif

// A kernel of so many threads begins with 96 registers for each.
constexpr int kOwnerRegisters = 104;
constexpr int kSupplierRegisters = 64;
static_assert(kWideOwners * kOwnerRegisters + kWideSuppliers * kSupplierRegisters ==
              (kWideOwners + kWideSuppliers) * 96);

template <typename T, int kColumns>
__global__ void __launch_bounds__(kWideThreads, 1) WideKernel(const __grid_constant__ Args args) {
#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
  using Rows = WideRows<kColumns>;
  extern __shared__ std::byte unaligned[];
  __shared__ Barrier arrived[kWideOwners][kMostSlots];
  __shared__ Barrier full[Rows::kStages];
  __shared__ Barrier empty[Rows::kStages];
  std::byte* memory = unaligned + (1024 - SharedAddress(unaligned) % 1024) % 1024;
  const Rows rows = {memory, full, empty};
  // The shuffle makes the warp's number uniform for the compiler as well.
  const int32_t warp = __shfl_sync(~0u, static_cast<int32_t>(threadIdx.x / 32), 0);
  const int32_t cluster = static_cast<int32_t>(blockIdx.x) / args.ranks;
  const int32_t first_chunk = RankOf(args) * args.slice;
  const int32_t num_chunks = min(args.slice, args.chunks - first_chunk);
  const Segment& segment = args.segments[SegmentOf(args, cluster)];
  if (threadIdx.x == 0) rows.Initialise();
  __syncthreads();
  if (warp >= kWideOwners) {
    FreeRegisters<kSupplierRegisters>();
    WaitForPrevious();
    AllowNext();
    const int32_t supplier = warp - kWideOwners;
    // The segments of a thread block have one type.
    if (segment.type == PackedType::kInt4) {
      Supplier<T, kColumns, true>(args.product, rows, supplier, first_chunk, num_chunks).Run();
    } else {
      Supplier<T, kColumns, false>(args.product, rows, supplier, first_chunk, num_chunks).Run();
    }
    if (args.ranks > 1) MeetCluster(args);
    return;
  }
  TakeRegisters<kOwnerRegisters>();
  const int32_t first_tile = (cluster - segment.first_cluster) * kWideOwners;
  const int32_t tile = first_tile + warp;
  float sums[kColumns][4] = {};
  WithPackedType(segment.type, [&](auto type) {
    // A warpgroup multiplies together. Owners without a tile multiply the last one.
    const int32_t read = min(tile, segment.num_tiles - 1);
    const std::byte* chunks = segment.tiles + int64_t{read} * args.chunks * ChunkBytes(type()) +
                              first_chunk * ChunkBytes(type());
    WeightRing<type(), kWideRingBytes> weights(
        memory + WideShape<kColumns>::kRings + warp * kWideRingBytes, arrived[warp], chunks,
        num_chunks);
    weights.Start();
    WaitForPrevious();
    AllowNext();
    MultiplyOwn<T, kColumns, type()>(weights, rows, num_chunks, sums);
  });
  if (args.ranks == 1) {
    FinishAlone<T>(args, segment, tile, sums);
  } else {
    FinishCluster<T, kColumns>(args, segment, first_tile,
                               *reinterpret_cast<WideSums<kColumns>*>(memory), sums);
  }
#else
  __trap();
#endif
}

// How long the starts and ends of a thread block take, in chunks, by estimate.
constexpr int32_t kEndsInChunks = 4;
constexpr int32_t kLeastSlice = 4;

// Takes the cut of K that ends first, where thread blocks that find no room wait for a whole round
// of the others. It is the same for all numbers of rows, so that a row has the same bits.
template <typename T>
void CutWide(Device& device, int32_t clusters, Args& args) {
  int64_t least = 0;
  for (int32_t ranks = 1; ranks <= kMostRanks; ++ranks) {
    const int32_t slice = (args.chunks + ranks - 1) / ranks;
    if (ranks > 1 && (slice < kLeastSlice || (ranks - 1) * slice >= args.chunks)) continue;
    const LaunchShape shape = {.grid = static_cast<unsigned>(ranks),
                               .block = kWideThreads,
                               .shared_bytes = WideShape<8>::kSharedBytes,
                               .cluster = static_cast<unsigned>(ranks)};
    const int64_t room =
        ranks == 1 ? device.num_sms() : RoomForClusters(device, shape, WideKernel<T, 8>);
    if (room == 0) continue;
    const int64_t rounds = CeilDiv(clusters, room);
    const int64_t time = rounds * (slice + kEndsInChunks);
    if (ranks > 1 && time >= least) continue;
    least = time;
    args.ranks = ranks;
    args.slice = slice;
  }
}

template <typename T, int kColumns>
void LaunchColumns(Device& device, int32_t clusters, const Args& args) {
  Launch(device, "product of packed weights",
         {.grid = static_cast<unsigned>(clusters * args.ranks),
          .block = kWideThreads,
          .shared_bytes = WideShape<kColumns>::kSharedBytes,
          .cluster = static_cast<unsigned>(args.ranks)},
         WideKernel<T, kColumns>, args);
}

template <typename T>
void LaunchAs(Device& device, int32_t clusters, Args& args) {
  CutWide<T>(device, clusters, args);
  if (args.product.rows <= 32) return LaunchColumns<T, 4>(device, clusters, args);
  LaunchColumns<T, 8>(device, clusters, args);
}

}  // namespace

bool LaunchWide(Device& device, DType dtype, int32_t clusters, Args& args) {
  constexpr size_t kStatic = 2048;
  if (WideShape<8>::kSharedBytes + kStatic > device.shared_memory_per_block()) return false;
  if (dtype == DType::kFloat16) {
    LaunchAs<Half>(device, clusters, args);
  } else {
    LaunchAs<BFloat16>(device, clusters, args);
  }
  return true;
}

}  // namespace eta::cuda::packed
