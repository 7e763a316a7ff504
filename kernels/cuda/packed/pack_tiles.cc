#include "kernels/cuda/packed/pack_tiles.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/dtype.h"
#include "kernels/weights/float8_scales.h"
#include "kernels/weights/host_rows.h"
#include "kernels/weights/integer_groups.h"

namespace eta::cuda {
namespace {

// A group of one channel, on its way into a chunk.
struct PackedGroup {
  std::array<int8_t, kGroupNumbers> q = {};  // int4: 0..15
  float scale = 0.0f;
  float low = 0.0f;
};

// The greatest scale or minimum of a channel, over its unit, is in 2^8 .. 2^9: most others are
// normal float16 then, and sums stay far from float32's limits.
constexpr int kTopExponent = 9;

// A power of two.
float UnitOf(float most) {
  if (most == 0.0f || !std::isfinite(most)) return 1.0f;
  int exponent;
  std::frexp(most, &exponent);  // most in 2^(exponent - 1) .. 2^exponent
  return std::ldexp(1.0f, std::clamp(exponent - kTopExponent, -100, 100));
}

uint16_t HalfOf(float value, float unit) {
  return FloatToHalf(value / unit);
}

// The place among four neighbours: the two in the middle change places.
int ByteOf(int i) {
  constexpr int kSwapped[4] = {0, 2, 1, 3};
  return i / 4 * 4 + kSwapped[i % 4];
}

// Where number `i` of group `group` of channel `channel` begins, of chunks with a byte for each.
size_t ByteAt(int channel, int group, int i) {
  const int lane = channel % 8 * 4 + i / 8;
  return static_cast<size_t>(group * 512 + lane * 16 + channel / 8 * 8 + ByteOf(i % 8));
}

void StoreHalf(uint16_t half, std::byte* to) {
  std::memcpy(to, &half, sizeof(half));
}

// Integers as int8 with one scale.
PackedGroup AsInt8(const IntegerGroup& group, const IntegerForm& form) {
  PackedGroup out;
  if (!form.has_low && (form.scales == 1 || group.factor[0] == group.factor[1])) {
    out.q = group.q;
    out.scale = group.scale(0);
    return out;
  }
  std::array<float, kGroupNumbers> numbers;
  UnpackGroup(group, form.has_low, numbers);
  float most = 0.0f;
  for (const float number : numbers) most = std::max(most, std::abs(number));
  out.scale = most / 127.0f;
  if (out.scale == 0.0f) return out;
  for (size_t i = 0; i < numbers.size(); ++i) {
    const float q = std::nearbyint(numbers[i] / out.scale);
    out.q[i] = static_cast<int8_t>(std::clamp(q, -127.0f, 127.0f));
  }
  return out;
}

PackedGroup AsInt4(const IntegerGroup& group, const IntegerForm& form) {
  PackedGroup out;
  out.scale = group.scale(0);
  out.low = form.has_low ? group.low() : 0.0f;
  if (form.offset != 0) out.low = out.scale * static_cast<float>(form.offset);
  for (size_t i = 0; i < out.q.size(); ++i) {
    out.q[i] = static_cast<int8_t>(group.q[i] + form.offset);
  }
  return out;
}

void StoreInt8(const PackedGroup& group, float unit, int channel, int at, std::byte* chunk) {
  for (int i = 0; i < kGroupNumbers; ++i) {
    chunk[ByteAt(channel, at, i)] = static_cast<std::byte>(group.q[static_cast<size_t>(i)]);
  }
  std::byte* scales = chunk + ScalesAt(PackedType::kInt8) + channel % 8 * 8;
  StoreHalf(HalfOf(group.scale, unit), scales + (at * 2 + channel / 8) * 2);
}

void StoreInt4(const PackedGroup& group, float unit, int channel, int at, std::byte* chunk) {
  for (int part = 0; part < 4; ++part) {
    uint32_t word = 0;
    for (int i = 0; i < 8; ++i) {
      const auto q = static_cast<uint32_t>(group.q[static_cast<size_t>(part * 8 + i)]) & 15u;
      word |= q << (i / 2 * 4 + i % 2 * 16);
    }
    const int lane = channel % 8 * 4 + part;
    std::memcpy(chunk + lane * 16 + (at * 2 + channel / 8) * 4, &word, sizeof(word));
  }
  std::byte* scales = chunk + ScalesAt(PackedType::kInt4) + channel % 8 * 16;
  scales += (at * 2 + channel / 8) * 4;
  StoreHalf(HalfOf(group.scale, unit), scales);
  StoreHalf(HalfOf(group.low, unit), scales + 2);
}

// The chunks of one tile, of a part of integers.
class IntegerTile {
 public:
  explicit IntegerTile(const PackJob& job)
      : job_(job), layout_(*PackedLayout(job.matrix, job.format)), form_(FormOf(layout_.type)) {
    blocks_.resize(BlockRowBytes(layout_, job.matrix.cols));
    groups_.resize(blocks_.size() / layout_.block_bytes * layout_.block_elements / kGroupNumbers);
    packed_.resize(groups_.size());
  }

