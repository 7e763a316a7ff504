// lint: fuzz-covered
#include "kernels/weights/integer_groups.h"

#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/dtype.h"

namespace eta {
namespace {

// Little-endian, as the host is.
float Half(const uint8_t* bytes) {
  uint16_t half;
  std::memcpy(&half, bytes, sizeof(half));
  return HalfToFloat(half);
}

uint32_t Word(const uint8_t* bytes) {
  uint32_t word;
  std::memcpy(&word, bytes, sizeof(word));
  return word;
}

// Of blocks of 32: two numbers share a byte, number i and number i + 16.
int Nibble(const uint8_t* packed, int i) {
  return i < 16 ? packed[i] & 0x0F : packed[i - 16] >> 4;
}

int FiveBits(const uint8_t* packed, uint32_t high, int i) {
  return Nibble(packed, i) | static_cast<int>((high >> i & 1) << 4);
}

// One function per type: a block at `b` as the groups at `out`.

void DecodeQ8_0(const uint8_t* b, IntegerGroup* out) {
  out->unit = Half(b);
  std::memcpy(out->q.data(), b + 2, kGroupNumbers);
}

void DecodeQ4_0(const uint8_t* b, IntegerGroup* out) {
  out->unit = Half(b);
  for (int i = 0; i < kGroupNumbers; ++i) out->q[i] = static_cast<int8_t>(Nibble(b + 2, i) - 8);
}

void DecodeQ4_1(const uint8_t* b, IntegerGroup* out) {
  out->unit = Half(b);
  out->low_unit = -Half(b + 2);
  for (int i = 0; i < kGroupNumbers; ++i) out->q[i] = static_cast<int8_t>(Nibble(b + 4, i));
}

void DecodeQ5_0(const uint8_t* b, IntegerGroup* out) {
  out->unit = Half(b);
  const uint32_t high = Word(b + 2);
  for (int i = 0; i < kGroupNumbers; ++i) {
    out->q[i] = static_cast<int8_t>(FiveBits(b + 6, high, i) - 16);
  }
}

void DecodeQ5_1(const uint8_t* b, IntegerGroup* out) {
  out->unit = Half(b);
  out->low_unit = -Half(b + 2);
  const uint32_t high = Word(b + 4);
  for (int i = 0; i < kGroupNumbers; ++i) {
    out->q[i] = static_cast<int8_t>(FiveBits(b + 8, high, i));
  }
}

// Of Q4_K and Q5_K: scale and minimum of the eight groups, of six bits each, in 12 bytes.
void DecodeFactors(const uint8_t* b, IntegerGroup* out) {
  for (int i = 0; i < 4; ++i) {
    out[i].factor[0] = static_cast<int8_t>(b[i] & 0x3F);
    out[i].low_factor = static_cast<int8_t>(b[4 + i] & 0x3F);
    out[4 + i].factor[0] = static_cast<int8_t>((b[8 + i] & 0x0F) | (b[i] >> 6) << 4);
    out[4 + i].low_factor = static_cast<int8_t>(b[8 + i] >> 4 | (b[4 + i] >> 6) << 4);
  }
}

// `high`: bit g of byte i is the fifth bit of number i of group g; null: there are four bits.
void DecodeNested(const uint8_t* b, const uint8_t* high, const uint8_t* packed, IntegerGroup* out) {
  DecodeFactors(b + 4, out);
  for (int g = 0; g < 8; ++g) {
    IntegerGroup& group = out[g];
    group.unit = Half(b);
    group.low_unit = Half(b + 2);
    group.factor[1] = group.factor[0];
    const uint8_t* bytes = packed + g / 2 * kGroupNumbers;
    for (int i = 0; i < kGroupNumbers; ++i) {
      int value = g % 2 == 0 ? bytes[i] & 0x0F : bytes[i] >> 4;
      if (high != nullptr) value |= (high[i] >> g & 1) << 4;
      group.q[i] = static_cast<int8_t>(value);
    }
  }
}

void DecodeQ4_K(const uint8_t* b, IntegerGroup* out) {
  DecodeNested(b, nullptr, b + 16, out);
}

void DecodeQ5_K(const uint8_t* b, IntegerGroup* out) {
  DecodeNested(b, b + 16, b + 48, out);
}

// 128 bytes of low four bits, 64 of high two bits, 16 scales, one scale of scales.
void DecodeQ6_K(const uint8_t* b, IntegerGroup* out) {
  for (int g = 0; g < 8; ++g) {
    IntegerGroup& group = out[g];
    group.unit = Half(b + 208);
    std::memcpy(group.factor.data(), b + 192 + 2 * g, 2);
    const int half = g / 4;  // each half has bytes of its own
    const int quarter = g % 4;
    const uint8_t* low = b + half * 64 + quarter % 2 * kGroupNumbers;
    const uint8_t* high = b + 128 + half * kGroupNumbers;
    for (int i = 0; i < kGroupNumbers; ++i) {
      const int low_bits = quarter < 2 ? low[i] & 0x0F : low[i] >> 4;
      const int high_bits = high[i] >> (2 * quarter) & 3;
      group.q[i] = static_cast<int8_t>((low_bits | high_bits << 4) - 32);
    }
  }
}

// A scale of e8m0, of which 255 is NaN, and 16 bytes of codes.
void DecodeMXFP4(const uint8_t* b, IntegerGroup* out) {
  constexpr int kNan = 255;
  constexpr int kOne = 128;  // of 2^0 for numbers that are doubled
  out->unit = b[0] == kNan ? std::numeric_limits<float>::quiet_NaN()
                           : std::ldexp(1.0f, static_cast<int>(b[0]) - kOne);
  for (int i = 0; i < kGroupNumbers; ++i) {
    out->q[i] = kCodedNumbers[static_cast<size_t>(Nibble(b + 1, i))];
  }
}

using Decode = void (*)(const uint8_t*, IntegerGroup*);

Decode DecoderOf(GgmlType type) {
  switch (type) {
    case GgmlType::kQ4_0:
      return DecodeQ4_0;
    case GgmlType::kQ4_1:
      return DecodeQ4_1;
    case GgmlType::kQ5_0:
      return DecodeQ5_0;
    case GgmlType::kQ5_1:
      return DecodeQ5_1;
    case GgmlType::kQ4_K:
      return DecodeQ4_K;
    case GgmlType::kQ5_K:
      return DecodeQ5_K;
    case GgmlType::kQ6_K:
      return DecodeQ6_K;
    case GgmlType::kMXFP4:
      return DecodeMXFP4;
    default:
      return DecodeQ8_0;
  }
}

}  // namespace

void DecodeGroups(const GgmlLayout& layout, std::span<const std::byte> blocks,
                  std::span<IntegerGroup> out) {
  const Decode decode = DecoderOf(layout.type);
  const size_t groups = layout.block_elements / kGroupNumbers;
  for (; !blocks.empty(); blocks = blocks.subspan(layout.block_bytes)) {
    decode(reinterpret_cast<const uint8_t*>(blocks.data()), out.data());
    out = out.subspan(groups);
  }
}

void UnpackGroup(const IntegerGroup& group, bool has_low, std::span<float, kGroupNumbers> out) {
  const float low = group.low();
  for (size_t i = 0; i < kGroupNumbers; ++i) {
    const float number = static_cast<float>(group.q[i]) * group.scale(i / (kGroupNumbers / 2));
    out[i] = has_low ? number - low : number;
  }
}

}  // namespace eta
