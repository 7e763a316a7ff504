// A backend that also measures what chosen decode rows would have had from full attention
// (eta-semantics.md, "What is counted").
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "kernels/forwarding_backend.h"

namespace eta {

// Of the measured rows and layers, each the mean over its query heads.
struct ShadowSummary {
  int64_t rows = 0;
  double mass = 0.0;        // mean mass kept
  double least_mass = 0.0;  // its 1st percentile
  double error = 0.0;       // mean output error
};

class ShadowBackend : public ForwardingBackend {
 public:
  explicit ShadowBackend(std::shared_ptr<Backend> backend)
      : ForwardingBackend(std::move(backend)) {}

  // Forgets what was measured. From now on `share` [0, 1] of the decode rows are measured, evenly
  // spread, but for rows that admit all.
  void Begin(double share);
  // Nothing, if no row was measured.
  std::optional<ShadowSummary> Summary() const;

  void Plan(const BatchView& batch) override;
  void DecodeAttention(const AttentionParams& params) override;
  absl::Status Finish() override;

 private:
  struct Layer {
    std::vector<float> mass;   // [rows, HQ]
    std::vector<float> error;  // [rows, HQ]
  };

  double share_ = 0.0;
  int64_t seen_ = 0;                          // decode rows
  std::vector<int32_t> rows_;                 // of the step
  std::vector<std::unique_ptr<Layer>> step_;  // one per layer; addresses stay
  int64_t measured_ = 0;
  std::vector<float> masses_;  // one per measured row and layer
  double errors_ = 0.0;        // their sum
};

}  // namespace eta
