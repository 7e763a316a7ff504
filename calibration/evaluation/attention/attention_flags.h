// The flags that say which ways of attending an evaluation compares.
#pragma once

#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "calibration/evaluation/attention/evaluated_attention.h"
#include "calibration/evaluation/runtime/runtime.h"

namespace CLI {
class App;
}

namespace eta {

// Parsing the command line writes these flags. The object must not move until then.
struct AttentionFlags {
  std::vector<std::string> names;
  EvaluationSettings settings;  // of every way of attending that does not say otherwise

  // Adds --attention and the settings.
  void Register(CLI::App& command);

  // InvalidArgument, naming the field, for what the model, the backend or the index does not have.
  absl::StatusOr<std::vector<EvaluatedAttention>> Resolve(const Runtime& loaded,
                                                          const KvGeometry& geometry) const;
};

}  // namespace eta
