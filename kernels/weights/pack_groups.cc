#include "kernels/weights/pack_groups.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstdint>
#include <cstring>

#include "kernels/dtype.h"
#include "kernels/weights/integer_groups.h"

namespace eta {
namespace {

constexpr float kMostQ8 = 127.0f;
constexpr int kMostQ4 = 15;
constexpr uint16_t kNan = 0x7E00;
constexpr size_t kNumbers = kGroupNumbers;

// NaN as scale and zeros behind it.
bool Refuse(std::byte* block, size_t bytes) {
  std::memset(block, 0, bytes);
  std::memcpy(block, &kNan, sizeof(kNan));
  return false;
}

bool AllFinite(std::span<const float> values) {
  return std::all_of(values.begin(), values.end(),
                     [](float value) { return std::isfinite(value); });
}

using Values = std::array<float, kNumbers>;  // of a block; the last one is repeated

// Sums of four lanes, which compilers add side by side.
struct Sum {
  std::array<float, 4> lanes{};
  float total() const { return (lanes[0] + lanes[1]) + (lanes[2] + lanes[3]); }
};

// w_i = scale * q_i + low, both as float16 holds them.
struct Line {
  float scale = 0.0f;
  float low = 0.0f;
};

Line AsStored(float scale, float low) {
  return {HalfToFloat(FloatToHalf(scale)), HalfToFloat(FloatToHalf(low))};
}

float Inverse(float scale) {
  return scale > 0.0f ? 1.0f / scale : 0.0f;
}

float Steps(float value, float low, float inverse) {
  return std::clamp((value - low) * inverse, 0.0f, static_cast<float>(kMostQ4));
}

int Nearest(float value, float low, float inverse) {
  return static_cast<int>(Steps(value, low, inverse) + 0.5f);
}

float SquaredError(const Values& values, const Line& line) {
  const float inverse = Inverse(line.scale);
  Sum error;
  for (size_t i = 0; i < kNumbers; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) {
      const float value = values[i + lane];
      const auto q = static_cast<float>(Nearest(value, line.low, inverse));
      const float difference = line.scale * q + line.low - value;
      error.lanes[lane] += difference * difference;
    }
  }
  return error.total();
}

// The line of least squares through the numbers, q_i being the nearest on the line given.
Line Refit(const Values& values, float low, float inverse) {
  std::array<int, 4> q_sum{};
  std::array<int, 4> qq_sum{};
  Sum v_sum;
  Sum qv_sum;
  for (size_t i = 0; i < kNumbers; i += 4) {
    for (size_t lane = 0; lane < 4; ++lane) {
      const float value = values[i + lane];
      const int q = Nearest(value, low, inverse);
      q_sum[lane] += q;
      qq_sum[lane] += q * q;
      v_sum.lanes[lane] += value;
      qv_sum.lanes[lane] += static_cast<float>(q) * value;
    }
  }
  constexpr auto kCount = static_cast<float>(kNumbers);
  const auto q = static_cast<float>(q_sum[0] + q_sum[1] + q_sum[2] + q_sum[3]);
  const auto qq = static_cast<float>(qq_sum[0] + qq_sum[1] + qq_sum[2] + qq_sum[3]);
  const float spread = kCount * qq - q * q;
  if (spread <= 0.0f) return AsStored(0.0f, v_sum.total() / kCount);
  const float scale = (kCount * qv_sum.total() - q * v_sum.total()) / spread;
  return AsStored(scale, (v_sum.total() - scale * q) / kCount);
}

// Whether the numbers lie near the line's levels, farther from them than 16 or 8 bits round and
// much nearer than numbers that never had 4 bits: there one block in a thousand is below a sixth of
// a step. A few levels tell nothing, one large number leaves the others on one of them.
bool LeftTheirLevels(const Values& values, const Line& line, float squared_error) {
  constexpr float kLeast = 1.0f / 32.0f;  // of a step, root of the mean square
  constexpr float kMost = 1.0f / 6.0f;
  constexpr int kLevels = 6;
  const float square = line.scale * line.scale * static_cast<float>(kNumbers);
  if (squared_error <= kLeast * kLeast * square || squared_error >= kMost * kMost * square) {
    return false;
  }
  const float inverse = Inverse(line.scale);
  uint32_t levels = 0;
  for (const float value : values) levels |= 1u << Nearest(value, line.low, inverse);
  return std::popcount(levels) >= kLevels;
}

using Integers = std::array<int, kNumbers>;

Integers NearestLevels(const Values& values, const Line& line) {
  const float inverse = Inverse(line.scale);
  Integers q;
  for (size_t i = 0; i < kNumbers; ++i) q[i] = Nearest(values[i], line.low, inverse);
  return q;
}

// Rounds up where the fraction of a step is over a threshold. The thresholds of a block are
// multiples of the golden ratio, which spread evenly, from a start that its numbers give.
Integers DitheredLevels(const Values& values, const Line& line) {
  constexpr uint32_t kGolden = 0x9E3779B9;  // of 2^32
  uint32_t state = 0;
  for (const float value : values) {
    state = (state ^ std::bit_cast<uint32_t>(value)) * kGolden;
    state ^= state >> 15;
  }
  const float inverse = Inverse(line.scale);
  Integers q;
  for (size_t i = 0; i < kNumbers; ++i) {
    const float up = static_cast<float>(state >> 16) * 0x1p-16f;  // 15 + up is below 16
    q[i] = static_cast<int>(Steps(values[i], line.low, inverse) + up);
    state += kGolden;
  }
  return q;
}

}  // namespace

