// AdamW over the trained parameters, with clipping by global norm. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "training/backend.h"
#include "training/model/parameters.h"

namespace eta::training {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.95;
  double epsilon = 1e-8;
  double weight_decay = 0.1;  // of matrices alone (Parameter::decayed)
  double max_norm = 1.0;      // of all gradients together; 0: no clipping
};

// Moments by the parameters' layout, [trained_count], and how many steps they have seen: what a
// state on disk holds of the optimizer.
struct AdamWState {
  int64_t steps = 0;
  std::vector<float> first;
  std::vector<float> second;
};

class AdamW {
 public:
  // Moments of 0. The parameters must live as long.
  static absl::StatusOr<std::unique_ptr<AdamW>> Create(const AdamWOptions& options,
                                                       Parameters& parameters);

  // Norm of all gradients, as they are. NaN or infinity if one of them is.
  double GradientNorm() const;
  // One step at the learning rate `rate` with gradients scaled down to max_norm, if `norm` is above
  // it. `norm` must be finite. Gradients stay as they are.
  void Step(double rate, double norm);

  int64_t steps() const { return steps_; }
  AdamWState ReadState() const;
  // INVALID_ARGUMENT for moments of another length.
  absl::Status WriteState(const AdamWState& state);

 private:
  AdamW(const AdamWOptions& options, Parameters& parameters);

  AdamWOptions options_;
  Parameters& parameters_;
  std::unique_ptr<Buffer> first_;
  std::unique_ptr<Buffer> second_;
  int64_t steps_ = 0;
};

}  // namespace eta::training
