#include "engine/model/rope/yarn.h"

#include <algorithm>
#include <cmath>

namespace eta {
namespace {

double Magnitude(double factor, double scale) {
  return factor <= 1.0 ? 1.0 : 0.1 * scale * std::log(factor) + 1.0;
}

double AttentionFactor(const YarnOptions& options) {
  if (options.attention_factor > 0.0) return options.attention_factor;
  if (options.mscale > 0.0 && options.mscale_all_dim > 0.0) {
    return Magnitude(options.factor, options.mscale) /
           Magnitude(options.factor, options.mscale_all_dim);
  }
  return Magnitude(options.factor, 1.0);
}

}  // namespace

RopeScaling YarnScaling(const YarnOptions& options, int32_t head_dim, double rope_theta) {
  // The pair, with a fraction, that turns so many times in the original context.
  const auto pair_of = [&](double turns) {
    return head_dim * std::log(options.original_context / (turns * RopeScaling::kTurn)) /
           (2.0 * std::log(rope_theta));
  };
  double begin = pair_of(options.beta_fast);
  double end = pair_of(options.beta_slow);
  if (options.truncate) {
    begin = std::floor(begin);
    end = std::ceil(end);
  }
  begin = std::max(begin, 0.0);
  end = std::min(end, head_dim - 1.0);
  if (begin == end) end += 0.001;
  return {.type = RopeScalingType::kYarn,
          .factor = options.factor,
          .original_context = options.original_context,
          .ramp_begin = begin,
          .ramp_end = end,
          .attention_factor = AttentionFactor(options)};
}

}  // namespace eta
