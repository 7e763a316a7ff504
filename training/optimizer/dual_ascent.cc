#include "training/optimizer/dual_ascent.h"

#include <algorithm>
#include <cmath>

namespace eta::training {

DualAscent::DualAscent(const DualAscentOptions& options) : options_(options) {
  state_.weight = options.initial_weight;
}

DualAscent::DualAscent(const DualAscentOptions& options, const DualAscentState& state)
    : options_(options), state_(state) {}

void DualAscent::Update(const DensityReading& reading, double rate_share) {
  const bool finite =
      std::isfinite(reading.union_density) && std::isfinite(reading.perplexity_increase);
  const double bound = options_.max_perplexity_increase * (1.0 + options_.slack * rate_share);

  // Over the bound the weight falls as fast as it may, whatever the density is.
  double move = -options_.max_move;
  if (finite && reading.perplexity_increase <= bound) {
    const double density = std::max(reading.union_density, 1e-6);
    move = std::clamp(options_.rate * std::log(density / options_.target_union), -options_.max_move,
                      options_.max_move);
  }
  state_.weight =
      std::clamp(state_.weight * std::exp(move), options_.min_weight, options_.max_weight);
  state_.last = reading;
  ++state_.readings;
}

}  // namespace eta::training