  void Pack(int64_t row, int channel, std::byte* chunks, float& unit) {
    ReadBlocks(job_.matrix, row, layout_, blocks_);
    DecodeGroups(layout_, blocks_, groups_);
    const bool four = job_.type == PackedType::kInt4;
    float most = 0.0f;
    for (size_t g = 0; g < groups_.size(); ++g) {
      packed_[g] = four ? AsInt4(groups_[g], form_) : AsInt8(groups_[g], form_);
      most = std::max({most, std::abs(packed_[g].scale), std::abs(packed_[g].low)});
    }
    unit = UnitOf(most);
    const auto store = four ? StoreInt4 : StoreInt8;
    const auto num_groups = static_cast<size_t>(Chunks(job_.matrix.cols) * kChunkGroups);
    for (size_t g = 0; g < std::min(groups_.size(), num_groups); ++g) {
      std::byte* chunk = chunks + static_cast<int64_t>(g / kChunkGroups) * ChunkBytes(job_.type);
      store(packed_[g], unit, channel, static_cast<int>(g % kChunkGroups), chunk);
    }
  }

 private:
  const PackJob& job_;
  const GgmlLayout& layout_;
  IntegerForm form_;
  std::vector<std::byte> blocks_;
  std::vector<IntegerGroup> groups_;
  std::vector<PackedGroup> packed_;
};

class SixteenTile {
 public:
  explicit SixteenTile(const PackJob& job)
      : job_(job), numbers_(static_cast<size_t>(job.matrix.cols)) {}

  void Pack(int64_t row, int channel, std::byte* chunks, float& unit) {
    unit = 1.0f;
    ReadFloats(job_.matrix, row, numbers_);
    for (int64_t k = 0; k < job_.matrix.cols; ++k) {
      const auto in_chunk = static_cast<int>(k % kChunk);
      const int lane = channel % 8 * 4 + in_chunk % 32 / 8;
      std::byte* chunk = chunks + k / kChunk * ChunkBytes(PackedType::kSixteen);
      std::byte* eight = chunk + (in_chunk / 32 * 2 + channel / 8) * 512 + lane * 16;
      StoreElement(job_.sixteen, eight, in_chunk % 8, numbers_[static_cast<size_t>(k)]);
    }
  }

 private:
  const PackJob& job_;
  std::vector<float> numbers_;
};

// Scales of a block of columns stand in the chunks, those of a channel are its unit.
class Float8Tile {
 public:
  explicit Float8Tile(const PackJob& job) : job_(job) {}

  void Pack(int64_t row, int channel, std::byte* chunks, float& unit) {
    const HostMatrix& matrix = job_.matrix;
    const Float8Scales& scales = *matrix.float8;
    const bool by_channel = scales.block_cols >= matrix.cols;
    unit = by_channel ? scales.At(row, 0, matrix.cols) : 1.0f;
    const auto* codes = static_cast<const std::byte*>(matrix.data) + row * matrix.cols;
    for (int64_t k = 0; k < matrix.cols; ++k) {
      std::byte* chunk = chunks + k / kChunk * ChunkBytes(PackedType::kE4M3);
      const auto in_chunk = static_cast<int>(k % kChunk);
      if (in_chunk == 0) {
        const float scale = by_channel ? 1.0f : scales.At(row, k, matrix.cols);
        std::memcpy(chunk + ScalesAt(PackedType::kE4M3), &scale, sizeof(scale));
      }
      chunk[ByteAt(channel, in_chunk / kGroupNumbers, in_chunk % kGroupNumbers)] = codes[k];
      // The device knows no NaN of this type.
      if ((codes[k] & std::byte{0x7F}) == std::byte{0x7F}) {
        unit = std::numeric_limits<float>::quiet_NaN();
      }
    }
  }

 private:
  const PackJob& job_;
};

// Whether the device has such scales.
bool FitsTiles(const HostMatrix& matrix) {
  const Float8Scales& scales = *matrix.float8;
  if (scales.block_cols >= matrix.cols) return true;
  return scales.block_cols % kChunk == 0 &&
         (scales.block_rows % kTileChannels == 0 || scales.block_rows >= matrix.rows);
}

template <typename Tile>
void PackTilesAs(const PackJob& job, int64_t first, std::span<std::byte> chunks,
                 std::span<float> units) {
  Tile tile(job);
  const int64_t tile_bytes = TileBytes(job.type, job.matrix.cols);
  std::ranges::fill(chunks, std::byte{});
  for (size_t i = 0; i < units.size(); ++i) {
    const auto channel = static_cast<int>(i % kTileChannels);
    const int64_t row = first * kTileChannels + static_cast<int64_t>(i);
    units[i] = 0.0f;
    if (row >= job.matrix.rows) continue;
    std::byte* to = chunks.data() + static_cast<int64_t>(i / kTileChannels) * tile_bytes;
    tile.Pack(row, channel, to, units[i]);
  }
}

}  // namespace

PackedType PackedTypeOf(const HostMatrix& matrix, WeightFormat format) {
  if (matrix.float8 != nullptr && format == WeightFormat::kNative) {
    return FitsTiles(matrix) ? PackedType::kE4M3 : PackedType::kNone;
  }
  const GgmlLayout* layout = PackedLayout(matrix, format);
  if (layout == nullptr) return PackedType::kNone;
  const IntegerForm form = FormOf(layout->type);
  return form.bits == 4 && !form.coded ? PackedType::kInt4 : PackedType::kInt8;
}

void PackTiles(const PackJob& job, int64_t first, std::span<std::byte> chunks,
               std::span<float> units) {
  if (job.type == PackedType::kSixteen) return PackTilesAs<SixteenTile>(job, first, chunks, units);
  if (job.type == PackedType::kE4M3) return PackTilesAs<Float8Tile>(job, first, chunks, units);
  PackTilesAs<IntegerTile>(job, first, chunks, units);
}

}  // namespace eta::cuda
