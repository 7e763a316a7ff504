// How RoPE is stretched for contexts beyond those that a model was first trained on.
#pragma once

#include <cmath>
#include <cstdint>

namespace eta {

enum class RopeScalingType : uint8_t { kNone, kLinear, kDynamic, kLlama3, kYarn };

// What becomes of the frequency of a coordinate pair i, 0 .. d/2 - 1 from the fastest to the
// slowest. A pair keeps a share of its speed: with share 1 all of it, with share 0 it turns
// `factor` times slower, and between the two speeds are blended linearly.
//
// - kNone, kDynamic: 1. Dynamic scaling raises the base instead (engine/model/rope/rope_base.h).
// - kLinear: 0.
// - kLlama3: by the pair's turns in `original_context` tokens: 1 from `high_freq_factor` turns on,
//   0 up to `low_freq_factor`, linear in the turns between.
// - kYarn: by the pair's number: 1 - (i - ramp_begin) / (ramp_end - ramp_begin), from 0 to 1.
//
// The default changes no bit of any frequency.
struct RopeScaling {
  RopeScalingType type = RopeScalingType::kNone;
  double factor = 1.0;           // at least 1
  double low_freq_factor = 1.0;  // of kLlama3; below high_freq_factor
  double high_freq_factor = 4.0;
  int32_t original_context = 0;  // of kLlama3 and kYarn; tokens
  double ramp_begin = 0.0;       // of kYarn, in pairs; not equal to ramp_end
  double ramp_end = 1.0;
  double attention_factor = 1.0;  // of kYarn; every cosine and sine is multiplied by it

  // `frequency` in turns per token.
  constexpr double KeptShare(double frequency, int32_t pair) const {
    switch (type) {
      case RopeScalingType::kLinear:
        return 0.0;
      case RopeScalingType::kLlama3:
        return (original_context * frequency - low_freq_factor) /
               (high_freq_factor - low_freq_factor);
      case RopeScalingType::kYarn:
        return 1.0 - (pair - ramp_begin) / (ramp_end - ramp_begin);
      default:
        return 1.0;
    }
  }

  // The scaled frequency of pair `pair`, in turns per token like the argument.
  constexpr double Scaled(double frequency, int32_t pair) const {
    const double kept = KeptShare(frequency, pair);
    if (kept >= 1.0) return frequency;
    return kept <= 0.0 ? frequency / factor : frequency * (kept + (1.0 - kept) / factor);
  }

  // The scaled frequency of pair i of heads of d elements: unscaled it is theta^(-2i/d) / 2 pi.
  double Turns(double theta, int32_t head_dim, int32_t pair) const {
    return Scaled(std::pow(theta, -2.0 * pair / head_dim) / kTurn, pair);
  }
  static constexpr double kTurn = 6.283185307179586;

  bool operator==(const RopeScaling&) const = default;
};

}  // namespace eta
