// A way of attending by its name, for the model at hand.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/runtime/runtime.h"

namespace eta {

// `settings` hold where the name says nothing else. InvalidArgument, naming the field, for what the
// model, the backend or the index does not have. FailedPrecondition for a profile of another model.
absl::StatusOr<EvaluatedAttention> ResolveEvaluated(const std::string& name,
                                                    const EvaluationSettings& settings,
                                                    const Runtime& loaded,
                                                    const KvGeometry& geometry);

}  // namespace eta