bool PackQ8_0(std::span<const float> values, std::byte* block) {
  constexpr size_t kBytes = sizeof(uint16_t) + kNumbers;
  if (!AllFinite(values)) return Refuse(block, kBytes);
  float most = 0.0f;
  for (const float value : values) most = std::max(most, std::abs(value));
  const float scale = most / kMostQ8;
  const uint16_t half = FloatToHalf(scale);
  if (!std::isfinite(HalfToFloat(half))) return Refuse(block, kBytes);
  // The inverse of a scale below all float32's is infinite, and what it multiplies is as good as
  // zero.
  const float inverse = scale == 0.0f ? 0.0f : 1.0f / scale;
  std::memset(block, 0, kBytes);
  std::memcpy(block, &half, sizeof(half));
  for (size_t i = 0; i < values.size(); ++i) {
    const float rounded = std::isfinite(inverse) ? std::round(values[i] * inverse) : 0.0f;
    const auto value = static_cast<int8_t>(std::clamp(rounded, -kMostQ8, kMostQ8));
    std::memcpy(block + sizeof(half) + i, &value, 1);
  }
  return true;
}

bool PackQ4_1(std::span<const float> values, std::byte* block) {
  constexpr size_t kBytes = 2 * sizeof(uint16_t) + kNumbers / 2;
  if (!AllFinite(values)) return Refuse(block, kBytes);
  Values all;
  all.fill(values.back());
  std::copy(values.begin(), values.end(), all.begin());
  const auto [least, most] = std::minmax_element(all.begin(), all.end());
  const float range = *most - *least;
  Line best = AsStored(range / kMostQ4, *least);
  if (!std::isfinite(best.scale) || !std::isfinite(best.low)) return Refuse(block, kBytes);
  float error = SquaredError(all, best);
  // Steps from 6 % wider to 11 % narrower than those that reach both ends.
  for (const float steps : {14.2f, 15.0f, 15.8f, 16.6f}) {
    if (best.scale <= 0.0f) break;
    const Line tried = Refit(all, *least, steps / range);
    const float its = SquaredError(all, tried);
    if (its < error) {
      best = tried;
      error = its;
    }
  }
  const uint16_t halves[] = {FloatToHalf(best.scale), FloatToHalf(best.low)};
  std::memcpy(block, halves, sizeof(halves));
  const Integers q =
      LeftTheirLevels(all, best, error) ? DitheredLevels(all, best) : NearestLevels(all, best);
  for (size_t i = 0; i < kNumbers / 2; ++i) {
    block[sizeof(halves) + i] = static_cast<std::byte>(q[i] | q[i + kNumbers / 2] << 4);
  }
  return true;
}

}  // namespace eta
