// Packed weights as numbers: unit * (scale * q - minimum), each product and the difference rounded
// to float32, then stored as float32 or rounded to the type of products.
//
// Memory binds. A warp has a chunk of 16 channels by 64 numbers, in the lanes that a product has
// it.

#include <algorithm>
#include <cstdint>

#include "kernels/cuda/device/elements.cuh"
#include "kernels/cuda/device/launch.cuh"
#include "kernels/cuda/packed/chunk_numbers.cuh"
#include "kernels/cuda/packed/packed_chunk.cuh"
#include "kernels/cuda/packed/unpack_weight.h"

namespace eta::cuda {
namespace packed {
namespace {

constexpr int kUnpackThreads = 256;
constexpr int kUnpackWarps = kUnpackThreads / 32;
// Of the scratch memory. The library takes so many channels at a time at full speed.
constexpr int64_t kMostUnpackedBytes = int64_t{64} << 20;

// Stores numbers [k, k + 8) of a row of `cols`. `whole`: in vectors, since rows are aligned.
template <typename T>
__device__ __forceinline__ void StoreEight(const float (&numbers)[8], T* row, int32_t k,
                                           int32_t cols, bool whole) {
  if (whole) {
    if (k < cols) StoreElements(numbers, row + k);
    return;
  }
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    if (k + i < cols) row[k + i] = FromFloat<T>(numbers[i]);
  }
}

// The tiles of one part from `tiles` on, as rows [channels, cols].
struct UnpackArgs {
  const std::byte* tiles;
  const float* units;
  PackedType type;
  int32_t num_tiles;
  int32_t chunks;
  int32_t channels;
  int32_t cols;
};

template <typename T>
__global__ void __launch_bounds__(kUnpackThreads)
    UnpackTiles(const __grid_constant__ UnpackArgs args, T* out) {
  WaitForPrevious();
  AllowNext();
  const int64_t warp = int64_t{blockIdx.x} * kUnpackWarps + threadIdx.x / 32;
  const auto tile = static_cast<int32_t>(warp / args.chunks);
  const auto at = static_cast<int32_t>(warp % args.chunks);
  if (tile >= args.num_tiles) return;
  const bool whole = args.cols % 8 == 0;
  WithPackedType(args.type, [&](auto type) {
    Chunk<type()> chunk;
    chunk.template Load<InGlobal>(args.tiles + warp * ChunkBytes(type()));
    ForNumbers<T>(
        chunk, UnitsOf(args.units, tile), [&](int half, int32_t k, const float(&numbers)[8]) {
          const int32_t channel =
              tile * kTileChannels + static_cast<int32_t>(threadIdx.x % 32 / 4) + 8 * half;
          if (channel >= args.channels) return;
          StoreEight(numbers, out + int64_t{channel} * args.cols, at * kChunk + k, args.cols,
                     whole);
        });
  });
}

// A row of a table: in the lanes that have its channel.
template <typename T>
__global__ void __launch_bounds__(kUnpackThreads)
    EmbedPackedRows(const __grid_constant__ UnpackArgs args, float scale, float* out,
                    int64_t out_stride, StepView step) {
  WaitForPrevious();
  AllowNext();
  const StepRow& row = step.rows[blockIdx.x];
  float* to = out + blockIdx.x * out_stride;
  if (row.role == RowRole::kPadding) {
    for (auto i = static_cast<int32_t>(threadIdx.x); i < args.cols; i += kUnpackThreads) {
      to[i] = 0.0f;
    }
    return;
  }
  const auto token = static_cast<int32_t>(row.token);
  const int32_t tile = token / kTileChannels;
  const bool whole = args.cols % 8 == 0 && out_stride % 4 == 0;
  WithPackedType(args.type, [&](auto type) {
    for (auto at = static_cast<int32_t>(threadIdx.x / 32); at < args.chunks; at += kUnpackWarps) {
      Chunk<type()> chunk;
      chunk.template Load<InGlobal>(args.tiles +
                                    (int64_t{tile} * args.chunks + at) * ChunkBytes(type()));
      ForNumbers<T>(
          chunk, UnitsOf(args.units, tile), [&](int half, int32_t k, const float(&numbers)[8]) {
            const int32_t channel =
                tile * kTileChannels + static_cast<int32_t>(threadIdx.x % 32 / 4) + 8 * half;
            if (channel != token) return;
            float scaled[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) scaled[i] = numbers[i] * scale;
            StoreEight(scaled, to, at * kChunk + k, args.cols, whole);
          });
    }
  });
}

// The tiles of a part in one go.
int64_t MostTiles(const Weight& weight) {
  const int64_t tile_bytes =
      kTileChannels * weight.cols * static_cast<int64_t>(SizeOf(weight.dtype));
  return std::max<int64_t>(kMostUnpackedBytes / tile_bytes, 1);
}

UnpackArgs ArgsOf(const Weight& weight, const WeightPart& part, const std::byte* data,
                  int64_t first_tile) {
  const int64_t first = first_tile * kTileChannels;
  return {.tiles = data + first_tile * TileBytes(part.type, weight.cols),
          .units = reinterpret_cast<const float*>(data + TilesBytes(part, weight.cols)) + first,
          .type = part.type,
          .num_tiles = static_cast<int32_t>(Tiles(part.rows) - first_tile),
          .chunks = static_cast<int32_t>(Chunks(weight.cols)),
          .channels = static_cast<int32_t>(part.rows - first),
          .cols = static_cast<int32_t>(weight.cols)};
}

template <typename Visit>
void WithNarrowType(DType dtype, Visit&& visit) {
  if (dtype == DType::kFloat16) return visit(Half{});
  return visit(BFloat16{});
}

void LaunchUnpacking(Device& device, const UnpackArgs& args, DType dtype, std::byte* to) {
  const int64_t warps = int64_t{args.num_tiles} * args.chunks;
  WithNarrowType(dtype, [&](auto element) {
    using T = decltype(element);
    Launch(device, "unpacking of weights",
           {.grid = static_cast<unsigned>((warps + kUnpackWarps - 1) / kUnpackWarps),
            .block = kUnpackThreads},
           UnpackTiles<T>, args, reinterpret_cast<T*>(to));
  });
}

}  // namespace
}  // namespace packed

