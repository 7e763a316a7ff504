// RunProductChain computes products of one or two rows, each as RunRowProduct does, in one kernel.
//
// Memory binds, and weights depend on nothing. So one warp of each thread block asks for the
// weights of all products in their order, as far ahead as a ring in shared memory has room, and
// does not care where one product ends. The other warps multiply by rows of x that are all in
// shared memory: from L2 a load takes longer than a stage. Between two products all thread blocks
// meet; meanwhile the ring fills, and what waits in it is multiplied faster than it came.
//
// There is a thread block for every multiprocessor, and all must be there at once. Nothing keeps
// one out for ever: kernels before this one end by themselves, and the one behind it starts when
// all thread blocks of this one run, since only then each of them has called AllowNext.

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/host/ops.h"
#include "kernels/cuda/rows/chain_parts.cuh"
#include "kernels/cuda/rows/product_chain.h"
#include "kernels/cuda/rows/row_norm.cuh"
#include "kernels/cuda/rows/tile_sums.cuh"

namespace eta::cuda {
namespace product {
namespace {

static_assert(kStageWidth == kGroup * kWarps);

// Stages of a thread block that are on their way at once.
constexpr int32_t kOnTheirWay = 2;
static_assert(kOnTheirWay <= kLeastStages);

struct Chain {
  Args products[kMostChained];
  ChainPart parts[kMostChained];
  int32_t count;
  int32_t stages;   // of the ring
  int32_t ring_at;  // in shared memory, behind the rows of x
  uint32_t* barrier;
};

// Asks for all weights of the thread block. A lane has a row of every stage.
//
// No more is on its way than memory takes to be busy: whatever else is asked for, from L2 too,
// waits behind that. What has come waits in the ring.
__device__ __forceinline__ void Stream(const Chain& chain, StageRing ring) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  ChainPlace behind;  // kOnTheirWay stages before
  int32_t asked = 0;
  for (int32_t i = 0; i < chain.count; ++i) {
    const Args& args = chain.products[i];
    const ChainPart part = chain.parts[i];
    ForTiles(part, [&](int32_t tile) {
      const int64_t row =
          WeightRow(args.channels, args.activated != nullptr, tile, lane % kStageRows);
      const std::byte* from = args.weight + row * args.k * 2;
#pragma unroll 1
      for (int32_t stage = 0; stage < part.stages; ++stage) {
        if (asked++ >= kOnTheirWay) {
          Wait(&ring.full[behind.stage], behind.phase);
          behind.Advance(ring.stages);
        }
        const auto bytes = static_cast<uint32_t>(StageNumbers(args.k, stage) * 2);
        ring.Expect(bytes * kStageRows);
        if (lane < kStageRows) ring.Copy(lane * kStagePitch, from, bytes);
        from += kStageWidth * 2;
        ring.place.Advance(ring.stages);
      }
    });
  }
}

// A warp's 128 numbers of K of a stage, by 16.
constexpr int kSteps = kGroup / 16;

// Adds the warp's products of a stage. `weights`, `x`: shared addresses that the lane gives to
// ldmatrix. `left`: numbers of K from the warp's first one on.
template <typename T>
__device__ __forceinline__ void MultiplyStage(uint32_t weights, uint32_t x, int32_t left,
                                              float (&sums)[2][4]) {
  if (left < kGroup) {
    // Where no copy came there is what was there before, or anything.
#pragma unroll 1
    for (; left > 0; left -= 16, weights += 32, x += 32) {
      uint32_t a[4];
      uint32_t b[4];
      LoadMatrices(a, weights);
      LoadMatrices(b, x);
      if (left < 16) a[2] = a[3] = b[1] = 0;
      Mma<T>(sums[0], a, b[0], b[1]);
    }
    return;
  }
  uint32_t a[kSteps][4];
  uint32_t b[kSteps / 2][4];
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    if (step % 2 == 0) LoadMatrices(b[step / 2], x + 32 * step);
    LoadMatrices(a[step], weights + 32 * step);
  }
#pragma unroll
  for (int step = 0; step < kSteps; ++step) {
    const uint32_t(&pair)[4] = b[step / 2];
    Mma<T>(sums[step % 2], a[step], pair[step % 2 * 2], pair[step % 2 * 2 + 1]);
  }
}

// Multiplies the thread block's tiles of one product by the rows of x. `count`: tiles that it had
// before, of all products.
template <bool kSwiGlu, typename T>
__device__ __forceinline__ void MultiplyTiles(const Args& args, const ChainPart& part,
                                              const T* rows, StageRing& ring, TileSums& tile_sums,
                                              int32_t& count) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  // Lanes stand for rows of matrices: of weights, rows 0 .. 7 and 8 .. 15 of the first 8 numbers of
  // K, then of the next 8; of x, all rows of each 8 numbers. A row that does not exist is another
  // one, and nobody reads its sums.
  const int32_t own = warp * kGroup;
  const int32_t of_weights = lane % 16 * kStagePitch + (own + lane / 16 * 8) * 2;
  const uint32_t x =
      SharedAddress(rows + min(lane % 8, args.rows - 1) * ChainStride(args.k) + own + lane / 8 * 8);
  ForTiles(part, [&](int32_t index) {
    const Tile<kSwiGlu> tile(index);
    float old[4] = {};
    if (args.accumulate && warp == count % kWarps) {
      tile.ForSums(args, [&](int i, int32_t row, int32_t channel) {
        old[i] = LoadOut<T>(args, row, channel);
      });
    }
    float sums[2][4] = {};
    for (int32_t stage = 0; stage < part.stages; ++stage) {
      const int32_t k = stage * kStageWidth;
      ring.Await();
      MultiplyStage<T>(SharedAddress(ring.Stage() + of_weights), x + 2 * k, args.k - own - k, sums);
      ring.Release();
    }
#pragma unroll
    for (int i = 0; i < 4; ++i) sums[0][i] += sums[1][i];
    float total[4] = {};
    if (tile_sums.Add(count++, sums[0], total)) StoreTile<T>(args, tile, total, old);
  });
}

