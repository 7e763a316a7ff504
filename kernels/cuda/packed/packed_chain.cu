// RunPackedChain computes products with weights of 4 to 8 bits as RunPackedProduct does, in one
// kernel, as product_chain.cu has it for weights of 16 bits.
//
// A thread block takes units (packed_unit.cuh). A stage of the ring has a run of chunks for every
// warp, each one bulk copy. All rows of x are in shared memory, normalised or copied.

#include <algorithm>
#include <cstdint>
#include <span>

#include "kernels/cuda/packed/packed_args.cuh"
#include "kernels/cuda/packed/packed_multiply.cuh"
#include "kernels/cuda/packed/packed_product.h"
#include "kernels/cuda/packed/packed_unit.cuh"
#include "kernels/cuda/rows/chain_parts.cuh"

namespace eta::cuda {
namespace packed {
namespace {

using product::ChainPart;
using product::kMostChained;
using product::NormMemory;

// Of a warp in a stage.
constexpr int kRunBytes = 4352;
constexpr int kStageBytes = kWarps * kRunBytes;
constexpr int32_t RunChunks(PackedType type) {
  return static_cast<int32_t>(kRunBytes / ChunkBytes(type));
}

struct PackedChain {
  Args products[kMostChained];
  ChainPart parts[kMostChained];  // a tile: a unit; the number of stages depends on its type
  int32_t count;
  int32_t stages;    // of the ring
  int32_t rings_at;  // in shared memory, behind the rows of x
  uint32_t* barrier;
};

using Ring = product::StageRing<kStageBytes>;

// All warps of a unit pass the stages of a whole slice.
__device__ __forceinline__ int32_t StagesOf(const Args& args, PackedType type) {
  return (args.slice + RunChunks(type) - 1) / RunChunks(type);
}

// Asks for all weights of the thread block. A lane has a warp's run of every stage.
__device__ __forceinline__ void Stream(const PackedChain& chain, Ring ring) {
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  for (int32_t i = 0; i < chain.count; ++i) {
    const Args& args = chain.products[i];
    product::ForTiles(chain.parts[i], [&](int32_t unit) {
      const Share share = ShareOf(args, unit, lane % kWarps);
      const PackedType type = share.segment->type;
      const auto chunk_bytes = static_cast<int32_t>(ChunkBytes(type));
      const std::byte* from = share.segment->tiles +
                              (int64_t{share.tile} * args.chunks + share.first_chunk) * chunk_bytes;
      int32_t left = lane < kWarps ? share.num_chunks : 0;
      const int32_t stages = StagesOf(args, type);
#pragma unroll 1
      for (int32_t stage = 0; stage < stages; ++stage) {
        const int32_t run = max(min(RunChunks(type), left), 0);
        const auto bytes = static_cast<uint32_t>(run * chunk_bytes);
        ring.Expect(__reduce_add_sync(~0u, bytes));
        if (bytes > 0) ring.Copy(lane * kRunBytes, from, bytes);
        from += bytes;
        left -= run;
        ring.place.Advance(ring.stages);
      }
    });
  }
}

// Brings the rows of x into shared memory. Ends with a barrier.
template <typename T>
__device__ __forceinline__ void CopyRows(const product::Args& args, T* rows) {
  const int32_t pieces = args.k / 8;
  const int32_t stride = product::SharedStride(args.k);
  for (int32_t row = 0; row < args.rows; ++row) {
    const std::byte* from = args.x + row * args.x_stride * 2;
    for (auto i = static_cast<int32_t>(threadIdx.x); i < pieces; i += kThreads) {
      CopyAsync<16>(rows + row * stride + i * 8, from + i * 16);
    }
  }
  CommitGroup();
  WaitGroups<0>();
  Multipliers::Sync();
}

// Multiplies the warp's share of a unit. `rows`: x.
template <PackedType type, typename T, int kColumns>
__device__ __forceinline__ void MultiplyShare(const Args& args, const Share& share, const T* rows,
                                              Ring& ring, float (&sums)[kColumns][4]) {
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  const auto lane = static_cast<int32_t>(threadIdx.x % 32);
  const int32_t stride = product::SharedStride(args.product.k);
  const int32_t stages = StagesOf(args, type);
  for (int32_t stage = 0; stage < stages; ++stage) {
    ring.Await();
    const std::byte* run = ring.Stage() + warp * kRunBytes;
#pragma unroll 2
    for (int32_t c = 0; c < RunChunks(type); ++c) {
      const int32_t at = stage * RunChunks(type) + c;
      if (at >= share.num_chunks) break;
      const auto load_x = [&](int column, int group) {
        const int32_t row = column * 8 + lane / 4;
        const int32_t k = (share.first_chunk + at) * kChunk + group * 32 + lane % 4 * 8;
        if (row >= args.product.rows || k >= args.product.k) return uint4{};
        return *reinterpret_cast<const uint4*>(rows + row * stride + k);
      };
      const auto sums_of_x = [](int, int, const uint4& x) { return SumsOfX<T>(x); };
      Chunk<type> chunk;
      chunk.template Load<InShared>(run + c * ChunkBytes(type));
      MultiplyChunk<T>(chunk, load_x, sums_of_x, sums);
    }
    ring.Release();
  }
}

template <typename T, int kColumns>
__global__ void __launch_bounds__(product::kChainThreads, 1)
    PackedChainKernel(const __grid_constant__ PackedChain chain) {
  extern __shared__ __align__(128) std::byte memory[];
  __shared__ Sums<kColumns> shared_sums;
  __shared__ Barrier full[product::kMostStages];
  __shared__ Barrier empty[product::kMostStages];
  Ring ring = {memory + chain.rings_at, full, empty, chain.stages};
  if (threadIdx.x == kThreads) ring.Initialise();
  __syncthreads();
  if (threadIdx.x >= kThreads) return Stream(chain, ring);

  const product::Args& front = chain.products[0].product;
  if (front.norm_weight != nullptr) NormMemory<T>(front, memory).RequestFactors(front);
  WaitForPrevious();
  AllowNext();
  const auto warp = static_cast<int32_t>(threadIdx.x / 32);
  int32_t count = 0;
  for (int32_t i = 0; i < chain.count; ++i) {
    const Args& args = chain.products[i];
    if (i > 0) product::MeetOthers<T>(chain.barrier, args.product, memory);
    const NormMemory<T> norm(args.product, memory);
    if (args.product.norm_weight != nullptr) {
      product::NormaliseRows<Multipliers, kColumns == 1>(args.product, norm);
    } else {
      CopyRows(args.product, norm.rows);
    }
    product::ForTiles(chain.parts[i], [&](int32_t unit) {
      const Share share = ShareOf(args, unit, warp);
      float sums[kColumns][4] = {};
      WithPackedType(share.segment->type,
                     [&](auto type) { MultiplyShare<type()>(args, share, norm.rows, ring, sums); });
      FinishUnit<T>(args, unit, count++, shared_sums, sums);
    });
  }
  product::RequestAhead(chain.products[chain.count - 1].product);
}

template <typename T, int kColumns>
bool LaunchColumns(Context& context, PackedChain& chain) {
  size_t of_rows = 0;
  for (int32_t i = 0; i < chain.count; ++i) {
    const product::Args& args = chain.products[i].product;
    const size_t bytes =
        args.norm_weight != nullptr
            ? NormMemory<T>::Bytes(args.rows, args.k)
            : static_cast<size_t>(args.rows) * product::SharedStride(args.k) * sizeof(T);
    of_rows = std::max(of_rows, bytes);
  }
  return product::LaunchChain(context, chain, of_rows, sizeof(Sums<kColumns>) + 1024, kStageBytes,
                              PackedChainKernel<T, kColumns>);
}

template <typename T>
bool LaunchRows(Context& context, PackedChain& chain) {
  const std::span products = std::span(chain.products).first(static_cast<size_t>(chain.count));
  if (std::ranges::all_of(products, [](const Args& args) { return args.product.rows <= 8; })) {
    return LaunchColumns<T, 1>(context, chain);
  }
  return LaunchColumns<T, 2>(context, chain);
}

// Fills in product `chain.count`. Returns false if SwiGLU finds both halves of a unit in no one.
bool Append(const Device& device, const RowProduct& product, PackedChain& chain) {
  Args& args = chain.products[chain.count];
  const bool activates = product.activated.data != nullptr;
  args.product = product::ArgsOf(device, product);
  args.chunks = static_cast<int32_t>(Chunks(product.weight.cols));
  CutK(device, product.weight, args);
  const int32_t owners = kWarps / args.ranks;
  if (activates && owners < 2) return false;
  const int32_t units = FillSegments(product.weight, activates, owners, args);
  const int32_t first_block =
      chain.count > 0 ? chain.parts[chain.count - 1].NextBlock(device.num_sms()) : 0;
  chain.parts[chain.count++] = {.tiles = units, .stages = 0, .first_block = first_block};
  return true;
}

}  // namespace
}  // namespace packed

size_t RunPackedChain(Context& context, std::span<const RowProduct> products, size_t least) {
  const auto enough = std::max(static_cast<int32_t>(least), 1);
  const DType dtype = products.front().weight.dtype;
  packed::PackedChain chain = {};
  for (const RowProduct& product :
       products.first(std::min<size_t>(products.size(), packed::kMostChained))) {
    if (!product.weight.packed() || product.weight.dtype != dtype ||
        product.out.rows > kMostNarrowRows || !packed::HasKernel(product, kMostNarrowRows) ||
        !packed::Append(context.device, product, chain)) {
      break;
    }
  }
  for (; chain.count >= enough; --chain.count) {
    const bool launched = dtype == DType::kFloat16 ? packed::LaunchRows<Half>(context, chain)
                                                   : packed::LaunchRows<BFloat16>(context, chain);
    if (launched) return static_cast<size_t>(chain.count);
    if (!context.device.status().ok()) return 0;
  }
  return 0;
}

}  // namespace eta::cuda
