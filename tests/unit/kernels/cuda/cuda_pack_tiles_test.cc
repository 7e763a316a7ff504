// The arrangement of packed weights on a device, read back number by number. No device is needed.

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/cuda/packed/pack_tiles.h"
#include "kernels/quantize.h"
#include "tests/testing/kernels/kernel_harness.h"
#include "tests/testing/kernels/random_blocks.h"

namespace eta::cuda {
namespace {

using testing::HostTensor;
using testing::Random;

// Reads a chunk as packed_layout.h describes it, for one lane.
class ChunkReader {
 public:
  ChunkReader(const std::byte* chunk, PackedType type) : chunk_(chunk), type_(type) {}

  // Number `i` of eight of a lane, of channel r or r + 8, without the channel's unit.
  float Number(int lane, int group, int half, int i) const {
    switch (type_) {
      case PackedType::kInt8:
        return Integer8(lane, group, half, i) * Half(1024 + lane / 4 * 8 + group * 4 + half * 2);
      case PackedType::kE4M3:
        return Read<float>(1024) * E4M3ToFloat(static_cast<uint8_t>(Byte(lane, group, half, i)));
      case PackedType::kInt4: {
        const size_t at = static_cast<size_t>(512 + lane / 4 * 16 + group * 8 + half * 4);
        const auto word = Read<uint32_t>(static_cast<size_t>(lane * 16 + group * 8 + half * 4));
        const auto q = static_cast<float>(word >> (i / 2 * 4 + i % 2 * 16) & 15u);
        return Half(at) * q - Half(at + 2);
      }
      default:
        return BFloat16ToFloat(
            Read<uint16_t>(static_cast<size_t>((group * 2 + half) * 512 + lane * 16 + i * 2)));
    }
  }

 private:
  template <typename T>
  T Read(size_t at) const {
    T value;
    std::memcpy(&value, chunk_ + at, sizeof(value));
    return value;
  }
  float Half(size_t at) const { return HalfToFloat(Read<uint16_t>(at)); }
  float Integer8(int lane, int group, int half, int i) const {
    return static_cast<float>(Byte(lane, group, half, i));
  }
  int8_t Byte(int lane, int group, int half, int i) const {
    constexpr int kPlace[] = {0, 2, 1, 3};
    const int at = group * 512 + lane * 16 + half * 8 + i / 4 * 4 + kPlace[i % 4];
    return Read<int8_t>(static_cast<size_t>(at));
  }

  const std::byte* chunk_;
  PackedType type_;
};

HostTensor ReadBack(const PackJob& job) {
  const int64_t tiles = Tiles(job.matrix.rows);
  const int64_t cols = job.matrix.cols;
  std::vector<std::byte> bytes(static_cast<size_t>(tiles * TileBytes(job.type, cols)),
                               std::byte{0xFF});
  std::vector<float> units(static_cast<size_t>(tiles * kTileChannels),
                           std::numeric_limits<float>::quiet_NaN());
  PackTiles(job, 0, bytes, units);
  HostTensor numbers(tiles * kTileChannels, Chunks(cols) * kChunk);
  for (int64_t tile = 0; tile < tiles; ++tile) {
    for (int64_t chunk = 0; chunk < Chunks(cols); ++chunk) {
      const ChunkReader reader(&bytes[static_cast<size_t>(tile * TileBytes(job.type, cols) +
                                                          chunk * ChunkBytes(job.type))],
                               job.type);
      for (int at = 0; at < 32 * 32; ++at) {
        const int lane = at / 32;
        const int group = at / 16 % 2;
        const int half = at / 8 % 2;
        const int64_t channel = tile * kTileChannels + lane / 4 + 8 * half;
        const int64_t k = chunk * kChunk + group * 32 + lane % 4 * 8 + at % 8;
        numbers.row(channel)[k] =
            units[static_cast<size_t>(channel)] * reader.Number(lane, group, half, at % 8);
      }
    }
  }
  return numbers;
}

void ExpectNumbers(const HostTensor& got, const HostTensor& want, double loss, const char* what) {
  for (int64_t r = 0; r < got.rows; ++r) {
    for (int64_t k = 0; k < got.cols; ++k) {
      if (r < want.rows && k < want.cols) continue;
      ASSERT_EQ(got.row(r)[k], 0.0f) << what << ": beyond the matrix";
    }
    if (r >= want.rows) continue;
    ASSERT_LE(testing::RelativeError(got.row(r), want.row(r), want.cols), loss)
        << what << ": row " << r;
  }
}

TEST(PackTiles, KeepBlocksOfEveryType) {
  Random random(61);
  for (const GgmlLayout& layout : testing::PackedLayouts()) {
    std::vector<std::byte> storage;
    const HostMatrix host = testing::RandomPackedMatrix(random, layout, 41, 768, storage);
    const PackedType type = PackedTypeOf(host, WeightFormat::kNative);
    EXPECT_EQ(type, layout.name[1] == '4' ? PackedType::kInt4 : PackedType::kInt8) << layout.name;
    EXPECT_EQ(PackedTypeOf(host, WeightFormat::kUnpacked), PackedType::kNone);
    const bool same = layout.type == GgmlType::kQ8_0 || layout.type == GgmlType::kQ4_0 ||
                      layout.type == GgmlType::kQ4_1 || layout.type == GgmlType::kQ5_0;
    const double loss = same ? 1e-7 : layout.type == GgmlType::kQ4_K ? 1e-3 : 1e-2;
    const HostTensor got = ReadBack({host, WeightFormat::kNative, type, DType::kBFloat16});
    ExpectNumbers(got, testing::Unpacked(host), loss, layout.name);
  }
}

TEST(PackTiles, KeepNumbers) {
  Random random(62);
  for (const int64_t cols : {8, 72, 100, 320}) {
    const HostTensor want =
        testing::Rounded(testing::Normal(random, 19, cols, 0.1f), DType::kBFloat16);
    std::vector<std::byte> storage;
    const HostMatrix host = testing::ToHostMatrix(want, DType::kFloat32, storage);
    const auto read = [&](WeightFormat format, PackedType type) {
      return ReadBack({host, format, type, DType::kBFloat16});
    };
    ExpectNumbers(read(WeightFormat::kNative, PackedType::kSixteen), want, 0.0, "sixteen");
    ExpectNumbers(read(WeightFormat::kInt8, PackedType::kInt8), want, 0.01, "int8");
  }
}

TEST(PackTiles, KeepE4M3OfEveryBlockSize) {
  Random random(63);
  struct Blocks {
    int64_t rows, cols;
    PackedType type;
  };
  for (const Blocks& blocks : {Blocks{1, 200, PackedType::kE4M3},
                               {70, 200, PackedType::kE4M3},
                               {128, 128, PackedType::kE4M3},
                               {16, 64, PackedType::kE4M3},
                               {1, 128, PackedType::kNone},
                               {128, 32, PackedType::kNone}}) {
    testing::Float8Matrix matrix(random, 70, 200, blocks.rows, blocks.cols);
    EXPECT_EQ(PackedTypeOf(matrix.host(), WeightFormat::kNative), blocks.type);
    if (blocks.type == PackedType::kNone) continue;
    const HostTensor got =
        ReadBack({matrix.host(), WeightFormat::kNative, blocks.type, DType::kBFloat16});
    ExpectNumbers(got, testing::Unpacked(matrix.host()), 0.0, "e4m3");
  }
}

}  // namespace
}  // namespace eta::cuda
