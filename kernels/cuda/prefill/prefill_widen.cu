// Widens the K and V [T, HKV, d] of prompt sequences in one layer from the 8-bit cache to float16
// tiles (eta-semantics.md, "8-bit cache"), so that PrefillAttention's kernels for 16 bits can
// attend to them. It reads and writes each element once, which is little beside attention.

#include <cuda_runtime.h>

#include <algorithm>

#include "kernels/cuda/device/float8.cuh"
#include "kernels/cuda/device/kv_tile.h"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/device/mma.cuh"
#include "kernels/cuda/prefill/prefill_widen.h"

namespace eta::cuda {
namespace {

constexpr int kThreads = 256;

struct WidenArgs {
  const int32_t* tables;  // tables of the 8-bit blocks, one after the other
  const std::byte* from;
  KvTile narrow;
  KvTile wide;
  int32_t* wide_tables;  // block i becomes block i
  std::byte* to;
  int32_t window;
  const StepSequence* sequences;
  int32_t num_sequences;
};

// Whether entry `entry` of the tables lies before the window of its sequence's first row. Such a
// block may be gone. The whole CTA calls it.
__device__ __forceinline__ bool IsBeforeWindow(const WidenArgs& args, int32_t entry) {
  bool before = false;
  const int32_t begin = args.sequences[0].table_begin;
  for (int32_t s = threadIdx.x; s < args.num_sequences; s += kThreads) {
    const StepSequence& sequence = args.sequences[s];
    const int32_t first = sequence.table_begin - begin;
    const int32_t ordinal = WindowBegin(sequence.position, args.window) / args.narrow.block_size;
    before = before || (entry >= first && entry < first + ordinal);
  }
  return __syncthreads_or(before ? 1 : 0) != 0;
}

// Multiplies two e4m3 by `scale` and converts them to two float16. Large values saturate; NaN stays
// NaN.
__device__ __forceinline__ uint32_t ScalePair(uint32_t pair, float scale) {
  constexpr float kMax = 65504.0f;
  float2 values = UnpackPair<Half>(WidenPair(pair));
  values.x *= scale;
  values.y *= scale;
  if (fabsf(values.x) > kMax) values.x = copysignf(kMax, values.x);
  if (fabsf(values.y) > kMax) values.y = copysignf(kMax, values.y);
  return PackPair<Half>(values.x, values.y);
}

// Widens one block and KV head.
__global__ void __launch_bounds__(kThreads) WidenTiles(const __grid_constant__ WidenArgs args) {
  WaitForPrevious();
  AllowNext();
  const KvTile& narrow = args.narrow;
  const KvTile& wide = args.wide;
  const auto entry = static_cast<int32_t>(blockIdx.x);
  const auto kv_head = static_cast<int32_t>(blockIdx.y);
  if (args.window > 0 && IsBeforeWindow(args, entry)) return;
  const int32_t block = args.tables[entry];
  const std::byte* keys = args.from + narrow.K(block, kv_head);
  const std::byte* values = args.from + narrow.V(block, kv_head);
  const auto* exponents =
      reinterpret_cast<const int8_t*>(args.from + narrow.Exponents(block, kv_head));
  std::byte* wide_keys = args.to + wide.K(entry, kv_head);
  std::byte* wide_values = args.to + wide.V(entry, kv_head);
  if (threadIdx.x == 0 && kv_head == 0) args.wide_tables[entry] = entry;

  // One thread takes 16 elements of a key.
  const int32_t key_chunks = narrow.head_dim / 16;
  for (int32_t i = threadIdx.x; i < narrow.block_size * key_chunks; i += kThreads) {
    const int32_t token = i / key_chunks;
    const int32_t first = i % key_chunks * 16;
    const float scale = PowerOfTwo(exponents[token]);
    const uint4 four = *reinterpret_cast<const uint4*>(keys + narrow.Element(token, first));
    const uint32_t words[4] = {four.x, four.y, four.z, four.w};
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const uint32_t low = words[2 * half];
      const uint32_t high = words[2 * half + 1];
      *reinterpret_cast<uint4*>(wide_keys + wide.Element(token, first + 8 * half)) =
          make_uint4(ScalePair(low, scale), ScalePair(low >> 16, scale), ScalePair(high, scale),
                     ScalePair(high >> 16, scale));
    }
  }

