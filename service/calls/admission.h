// What every call must pass before its message is looked at. gRPC has read it by then.
#pragma once

#include <cstdint>
#include <string>

#include "absl/status/statusor.h"
#include "engine/request/request.h"
#include "grpcpp/server_context.h"
#include "service/calls/service_context.h"
#include "service/identity/caller.h"
#include "service/telemetry/call_record.h"

namespace eta {

struct Shown;

// The call's deadline on the clock that nobody sets; max() if it has none, or one that is years
// off.
Clock::time_point SteadyDeadline(const grpc::ServerContextBase& context);

// Whether a deadline had passed for the client when its cancel came. Clients stop by their own
// clock, which began while the call was still on its way: so up to 20 ms before the deadline by
// ours. Whoever leaves earlier was not told by a deadline, however long that was.
bool HadPassed(Clock::time_point deadline, Clock::time_point cancel);

// Whether a call that gRPC cancels now ends for its deadline, or for what else its client did.
bool CancelledForDeadline(const grpc::ServerContextBase& context);

// Which calls a method takes.
enum class Admission : uint8_t {
  kWhileOpen,  // while the server takes new work
  kAlways,     // also when it ends or is short of memory: what an operator needs then
};

// The gate of every method: whose call it is, if that may come in. The method takes any of the
// roles `needed`. Notes in `record` who it is. DEADLINE_EXCEEDED (DEADLINE_PASSED); unless always,
// UNAVAILABLE (DRAINING); as Identify and CheckRoles (identity.h); unless always,
// RESOURCE_EXHAUSTED (MEMORY_PRESSURE).
absl::StatusOr<Caller> Admit(const grpc::ServerContextBase& context, const ServiceContext& service,
                             Roles needed, CallRecord& record,
                             Admission admission = Admission::kWhileOpen);

// Of a call that lasts: who showed that when it began, if they may still have it. As Identify and
// CheckRoles.
absl::StatusOr<Caller> StillAdmitted(const Shown& shown, const ServiceContext& service,
                                     Roles needed);

// Whose task of the call's waits for a thread.
TaskOwner OwnerOf(const Caller& caller);

// RESOURCE_EXHAUSTED (QUEUE_FULL): the most texts that may wait to be made tokens do.
absl::Status TokenizerCallsFull();

// RESOURCE_EXHAUSTED (QUEUE_FULL): the most formats that may wait to be compiled do.
absl::Status FormatCallsFull();

// NOT_FOUND (MODEL_NOT_FOUND) if `model` is not the one that is served.
absl::Status CheckModel(const std::string& model, const std::string& served);

}  // namespace eta
