// The 8-bit forms of the KV cache and of block records (eta-semantics.md, "8-bit cache", "8-bit
// index" and "Index kinds"). Most are e4m3 with a power of two as scale. e4m3 has 4 bits of
// exponent and 3 of mantissa, its largest magnitude is 448, and it has NaN but no infinities.
#pragma once

#include <cstdint>
#include <span>

namespace eta {

inline constexpr float kMaxE4M3 = 448.0f;
inline constexpr int32_t kMinScaleExponent = -100;
inline constexpr int32_t kMaxScaleExponent = 120;

// Rounds to nearest, ties to even. A magnitude above 448 becomes 448; NaN stays NaN.
uint8_t FloatToE4M3(float value);
// The least e4m3 that is not below `value`. REQUIRES: value in 0..448.
uint8_t FloatToE4M3Up(float value);
float E4M3ToFloat(uint8_t value);

// The least exponent x in kMinScaleExponent..kMaxScaleExponent with largest <= 448 * 2^x; the
// greatest one for NaN and infinity.
int32_t ScaleExponent(float largest);

// Quantizes one token's K or V of one KV head as the 8-bit cache stores it: value i is 2^exponent *
// E4M3ToFloat(out[i]). Returns the exponent.
int32_t QuantizeRow(std::span<const float> row, std::span<uint8_t> out);

// The scalars of an 8-bit record, beside its vectors [d]. QuantizeRecord makes both from mu and
// sigma as a float16 record has them.
struct RecordScales {
  float mu_scale;          // p
  float mu_error;          // e
  int32_t sigma_exponent;  // x
};
RecordScales QuantizeRecord(std::span<const float> mu, std::span<const float> sigma,
                            std::span<int8_t> mu8, std::span<uint8_t> sigma8);

// The least float16 that is not below `value`, which is at least 0; infinity for NaN and beyond
// float16.
float HalfUp(float value);

// The steps of an 8-bit outlier record, beside its vectors [d]: float16 values.
struct OutlierSteps {
  float step;          // A: of mu and sigma
  float outlier_step;  // B
};
// Makes an 8-bit outlier record of mu and outlier, both less the centre, and sigma. Half a step
// bounds what an element of mu or of the outlier loses; sigma never falls. A step beyond float16,
// or of a value that is not finite, is infinite, and its vector zero.
OutlierSteps QuantizeOutlierRecord(std::span<const float> mu, std::span<const float> sigma,
                                   std::span<const float> outlier, std::span<int8_t> mu8,
                                   std::span<uint8_t> sigma8, std::span<int8_t> outlier8);

}  // namespace eta
