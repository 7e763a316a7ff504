// Checks a pass against the model and the limits before any work is done for it.
#pragma once

#include "absl/status/status.h"
#include "engine/request/engine_info.h"
#include "engine/request/limits.h"
#include "engine/request/pass.h"

namespace eta {

// Every bound stated in pass.h, as InvalidField; what ValidateAttention refuses.
absl::Status ValidatePass(const Pass& pass, const EngineInfo& model, const Limits& limits);

}  // namespace eta
