// What every call must pass before its message is read.
#pragma once

#include <string>

#include "absl/status/statusor.h"
#include "calibration/tenant.h"
#include "engine/request.h"
#include "grpcpp/server_context.h"
#include "service/memory_pressure.h"

namespace eta {

// The call's deadline on the clock that nobody sets; max() if it has none.
Clock::time_point SteadyDeadline(const grpc::ServerContextBase& context);

// Whose call it is. DEADLINE_EXCEEDED (DEADLINE_PASSED); RESOURCE_EXHAUSTED (MEMORY_PRESSURE);
// UNAUTHENTICATED (TENANT_REQUIRED).
absl::StatusOr<Tenant> Admit(const grpc::ServerContextBase& context, MemoryPressure& memory,
                             const std::string& tenant_header);

// NOT_FOUND (MODEL_NOT_FOUND) if `model` is not the one that is served.
absl::Status CheckModel(const std::string& model, const std::string& served);

}  // namespace eta
