// RunProductChain computes products of up to 16 rows, each as RunRowProduct does, in one kernel.
//
// Memory binds, and weights depend on nothing. So one warp of each thread block asks for the
// weights of all products in their order, as far ahead as a ring in shared memory has room, and
// does not care where one product ends. The other warps multiply. Between two products all thread
// blocks meet; meanwhile the ring fills, and what waits in it is multiplied faster than it came.
//
// There is a thread block for every multiprocessor, and all must be there at once. Nothing keeps
// one out for ever: kernels before this one end by themselves, and the one behind it starts when
// all thread blocks of this one run, since only then each of them has called AllowNext.

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/packed/packed_product.h"
#include "kernels/cuda/rows/chain_parts.cuh"
#include "kernels/cuda/rows/product_chain.h"
#include "kernels/cuda/rows/row_norm.cuh"
#include "kernels/cuda/rows/tile_sums.cuh"

namespace eta::cuda {
namespace product {
namespace {

static_assert(kStageWidth == kGroup * kWarps);

using Ring = StageRing<kStageBytes>;

struct Chain {
  Args products[kMostChained];
  ChainPart parts[kMostChained];
  int32_t count;
  int32_t stages;    // of the ring
  int32_t rings_at;  // in shared memory, behind the rows of norms
  uint32_t* barrier;
};

// Asks for all weights of the thread block. A lane has a row of every stage.
__device__ __forceinline__ void Stream(const Chain& chain, Ring ring) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  for (int32_t i = 0; i < chain.count; ++i) {
    const Args& args = chain.products[i];
    const ChainPart part = chain.parts[i];
    ForTiles(part, [&](int32_t tile) {
      const int64_t row =
          WeightRow(args.channels, args.activated != nullptr, tile, lane % kStageRows);
      const std::byte* from = args.weight + row * args.k * 2;
#pragma unroll 1
      for (int32_t stage = 0; stage < part.stages; ++stage) {
        const auto bytes = static_cast<uint32_t>(StageNumbers(args.k, stage) * 2);
        ring.Expect(bytes * kStageRows);
        if (lane < kStageRows) ring.Copy(lane * kStagePitch, from, bytes);
        from += kStageWidth * 2;
        ring.place.Advance(ring.stages);
      }
    });
  }
}

// Elements k .. k + 7 of the lane's rows of x; zero where there are none.
template <bool kNorm, int kColumns, typename T>
__device__ __forceinline__ void LoadX(const Args& args, const T* normalised, int32_t k,
                                      uint4 (&to)[kColumns]) {
#pragma unroll
  for (int column = 0; column < kColumns; ++column) {
    const auto row = static_cast<int32_t>(column * 8 + threadIdx.x % 32 / 4);
    to[column] = {};
    if (row >= args.rows || k >= args.k) continue;
    if constexpr (kNorm) {
      const T* from = normalised + row * SharedStride(args.k) + k;
      to[column] = *reinterpret_cast<const uint4*>(from);
    } else {
      to[column] = LoadFromOthers(args.x + (row * args.x_stride + k) * 2);
    }
  }
}

// Multiplies the thread block's tiles of one product. `count`: tiles that it had before, of all
// products.
template <bool kNorm, bool kSwiGlu, typename T, int kColumns>
__device__ __forceinline__ void MultiplyTiles(const Args& args, const ChainPart& part,
                                              const T* normalised, Ring& ring,
                                              Sums<kColumns>& shared_sums, int32_t& count) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t own_k = warp * kGroup + lane % 4 * 8;  // within a stage
  const int32_t own_bytes = lane / 4 * kStagePitch + own_k * 2;
  uint4 next[kLoads][kColumns];
  const auto load_next = [&](int32_t k) {
#pragma unroll
    for (int j = 0; j < kLoads; ++j) LoadX<kNorm>(args, normalised, k + 32 * j, next[j]);
  };
  // What other thread blocks wrote is far, so it is asked for a stage before.
  if constexpr (!kNorm) load_next(own_k);
  float sums[kColumns][4] = {};
  ForTiles(part, [&](int32_t index) {
    const Tile<kSwiGlu> tile(index);
    float old[4 * kColumns] = {};
    if (args.accumulate && warp == count % kWarps) {
      tile.template ForSums<kColumns>(args, [&](int i, int32_t row, int32_t channel) {
        old[i] = LoadOut<T>(args, row, channel);
      });
    }
    for (int32_t stage = 0; stage < part.stages; ++stage) {
      const int32_t k = stage * kStageWidth + own_k;
      uint4 x[kLoads][kColumns];
      if constexpr (!kNorm) {
#pragma unroll
        for (int j = 0; j < kLoads; ++j) {
#pragma unroll
          for (int column = 0; column < kColumns; ++column) x[j][column] = next[j][column];
        }
        load_next(stage + 1 == part.stages ? own_k : k + kStageWidth);
      }
      ring.Await();
      const std::byte* at = ring.Stage() + own_bytes;
      // As many as registers hold beside x.
      constexpr int kTogether = kColumns == 1 ? kLoads : kLoads / 2;
#pragma unroll
      for (int first = 0; first < kLoads; first += kTogether) {
        uint4 weights[kTogether][2];
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          if constexpr (kNorm) LoadX<kNorm>(args, normalised, k + 32 * (first + j), x[first + j]);
          weights[j][0] = weights[j][1] = {};
          // Where no copy came the ring has what was there before, or anything.
          if (k + 32 * (first + j) >= args.k) continue;
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            const std::byte* from = at + half * (kStageRows / 2 * kStagePitch) + 64 * (first + j);
            weights[j][half] = *reinterpret_cast<const uint4*>(from);
          }
        }
#pragma unroll
        for (int j = 0; j < kTogether; ++j) {
          Multiply<T>(weights[j][0], weights[j][1], x[first + j], sums);
        }
      }
      // Behind what needs the weights: a load that is on its way does not hold the arrival up.
      ring.Release();
    }
    Finish<Multipliers, T>(args, tile, count++, shared_sums, sums, old);
  });
}

