// Number formats of tensors, weights and the KV cache, and their scalar conversions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace eta {

enum class DType : uint8_t {
  kFloat32,
  kFloat16,
  kBFloat16,
  kInt8,
  kFloat64,
  kInt32,
  kInt64,
  kUInt8,
  kFloat8E4M3  // for the KV cache only, with scales: quantize.h
};

// How a weight matrix is kept. kNative: as in the checkpoint, in float32, float16, bfloat16 or
// blocks of 4 to 8 bits; on cuda numbers in the type of products, blocks in the nearest form that
// its kernels have. kInt8, kInt4: in blocks of so many bits, made at load of what has more
// (eta-semantics.md, "Packed weights"). kUnpacked: blocks too become numbers.
enum class WeightFormat : uint8_t { kNative, kInt8, kInt4, kUnpacked };

// "native", "int8", "int4" or "unpacked", as flags and answers have them.
constexpr std::string_view Name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kInt8:
      return "int8";
    case WeightFormat::kInt4:
      return "int4";
    case WeightFormat::kUnpacked:
      return "unpacked";
    default:
      return "native";
  }
}

// Bytes per element.
size_t SizeOf(DType dtype);

// "float32", "float16", ...: the names used by flags, files and answers.
std::string_view Name(DType dtype);
std::optional<DType> ParseDType(std::string_view name);

// Of a format's Name(); nullopt for any other word.
std::optional<WeightFormat> ParseWeightFormat(std::string_view name);

// Conversions of the 16-bit formats, rounding to nearest even; NaN stays NaN.
float HalfToFloat(uint16_t half);
uint16_t FloatToHalf(float value);
float BFloat16ToFloat(uint16_t value);
uint16_t FloatToBFloat16(float value);

// `value` as it reads back after it was stored as `dtype` (float32, float16 or bfloat16).
float RoundTo(DType dtype, float value);

// Reads or writes element `i` of an array of floating-point `dtype` (float32, float16, bfloat16).
float LoadElement(DType dtype, const void* array, int64_t i);
void StoreElement(DType dtype, void* array, int64_t i, float value);

}  // namespace eta