  // One thread takes eight elements of four values.
  const int32_t value_chunks = narrow.head_dim / 8;
  for (int32_t i = threadIdx.x; i < narrow.block_size / 4 * value_chunks; i += kThreads) {
    const int32_t quad = i / value_chunks;
    const int32_t first = i % value_chunks * 8;
    const auto* from = reinterpret_cast<const uint4*>(values + narrow.ValueWord(quad, first));
    const uint4 low = from[0];
    const uint4 high = from[1];
    const uint32_t words[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int32_t token = quad * 4 + t;
      const float scale = PowerOfTwo(exponents[narrow.block_size + token]);
      uint32_t pairs[4];
#pragma unroll
      for (int p = 0; p < 4; ++p) {
        const uint32_t selector = 0x40u + t * 0x11u;  // byte t of each of the two words
        pairs[p] = ScalePair(__byte_perm(words[2 * p], words[2 * p + 1], selector), scale);
      }
      *reinterpret_cast<uint4*>(wide_values + wide.Element(token, first)) =
          make_uint4(pairs[0], pairs[1], pairs[2], pairs[3]);
    }
  }
}

bool IsPrefill(const StepSequence& sequence) {
  return sequence.role == RowRole::kPrefill;
}

int32_t TableEntries(const KvGeometry& geometry, const StepSequence& sequence) {
  return (sequence.position + sequence.num_rows + geometry.block_size - 1) / geometry.block_size;
}

KvGeometry WideGeometry(KvGeometry geometry) {
  geometry.dtype = DType::kFloat16;
  return geometry;
}

}  // namespace

size_t WideBytes(const KvGeometry& geometry, int64_t context) {
  if (geometry.dtype != DType::kFloat8E4M3) return 0;
  const size_t block_bytes = KvTile(WideGeometry(geometry)).block_bytes();
  const auto blocks = static_cast<size_t>(context / geometry.block_size + 1);
  const size_t tiles = std::max(kMaxWideBytes, blocks * block_bytes);
  return tiles + tiles / block_bytes * sizeof(int32_t);
}

std::span<const StepSequence> TakeWideRun(const KvGeometry& geometry,
                                          std::span<const StepSequence>& rest) {
  const size_t block_bytes = KvTile(WideGeometry(geometry)).block_bytes();
  const auto begin = std::ranges::find_if(rest, IsPrefill);
  auto end = begin;
  size_t bytes = 0;
  while (end != rest.end() && IsPrefill(*end)) {
    bytes += static_cast<size_t>(TableEntries(geometry, *end)) * block_bytes;
    if (end != begin && bytes > kMaxWideBytes) break;
    ++end;
  }
  rest = {end, rest.end()};
  return {begin, end};
}

WideTiles Widen(Context& context, const KvGeometry& narrow, const KvLayerView& kv, int32_t window,
                std::span<const StepSequence> sequences) {
  const StepSequence& last = sequences.back();
  const int32_t begin = sequences.front().table_begin;
  const int32_t entries = last.table_begin + TableEntries(narrow, last) - begin;
  const KvGeometry geometry = WideGeometry(narrow);
  const KvTile wide(geometry);
  const size_t tile_bytes = static_cast<size_t>(entries) * wide.block_bytes();
  const size_t table_bytes = static_cast<size_t>(entries) * sizeof(int32_t);
  std::byte* tiles = context.scratch.Get(Scratch::Use::kWideTiles, tile_bytes + table_bytes);
  if (tiles == nullptr) return {geometry};
  auto* tables = reinterpret_cast<int32_t*>(tiles + tile_bytes);
  const WidenArgs args = {context.step.tables + begin,
                          kv.tiles,
                          KvTile(narrow),
                          wide,
                          tables,
                          tiles,
                          window,
                          context.step.sequences + (sequences.data() - context.sequences.data()),
                          static_cast<int32_t>(sequences.size())};
  Launch(context.device, "widening of the 8-bit cache",
         {.grid = dim3(static_cast<unsigned>(entries), static_cast<unsigned>(narrow.num_kv_heads)),
          .block = dim3(kThreads)},
         WidenTiles, args);
  return {geometry, tiles, tables};
}

}  // namespace eta::cuda