template <bool kNorm, typename T, int kColumns>
__device__ __forceinline__ void MultiplyPart(const Args& args, const ChainPart& part,
                                             const T* normalised, Ring& ring,
                                             Sums<kColumns>& shared_sums, int32_t& count) {
  if (args.activated != nullptr) {
    return MultiplyTiles<kNorm, true>(args, part, normalised, ring, shared_sums, count);
  }
  MultiplyTiles<kNorm, false>(args, part, normalised, ring, shared_sums, count);
}

template <typename T, int kColumns>
__global__ void __launch_bounds__(kChainThreads, 1)
    ChainKernel(const __grid_constant__ Chain chain) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Sums<kColumns> shared_sums;
  __shared__ Barrier full[kMostStages];
  __shared__ Barrier empty[kMostStages];
  Ring ring = {memory + chain.rings_at, full, empty, chain.stages};
  if (threadIdx.x == kThreads) ring.Initialise();
  __syncthreads();
  if (threadIdx.x >= kThreads) return Stream(chain, ring);

  const Args& front = chain.products[0];
  if (front.norm_weight != nullptr) NormMemory<T>(front, memory).RequestFactors(front);
  WaitForPrevious();
  AllowNext();
  int32_t count = 0;
  for (int32_t i = 0; i < chain.count; ++i) {
    const Args& args = chain.products[i];
    if (i > 0) MeetOthers<T>(chain.barrier, args, memory);
    if (args.norm_weight != nullptr) {
      const NormMemory<T> norm(args, memory);
      NormaliseRows<Multipliers, kColumns == 1>(args, norm);
      MultiplyPart<true>(args, chain.parts[i], norm.rows, ring, shared_sums, count);
    } else {
      MultiplyPart<false, T>(args, chain.parts[i], nullptr, ring, shared_sums, count);
    }
  }
  RequestAhead(chain.products[chain.count - 1]);
}

// Shared memory of a kernel beside the norm's rows and the ring, in bytes.
template <int kColumns>
constexpr size_t kStaticBytes = sizeof(Sums<kColumns>) + 1024;

template <typename T, int kColumns>
bool LaunchColumns(Context& context, Chain& chain) {
  size_t of_norms = 0;
  int32_t first_block = 0;
  for (int32_t i = 0; i < chain.count; ++i) {
    const Args& args = chain.products[i];
    if (args.norm_weight != nullptr) {
      of_norms = std::max(of_norms, NormMemory<T>::Bytes(args.rows, args.k));
    }
    chain.parts[i] = DealOut(args.channels, args.k, args.activated != nullptr, first_block);
    first_block = chain.parts[i].NextBlock(context.device.num_sms());
  }
  return LaunchChain(context, chain, of_norms, kStaticBytes<kColumns>, kStageBytes,
                     ChainKernel<T, kColumns>);
}

template <typename T>
bool LaunchRows(Context& context, Chain& chain) {
  const std::span products = std::span(chain.products).first(static_cast<size_t>(chain.count));
  if (std::ranges::all_of(products, [](const Args& args) { return args.rows <= 8; })) {
    return LaunchColumns<T, 1>(context, chain);
  }
  return LaunchColumns<T, 2>(context, chain);
}

}  // namespace
}  // namespace product

size_t RunProductChain(Context& context, std::span<const RowProduct> products, size_t least) {
  // Bulk copies are there where clusters are.
  if (products.empty() || !HasClusters(context.device)) return 0;
  if (products.front().weight.packed()) return RunPackedChain(context, products, least);
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
    const bool launched = dtype == DType::kFloat16 ? product::LaunchRows<Half>(context, chain)
                                                   : product::LaunchRows<BFloat16>(context, chain);
    if (launched) return static_cast<size_t>(chain.count);
    if (!context.device.status().ok()) return 0;
  }
  return 0;
}

}  // namespace eta::cuda
