// What every call must pass before its message is read.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "calibration/tenant.h"
#include "engine/request.h"
#include "grpcpp/server_context.h"
#include "service/call_parts.h"

namespace eta {

// The call's deadline on the clock that nobody sets; max() if it has none.
Clock::time_point SteadyDeadline(const grpc::ServerContextBase& context);

// Which calls a method takes.
enum class Admission : uint8_t {
  kWhileOpen,  // while the server takes new work
  kAlways,     // also when it ends or is short of memory: what an operator needs then
};

// Whose call it is. DEADLINE_EXCEEDED (DEADLINE_PASSED); unless always, UNAVAILABLE (DRAINING) and
// RESOURCE_EXHAUSTED (MEMORY_PRESSURE); UNAUTHENTICATED (TENANT_REQUIRED).
absl::StatusOr<Tenant> Admit(const grpc::ServerContextBase& context, const CallParts& parts,
                             Admission admission = Admission::kWhileOpen);

// NOT_FOUND (MODEL_NOT_FOUND) if `model` is not the one that is served.
absl::Status CheckModel(const std::string& model, const std::string& served);

}  // namespace eta
