// What an index metric saves: dynamic attention with it and without it, over the same text.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "engine/checkpoint/tensor_source.h"
#include "kernels/backends/make_backend.h"

namespace eta {

// Of the rows of the second half, as decode rows.
struct IndexCost {
  double union_density = 1.0;  // share of the context that is read
  double divergence = 0.0;     // from full attention, nats per token (solvers/divergence.h)
};

struct IndexSavings {
  IndexCost without;
  IndexCost with;
  double percent() const { return 100.0 * (1.0 - with.union_density / without.union_density); }
};

// Runs a window, [context + 1] tokens, through the model with the metric of the file `path`, and
// without one, whatever the model has. Both under the model's own thresholds: where a metric lets
// it read less, it may be a little farther from full attention too. REQUIRES: an index of kind
// outlier. Errors of the backend, the model and the file.
absl::StatusOr<IndexSavings> MeasureIndexSavings(const TensorSource& model, const std::string& path,
                                                 const std::vector<int32_t>& window,
                                                 const BackendOptions& backend);

}  // namespace eta
