#include "kernels/quantize.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>

#include "kernels/dtype.h"

namespace eta {
namespace {

constexpr uint8_t kNaN = 0x7F;
constexpr uint8_t kLargest = 0x7E;  // 448

float LargestMagnitude(std::span<const float> values) {
  float largest = 0.0f;
  for (const float value : values) {
    if (std::isnan(value)) return value;
    largest = std::max(largest, std::abs(value));
  }
  return largest;
}

bool Divides(float step) {
  return step > 0.0f && std::isfinite(step);
}

void RoundToSteps(std::span<const float> values, float step, std::span<int8_t> out) {
  for (size_t i = 0; i < values.size(); ++i) {
    const float steps = Divides(step) ? std::nearbyint(values[i] / step) : 0.0f;
    out[i] = static_cast<int8_t>(std::clamp(steps, -127.0f, 127.0f));
  }
}

}  // namespace

float E4M3ToFloat(uint8_t value) {
  const int exponent = value >> 3 & 0xF;
  const int mantissa = value & 0x7;
  if ((value & 0x7F) == kNaN) return std::nanf("");
  // Subnormals are multiples of 2^-9.
  const float magnitude = exponent == 0
                              ? std::ldexp(static_cast<float>(mantissa), -9)
                              : std::ldexp(static_cast<float>(8 + mantissa), exponent - 10);
  return (value & 0x80) != 0 ? -magnitude : magnitude;
}

uint8_t FloatToE4M3(float value) {
  const uint8_t sign = std::signbit(value) ? 0x80 : 0;
  if (std::isnan(value)) return sign | kNaN;
  const float magnitude = std::min(std::abs(value), kMaxE4M3);
  // The spacing of e4m3 around the magnitude: 2^-9 below 2^-6, else an eighth of its power of two.
  const int exponent = std::max(std::ilogb(std::max(magnitude, 0x1p-6f)), -6);
  const auto steps = static_cast<int>(std::nearbyint(std::ldexp(magnitude, 3 - exponent)));
  // The 8 that stands for the implicit bit carries into the exponent; so do 16 steps.
  return sign | static_cast<uint8_t>(((exponent + 6) << 3) + steps);
}

uint8_t FloatToE4M3Up(float value) {
  const uint8_t nearest = FloatToE4M3(value);
  return E4M3ToFloat(nearest) < value && nearest < kLargest ? nearest + 1 : nearest;
}

int32_t ScaleExponent(float largest) {
  if (!std::isfinite(largest)) return kMaxScaleExponent;
  int32_t exponent = kMinScaleExponent;
  if (largest > 0.0f) exponent = std::max(std::ilogb(largest) - 9, kMinScaleExponent);
  while (largest > std::ldexp(kMaxE4M3, exponent)) ++exponent;
  return exponent;
}

int32_t QuantizeRow(std::span<const float> row, std::span<uint8_t> out) {
  const int32_t exponent = ScaleExponent(LargestMagnitude(row));
  for (size_t i = 0; i < row.size(); ++i) out[i] = FloatToE4M3(std::ldexp(row[i], -exponent));
  return exponent;
}

RecordScales QuantizeRecord(std::span<const float> mu, std::span<const float> sigma,
                            std::span<int8_t> mu8, std::span<uint8_t> sigma8) {
  RecordScales scales = {};
  scales.mu_scale = LargestMagnitude(mu) / 127.0f;
  float squares = 0.0f;
  for (size_t i = 0; i < mu.size(); ++i) {
    const bool divides = scales.mu_scale > 0.0f && std::isfinite(scales.mu_scale);
    const float steps = divides ? std::nearbyint(mu[i] / scales.mu_scale) : 0.0f;
    mu8[i] = static_cast<int8_t>(std::clamp(steps, -127.0f, 127.0f));
    const float lost = mu[i] - scales.mu_scale * static_cast<float>(mu8[i]);
    squares += lost * lost;
  }
  scales.mu_error = std::sqrt(squares);
  scales.sigma_exponent = ScaleExponent(LargestMagnitude(sigma));
  for (size_t i = 0; i < sigma.size(); ++i) {
    sigma8[i] = FloatToE4M3Up(std::ldexp(sigma[i], -scales.sigma_exponent));
  }
  return scales;
}

float HalfUp(float value) {
  if (std::isnan(value)) return std::numeric_limits<float>::infinity();
  const uint16_t nearest = FloatToHalf(value);
  // The next float16 of a positive one is the next integer.
  return HalfToFloat(nearest) < value ? HalfToFloat(nearest + 1) : HalfToFloat(nearest);
}

OutlierSteps QuantizeOutlierRecord(std::span<const float> mu, std::span<const float> sigma,
                                   std::span<const float> outlier, std::span<int8_t> mu8,
                                   std::span<uint8_t> sigma8, std::span<int8_t> outlier8) {
  const float largest_mu = LargestMagnitude(mu) / 127.0f;
  const float largest_sigma = LargestMagnitude(sigma) / 255.0f;
  OutlierSteps steps = {};
  // A comparison with NaN is false, so each is asked by itself.
  steps.step = std::max(HalfUp(largest_mu), HalfUp(largest_sigma));
  steps.outlier_step = HalfUp(LargestMagnitude(outlier) / 127.0f);
  RoundToSteps(mu, steps.step, mu8);
  RoundToSteps(outlier, steps.outlier_step, outlier8);
  for (size_t i = 0; i < sigma.size(); ++i) {
    const float up = Divides(steps.step) ? std::ceil(sigma[i] / steps.step) : 0.0f;
    sigma8[i] = static_cast<uint8_t>(std::clamp(up, 0.0f, 255.0f));
  }
  return steps;
}

}  // namespace eta
