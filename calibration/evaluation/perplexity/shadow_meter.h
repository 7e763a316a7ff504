// Measures chosen decode rows against full attention (eta-semantics.md, "What is counted").
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "calibration/solvers/even_sample.h"
#include "engine/model/model.h"
#include "engine/request/shadow/shadow_rows.h"

namespace eta {

// Over the measured rows and layers; the value of each is the mean over its query heads.
struct ShadowSummary {
  int64_t rows = 0;
  double mass = 0.0;        // mean mass kept
  double least_mass = 0.0;  // its 1st percentile
  double error = 0.0;       // mean output error
};

class ShadowMeter {
 public:
  // `share` [0, 1] of the decode rows is measured, evenly spread.
  ShadowMeter(const ModelConfig& config, double share);

  // Chooses among the rows of a step of `rows` decode rows, the first of them at `position`. What
  // it returns is for ForwardOutputs, until the next call.
  std::span<const ShadowLayer> Choose(size_t rows, int32_t position);
  // After that step.
  void Absorb();
  // Nothing, if no row was measured.
  std::optional<ShadowSummary> Summary() const;

 private:
  const std::vector<int32_t> layers_;  // the full ones
  EvenSample sample_;                  // of the decode rows
  int64_t measured_ = 0;
  ShadowRows step_;
  std::vector<float> masses_;  // one per measured row and layer
  double errors_ = 0.0;        // their sum
};

}  // namespace eta
