// How the device keeps packed weights (eta-semantics.md, "Packed weights on CUDA"): in chunks of 16
// channels by 64 numbers of K, in the order in which the lanes of a warp multiply them.
//
// A part [N, K] is its tiles of 16 channels one after the other, each its chunks in the order of K,
// and then a float32 unit for every channel of the tiles. What is beyond N or K is zero. Lane l of
// a warp has channels r and r + 8 of a tile, r = l / 4, and of every group of 32 numbers those from
// 8 (l % 4) on, eight of them. A chunk is, in bytes:
//
//   int8     per group and lane 8 numbers of r, 8 of r + 8: integers q; then per r its scales:
//            float16 of (group 0, r), (0, r + 8), (1, r), (1, r + 8)
//   int4     per lane and group 4 bytes of r, 4 of r + 8; then per r: scale and minimum of
//            (group 0, r), (0, r + 8), (1, r), (1, r + 8)
//   e4m3     as int8; then one float32 scale for the whole chunk, and 12 bytes of zeros
//   sixteen  per group, half (r, r + 8) and lane 8 numbers of the type of products
//
// Of four neighbouring bytes of a channel the two in the middle change places, and nibbles lie so
// that one shift and one mask make a pair of neighbours.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace eta::cuda {

enum class PackedType : uint8_t { kNone, kSixteen, kInt8, kInt4, kE4M3 };

inline constexpr int kTileChannels = 16;
inline constexpr int kChunk = 64;       // numbers of K
inline constexpr int kChunkGroups = 2;  // of 32

// Rows of a matrix that follow each other and are kept in one type.
struct WeightPart {
  PackedType type = PackedType::kNone;
  int32_t rows = 0;

  bool operator==(const WeightPart&) const = default;
};

// A stack has so many parts at most.
inline constexpr int kMostParts = 4;
using WeightParts = std::array<WeightPart, kMostParts>;

constexpr int64_t ChunkBytes(PackedType type) {
  switch (type) {
    case PackedType::kInt8:
      return 1024 + 64;
    case PackedType::kInt4:
      return 512 + 128;
    case PackedType::kE4M3:
      return 1024 + 16;
    default:
      return 2048;
  }
}
// Where a chunk's scales begin.
constexpr int64_t ScalesAt(PackedType type) {
  return type == PackedType::kInt4 ? 512 : 1024;
}
constexpr int64_t Tiles(int64_t rows) {
  return (rows + kTileChannels - 1) / kTileChannels;
}
constexpr int64_t Chunks(int64_t cols) {
  return (cols + kChunk - 1) / kChunk;
}
constexpr int64_t TileBytes(PackedType type, int64_t cols) {
  return Chunks(cols) * ChunkBytes(type);
}
// Of the tiles of a part, without its units.
constexpr int64_t TilesBytes(const WeightPart& part, int64_t cols) {
  return Tiles(part.rows) * TileBytes(part.type, cols);
}
// A multiple of 256: the next part begins there.
constexpr int64_t PartBytes(const WeightPart& part, int64_t cols) {
  const int64_t units = Tiles(part.rows) * kTileChannels * int64_t{sizeof(float)};
  return (TilesBytes(part, cols) + units + 255) / 256 * 256;
}
constexpr int64_t PartsBytes(const WeightParts& parts, int64_t cols) {
  int64_t bytes = 0;
  for (const WeightPart& part : parts) bytes += PartBytes(part, cols);
  return bytes;
}

}  // namespace eta::cuda