size_t UnpackedBytes(const Weight& weight) {
  int64_t most = 0;
  for (const WeightPart& part : weight.parts) most = std::max(most, Tiles(part.rows));
  const int64_t tiles = std::min(most, packed::MostTiles(weight));
  return static_cast<size_t>(tiles * kTileChannels * weight.cols) * SizeOf(weight.dtype);
}

void MultiplyUnpacked(Context& context, MatMuls& products, const TensorView& x,
                      const Weight& weight, const TensorView& out, bool accumulate) {
  std::byte* scratch = context.scratch.Get(Scratch::Use::kUnpacked, UnpackedBytes(weight));
  if (scratch == nullptr) return;
  const int64_t most = packed::MostTiles(weight);
  const auto* data = static_cast<const std::byte*>(weight.data);
  int64_t first_channel = 0;
  for (const WeightPart& part : weight.parts) {
    if (part.type == PackedType::kNone) break;
    for (int64_t tile = 0; tile < Tiles(part.rows); tile += most) {
      packed::UnpackArgs args = packed::ArgsOf(weight, part, data, tile);
      args.num_tiles = static_cast<int32_t>(std::min<int64_t>(args.num_tiles, most));
      args.channels = std::min(args.channels, args.num_tiles * kTileChannels);
      packed::LaunchUnpacking(context.device, args, weight.dtype, scratch);
      const int64_t channel = first_channel + tile * kTileChannels;
      products.Run(x, {scratch, weight.dtype, args.channels, weight.cols},
                   out.Columns(channel, args.channels), accumulate);
    }
    data += PartBytes(part, weight.cols);
    first_channel += part.rows;
  }
}

void UnpackWeight(Device& device, const Weight& weight, std::byte* to) {
  const auto* data = static_cast<const std::byte*>(weight.data);
  for (const WeightPart& part : weight.parts) {
    if (part.type == PackedType::kNone) break;
    packed::LaunchUnpacking(device, packed::ArgsOf(weight, part, data, 0), weight.dtype, to);
    data += PartBytes(part, weight.cols);
    to += part.rows * weight.cols * static_cast<int64_t>(SizeOf(weight.dtype));
  }
}

void EmbedPacked(Context& context, const Weight& table, float scale, const TensorView& out) {
  const packed::UnpackArgs args =
      packed::ArgsOf(table, table.parts[0], static_cast<const std::byte*>(table.data), 0);
  packed::WithNarrowType(table.dtype, [&](auto element) {
    using T = decltype(element);
    Launch(context.device, "Embed",
           {.grid = static_cast<unsigned>(context.step.num_rows), .block = packed::kUnpackThreads},
           packed::EmbedPackedRows<T>, args, scale, out.data, out.stride, context.step);
  });
}

}  // namespace eta::cuda
