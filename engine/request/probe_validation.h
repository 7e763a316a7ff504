// Checks a probe against the model and the limits before any work is done for it.
#pragma once

#include "absl/status/status.h"
#include "engine/request/engine_info.h"
#include "engine/request/probe.h"

namespace eta {

// Every bound stated in probe.h, as InvalidField; what ValidateAttention refuses.
absl::Status ValidateProbe(const Probe& probe, const EngineInfo& model, const Limits& limits);

}  // namespace eta
