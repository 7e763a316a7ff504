// lint: fuzz-covered
#include "kernels/weights/ggml_type.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>

#include "absl/strings/str_cat.h"

namespace eta {
namespace {

constexpr GgmlLayout kLayouts[] = {
    {GgmlType::kF32, "F32", 1, 4, DType::kFloat32},
    {GgmlType::kF16, "F16", 1, 2, DType::kFloat16},
    {GgmlType::kBF16, "BF16", 1, 2, DType::kBFloat16},
    {GgmlType::kQ8_0, "Q8_0", 32, 34, DType::kFloat32},
    {GgmlType::kQ4_0, "Q4_0", 32, 18, DType::kFloat32},
    {GgmlType::kQ4_1, "Q4_1", 32, 20, DType::kFloat32},
    {GgmlType::kQ5_0, "Q5_0", 32, 22, DType::kFloat32},
    {GgmlType::kQ5_1, "Q5_1", 32, 24, DType::kFloat32},
    {GgmlType::kQ4_K, "Q4_K", 256, 144, DType::kFloat32},
    {GgmlType::kQ5_K, "Q5_K", 256, 176, DType::kFloat32},
    {GgmlType::kQ6_K, "Q6_K", 256, 210, DType::kFloat32},
};

struct NamedType {
  uint32_t type;
  const char* name;
};
constexpr NamedType kOtherTypes[] = {
    {9, "Q8_1"},     {10, "Q2_K"},  {11, "Q3_K"},   {15, "Q8_K"},  {16, "IQ2_XXS"}, {17, "IQ2_XS"},
    {18, "IQ3_XXS"}, {19, "IQ1_S"}, {20, "IQ4_NL"}, {21, "IQ3_S"}, {22, "IQ2_S"},   {23, "IQ4_XS"},
    {24, "I8"},      {25, "I16"},   {26, "I32"},    {27, "I64"},   {28, "F64"},     {29, "IQ1_M"},
    {34, "TQ1_0"},   {35, "TQ2_0"}, {39, "MXFP4"},  {40, "NVFP4"},
};

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

// One function per type: a block at `b` as numbers at `out`.

void UnpackQ8_0(const uint8_t* b, float* out) {
  const float scale = Half(b);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(static_cast<int8_t>(b[2 + i])) * scale;
}

void UnpackQ4_0(const uint8_t* b, float* out) {
  const float scale = Half(b);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(Nibble(b + 2, i) - 8) * scale;
}

void UnpackQ4_1(const uint8_t* b, float* out) {
  const float scale = Half(b);
  const float low = Half(b + 2);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(Nibble(b + 4, i)) * scale + low;
}

int FiveBits(const uint8_t* packed, uint32_t high, int i) {
  return Nibble(packed, i) | static_cast<int>((high >> i & 1) << 4);
}

void UnpackQ5_0(const uint8_t* b, float* out) {
  const float scale = Half(b);
  const uint32_t high = Word(b + 2);
  for (int i = 0; i < 32; ++i) out[i] = static_cast<float>(FiveBits(b + 6, high, i) - 16) * scale;
}

void UnpackQ5_1(const uint8_t* b, float* out) {
  const float scale = Half(b);
  const float low = Half(b + 2);
  const uint32_t high = Word(b + 4);
  for (int i = 0; i < 32; ++i) {
    out[i] = static_cast<float>(FiveBits(b + 8, high, i)) * scale + low;
  }
}

// Of Q4_K and Q5_K: scale and minimum of the eight groups of 32, of six bits each, in 12 bytes.
struct GroupScales {
  std::array<int, 8> scale;
  std::array<int, 8> low;
};
GroupScales ReadGroupScales(const uint8_t* b) {
  GroupScales groups;
  for (int i = 0; i < 4; ++i) {
    groups.scale[i] = b[i] & 0x3F;
    groups.low[i] = b[4 + i] & 0x3F;
    groups.scale[4 + i] = (b[8 + i] & 0x0F) | (b[i] >> 6) << 4;
    groups.low[4 + i] = b[8 + i] >> 4 | (b[4 + i] >> 6) << 4;
  }
  return groups;
}

// `high`: bit g of byte i is the fifth bit of number i of group g; null: there are four bits.
void UnpackGroups(const uint8_t* b, const uint8_t* high, const uint8_t* packed, float* out) {
  const float scale = Half(b);
  const float low = Half(b + 2);
  const GroupScales groups = ReadGroupScales(b + 4);
  for (int g = 0; g < 8; ++g) {
    const float group_scale = scale * static_cast<float>(groups.scale[g]);
    const float group_low = low * static_cast<float>(groups.low[g]);
    const uint8_t* bytes = packed + g / 2 * 32;
    for (int i = 0; i < 32; ++i) {
      int value = g % 2 == 0 ? bytes[i] & 0x0F : bytes[i] >> 4;
      if (high != nullptr) value |= (high[i] >> g & 1) << 4;
      out[g * 32 + i] = group_scale * static_cast<float>(value) - group_low;
    }
  }
}

void UnpackQ4_K(const uint8_t* b, float* out) {
  UnpackGroups(b, nullptr, b + 16, out);
}

void UnpackQ5_K(const uint8_t* b, float* out) {
  UnpackGroups(b, b + 16, b + 48, out);
}

// 128 bytes of low four bits, 64 of high two bits, 16 scales, one scale of scales.
void UnpackQ6_K(const uint8_t* b, float* out) {
  const uint8_t* high = b + 128;
  const uint8_t* scales = b + 192;
  const float scale = Half(b + 208);
  for (int i = 0; i < 256; ++i) {
    const int half = i / 128;  // each half has bytes of its own
    const int quarter = i % 128 / 32;
    const int at = i % 32;
    const uint8_t low_byte = b[half * 64 + quarter % 2 * 32 + at];
    const int low_bits = quarter < 2 ? low_byte & 0x0F : low_byte >> 4;
    const int high_bits = high[half * 32 + at] >> (2 * quarter) & 3;
    const float group_scale = scale * static_cast<float>(static_cast<int8_t>(scales[i / 16]));
    out[i] = group_scale * static_cast<float>((low_bits | high_bits << 4) - 32);
  }
}

template <void (*Unpack)(const uint8_t*, float*)>
void UnpackAll(const GgmlLayout& layout, std::span<const std::byte> blocks,
               std::span<std::byte> out) {
  std::array<float, 256> numbers;
  const size_t bytes = layout.block_elements * sizeof(float);
  for (; !blocks.empty(); blocks = blocks.subspan(layout.block_bytes)) {
    Unpack(reinterpret_cast<const uint8_t*>(blocks.data()), numbers.data());
    std::memcpy(out.data(), numbers.data(), bytes);
    out = out.subspan(bytes);
  }
}

}  // namespace

std::optional<GgmlLayout> FindGgmlLayout(uint32_t type) {
  const auto* found = std::find_if(
      std::begin(kLayouts), std::end(kLayouts),
      [type](const GgmlLayout& layout) { return static_cast<uint32_t>(layout.type) == type; });
  if (found == std::end(kLayouts)) return std::nullopt;
  return *found;
}

std::string GgmlTypeName(uint32_t type) {
  if (const auto layout = FindGgmlLayout(type)) return layout->name;
  const auto* found = std::find_if(std::begin(kOtherTypes), std::end(kOtherTypes),
                                   [type](const NamedType& named) { return named.type == type; });
  return found == std::end(kOtherTypes) ? absl::StrCat("number ", type) : found->name;
}

std::string KnownGgmlTypes() {
  std::string names;
  for (const GgmlLayout& layout : kLayouts) {
    absl::StrAppend(&names, names.empty() ? "" : ", ", layout.name);
  }
  return names;
}

void UnpackBlocks(const GgmlLayout& layout, std::span<const std::byte> blocks,
                  std::span<std::byte> out) {
  switch (layout.type) {
    case GgmlType::kF32:
    case GgmlType::kF16:
    case GgmlType::kBF16:
      if (!blocks.empty()) std::memcpy(out.data(), blocks.data(), blocks.size());
      return;
    case GgmlType::kQ8_0:
      return UnpackAll<UnpackQ8_0>(layout, blocks, out);
    case GgmlType::kQ4_0:
      return UnpackAll<UnpackQ4_0>(layout, blocks, out);
    case GgmlType::kQ4_1:
      return UnpackAll<UnpackQ4_1>(layout, blocks, out);
    case GgmlType::kQ5_0:
      return UnpackAll<UnpackQ5_0>(layout, blocks, out);
    case GgmlType::kQ5_1:
      return UnpackAll<UnpackQ5_1>(layout, blocks, out);
    case GgmlType::kQ4_K:
      return UnpackAll<UnpackQ4_K>(layout, blocks, out);
    case GgmlType::kQ5_K:
      return UnpackAll<UnpackQ5_K>(layout, blocks, out);
    case GgmlType::kQ6_K:
      return UnpackAll<UnpackQ6_K>(layout, blocks, out);
  }
}

}  // namespace eta