template <typename T>
__global__ void __launch_bounds__(kChainThreads, 1)
    ChainKernel(const __grid_constant__ Chain chain) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ TileSums tile_sums;
  __shared__ Barrier full[kMostStages];
  __shared__ Barrier empty[kMostStages];
  StageRing ring = {memory + chain.ring_at, full, empty, chain.stages};
  if (threadIdx.x == kThreads) ring.Initialise();
  __syncthreads();
  if (threadIdx.x >= kThreads) return Stream(chain, ring);

  const Args& front = chain.products[0];
  if (front.norm_weight != nullptr) RowsOf<T>(front, memory).RequestFactors(front);
  WaitForPrevious();
  AllowNext();
  int32_t count = 0;
  for (int32_t i = 0; i < chain.count; ++i) {
    const Args& args = chain.products[i];
    if (i > 0) MeetOthers<T>(chain.barrier, args, memory);
    const NormMemory<T> x = RowsOf<T>(args, memory);
    if (args.norm_weight != nullptr) {
      NormaliseRows<Multipliers>(args, x);
    } else {
      CopyRows(args, x.rows);
    }
    if (args.activated != nullptr) {
      MultiplyTiles<true>(args, chain.parts[i], x.rows, ring, tile_sums, count);
    } else {
      MultiplyTiles<false>(args, chain.parts[i], x.rows, ring, tile_sums, count);
    }
  }
}

// Whether each multiprocessor has room for a thread block. One that finds none would be waited for.
bool FitsMultiprocessor(const LaunchShape& shape, void (*kernel)(Chain)) {
  int blocks = 0;
  const bool known = AllowSharedBytes(shape.shared_bytes, kernel) == cudaSuccess &&
                     cudaOccupancyMaxActiveBlocksPerMultiprocessor(
                         &blocks, kernel, kChainThreads, shape.shared_bytes) == cudaSuccess;
  if (!known) cudaGetLastError();  // otherwise the next launch would report the error
  return known && blocks > 0;
}

// Launches the kernel with as many stages as the rows of x leave room for. Returns false if these
// are too few, or there is no memory for the barrier.
template <typename T>
bool LaunchChain(Context& context, Chain& chain) {
  Device& device = context.device;
  size_t of_rows = 0;
  int32_t first_block = 0;
  for (int32_t i = 0; i < chain.count; ++i) {
    const Args& args = chain.products[i];
    const size_t bytes = static_cast<size_t>(args.rows) * ChainStride(args.k) * sizeof(T);
    const size_t of_norm = args.norm_weight != nullptr ? args.k * sizeof(float) : 0;
    of_rows = std::max(of_rows, bytes + of_norm);
    chain.parts[i] = DealOut(args.channels, args.k, args.activated != nullptr, first_block);
    first_block = chain.parts[i].NextBlock(device.num_sms());
  }
  of_rows = (of_rows + 127) / 128 * 128;
  constexpr size_t kStaticBytes = sizeof(TileSums) + 1024;  // with barriers, and the norm's
  const size_t memory = device.shared_memory_per_block();
  if (memory < of_rows + kStaticBytes + kLeastStages * kStageBytes) return false;
  const size_t stages =
      std::min<size_t>((memory - of_rows - kStaticBytes) / kStageBytes, kMostStages);
  const LaunchShape shape = {.grid = static_cast<unsigned>(device.num_sms()),
                             .block = kChainThreads,
                             .shared_bytes = of_rows + stages * kStageBytes};
  if (!FitsMultiprocessor(shape, ChainKernel<T>)) return false;
  chain.barrier = reinterpret_cast<uint32_t*>(
      context.scratch.Get(Scratch::Use::kGridBarrier, sizeof(uint32_t)));
  if (chain.barrier == nullptr) return false;
  chain.stages = static_cast<int32_t>(stages);
  chain.ring_at = static_cast<int32_t>(of_rows);
  Launch(device, "chain of products of few rows", shape, ChainKernel<T>, chain);
  return true;
}

}  // namespace
}  // namespace product

size_t RunProductChain(Context& context, std::span<const RowProduct> products, size_t least) {
  // Bulk copies are there where clusters are.
  if (products.empty() || !HasClusters(context.device)) return 0;
  const auto enough = std::max(static_cast<int32_t>(least), 1);
  const DType dtype = products.front().weight.dtype;
  product::Chain chain = {};
  for (const RowProduct& product :
       products.first(std::min<size_t>(products.size(), product::kMostChained))) {
    if (product.weight.packed() || product.weight.dtype != dtype || !product::HasKernel(product)) {
      break;
    }
    chain.products[chain.count++] = product::ArgsOf(context.device, product);
  }
  for (; chain.count >= enough; --chain.count) {
    const bool launched = dtype == DType::kFloat16 ? product::LaunchChain<Half>(context, chain)
                                                   : product::LaunchChain<BFloat16>(context, chain);
    if (launched) return static_cast<size_t>(chain.count);
    if (!context.device.status().ok()) return 0;
  }
  return 0;
}

}  // namespace eta::cuda
