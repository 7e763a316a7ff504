#include "calibration/calibrate/decode_measurement.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <span>

namespace eta {
namespace {

constexpr size_t kMassBins = 10'000;

double Mean(std::span<const float> values) {
  return std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

void DecodeMeter::Add(const PassOutcome& outcome) {
  for (const float loss : outcome.losses) loss_ += loss;
  losses_.insert(losses_.end(), outcome.losses.begin(), outcome.losses.end());
  attention_.Add(outcome.attention);
  above_ = std::accumulate(outcome.above.begin(), outcome.above.end(), above_);
  above_admitted_ = std::accumulate(outcome.above_admitted.begin(), outcome.above_admitted.end(),
                                    above_admitted_);
  recall_ = recall_ || !outcome.above.empty();
  AddMass(outcome);
}

// The engine gives a mass of every decode row and layer.
void DecodeMeter::AddMass(const PassOutcome& outcome) {
  const auto rows = static_cast<size_t>(outcome.attention.decode_rows);
  if (outcome.mass.empty() || rows == 0) return;
  mass_bins_.resize(kMassBins + 1);
  const size_t layers = outcome.mass.size() / rows;
  for (size_t row = 0; row < rows; ++row) {
    const auto masses = std::span(outcome.mass).subspan(row * layers, layers);
    row_masses_.push_back(static_cast<float>(Mean(masses)));
    for (const float mass : masses) {
      // Rounding may put a whole mass a little above 1.
      const double share = std::clamp(static_cast<double>(mass), 0.0, 1.0);
      ++mass_bins_[static_cast<size_t>(share * kMassBins)];
    }
  }
}

std::optional<RetainedMass> DecodeMeter::Mass() const {
  if (mass_bins_.empty()) return std::nullopt;
  RetainedMass mass{.mean = std::clamp(Mean(row_masses_), 0.0, 1.0), .rows = row_masses_};
  const int64_t all = std::accumulate(mass_bins_.begin(), mass_bins_.end(), int64_t{0});
  int64_t below = 0;
  size_t bin = 0;
  // The first percentile is the least mass that at least 1 % of all reach down to.
  while (100 * (below + mass_bins_[bin]) < all) below += mass_bins_[bin++];
  mass.p1 = static_cast<double>(bin) / kMassBins;
  return mass;
}

DecodeMeasurement DecodeMeter::Measurement() const {
  const auto losses = static_cast<int64_t>(losses_.size());
  DecodeMeasurement measurement{.rows = losses > 0 ? losses : attention_.decode_rows,
                                .losses = losses_};
  if (losses > 0) measurement.perplexity = std::exp(loss_ / static_cast<double>(losses));
  if (attention_.decode_rows > 0) {
    measurement.head_density = attention_.head_density();
    measurement.union_density = attention_.union_density();
  }
  if (recall_) {
    measurement.recall =
        above_ == 0 ? 1.0 : static_cast<double>(above_admitted_) / static_cast<double>(above_);
  }
  measurement.mass = Mass();
  return measurement;
}

}  // namespace eta
