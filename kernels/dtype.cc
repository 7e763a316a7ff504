#include "kernels/dtype.h"

#include <bit>
#include <cmath>
#include <cstring>

namespace eta {
namespace {

struct Format {
  DType dtype;
  std::string_view name;
  size_t bytes;
};

constexpr Format kFormats[] = {
    {DType::kFloat32, "float32", 4},
    {DType::kFloat16, "float16", 2},
    {DType::kBFloat16, "bfloat16", 2},
    {DType::kInt8, "int8", 1},
    {DType::kFloat64, "float64", 8},
    {DType::kInt32, "int32", 4},
    {DType::kInt64, "int64", 8},
    {DType::kUInt8, "uint8", 1},
    {DType::kFloat8E4M3, "float8_e4m3", 1},
};

const Format& Find(DType dtype) {
  return kFormats[static_cast<size_t>(dtype)];
}

}  // namespace

size_t SizeOf(DType dtype) {
  return Find(dtype).bytes;
}

std::string_view Name(DType dtype) {
  return Find(dtype).name;
}

std::optional<DType> ParseDType(std::string_view name) {
  for (const Format& format : kFormats) {
    if (format.name == name) return format.dtype;
  }
  return std::nullopt;
}

std::optional<WeightFormat> ParseWeightFormat(std::string_view name) {
  for (const auto format :
       {WeightFormat::kNative, WeightFormat::kInt8, WeightFormat::kInt4, WeightFormat::kUnpacked}) {
    if (Name(format) == name) return format;
  }
  return std::nullopt;
}

float HalfToFloat(uint16_t half) {
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t exponent = (half >> 10) & 0x1F;
  const uint32_t mantissa = half & 0x3FF;
  if (exponent == 0x1F) return std::bit_cast<float>(sign | 0x7F800000u | (mantissa << 13));
  if (exponent == 0) {  // zero or subnormal: mantissa * 2^-24 is exact in float32
    const float magnitude = std::ldexp(static_cast<float>(mantissa), -24);
    return sign != 0 ? -magnitude : magnitude;
  }
  return std::bit_cast<float>(sign | ((exponent + 112) << 23) | (mantissa << 13));
}

uint16_t FloatToHalf(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  const auto sign = static_cast<uint16_t>((bits >> 16) & 0x8000);
  const uint32_t magnitude = bits & 0x7FFFFFFF;
  if (magnitude > 0x7F800000) return sign | 0x7E00;   // NaN
  if (magnitude >= 0x477FF000) return sign | 0x7C00;  // rounds past 65504
  if (magnitude < 0x38800000) {                       // subnormal: a multiple of 2^-24
    const float scaled = std::bit_cast<float>(magnitude) * 0x1p24f;
    return sign | static_cast<uint16_t>(std::nearbyint(scaled));
  }
  const uint32_t rounded = magnitude + 0xFFF + ((magnitude >> 13) & 1);
  return sign | static_cast<uint16_t>((rounded - 0x38000000) >> 13);
}

float BFloat16ToFloat(uint16_t value) {
  return std::bit_cast<float>(static_cast<uint32_t>(value) << 16);
}

uint16_t FloatToBFloat16(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  if ((bits & 0x7FFFFFFF) > 0x7F800000) return static_cast<uint16_t>((bits >> 16) | 0x40);
  return static_cast<uint16_t>((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16);
}

float RoundTo(DType dtype, float value) {
  switch (dtype) {
    case DType::kFloat16:
      return HalfToFloat(FloatToHalf(value));
    case DType::kBFloat16:
      return BFloat16ToFloat(FloatToBFloat16(value));
    default:
      return value;
  }
}

float LoadElement(DType dtype, const void* array, int64_t i) {
  if (dtype == DType::kFloat32) return static_cast<const float*>(array)[i];
  const uint16_t bits = static_cast<const uint16_t*>(array)[i];
  return dtype == DType::kFloat16 ? HalfToFloat(bits) : BFloat16ToFloat(bits);
}

void StoreElement(DType dtype, void* array, int64_t i, float value) {
  if (dtype == DType::kFloat32) {
    static_cast<float*>(array)[i] = value;
  } else {
    static_cast<uint16_t*>(array)[i] =
        dtype == DType::kFloat16 ? FloatToHalf(value) : FloatToBFloat16(value);
  }
}

}  // namespace eta
