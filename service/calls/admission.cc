#include "service/calls/admission.h"

#include <chrono>
#include <utility>

#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "grpc/support/time.h"
#include "service/calls/call_identity.h"
#include "service/wire/store_status.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kMemoryRetry{1000};
constexpr std::chrono::milliseconds kTokenizerRetry{1000};
constexpr std::chrono::milliseconds kFormatRetry{2000};
constexpr std::chrono::milliseconds kOnTheWay{20};  // from a client to the server
constexpr std::chrono::seconds kYearsOff = std::chrono::hours(10 * 365 * 24);
constexpr size_t kMaxEchoedBytes = 64;  // of a name from the request in an error's metadata

absl::Status ShortOfMemory(Pressure level) {
  return MakeError(absl::StatusCode::kResourceExhausted, "the server is short of memory",
                   {.reason = "MEMORY_PRESSURE",
                    .metadata = {{"pressure", std::string(Name(level))}},
                    .retry_after = kMemoryRetry});
}

bool ShowsNothing(const Shown& shown) {
  return shown.authorization.empty() && shown.tenants.empty() && !shown.certified;
}

absl::StatusOr<Caller> CallerOf(const Shown& shown, const ServiceContext& service) {
  const Identity& identity = service.identity;
  // Without a file there is nothing that what it shows could be held against.
  const bool unknown = identity.file() == nullptr || ShowsNothing(shown);
  if (service.unnamed != nullptr && unknown) return *service.unnamed;
  return identity.Of(shown);
}

}  // namespace

Clock::time_point SteadyDeadline(const grpc::ServerContextBase& context) {
  // Not context.deadline(): a time that far off does not fit the clock that it is given by.
  const gpr_timespec deadline = context.raw_deadline();
  const gpr_timespec left = gpr_time_sub(deadline, gpr_now(deadline.clock_type));
  if (left.tv_sec >= kYearsOff.count()) return Clock::time_point::max();
  return Clock::now() + std::chrono::seconds(left.tv_sec) + std::chrono::nanoseconds(left.tv_nsec);
}

bool HadPassed(Clock::time_point deadline, Clock::time_point cancel) {
  return deadline != Clock::time_point::max() && cancel + kOnTheWay >= deadline;
}

bool CancelledForDeadline(const grpc::ServerContextBase& context) {
  return HadPassed(SteadyDeadline(context), Clock::now());
}

absl::StatusOr<Caller> Admit(const grpc::ServerContextBase& context, const ServiceContext& service,
                             Roles needed, CallRecord& record, Admission admission) {
  if (SteadyDeadline(context) <= Clock::now()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the deadline passed before the call arrived", {.reason = "DEADLINE_PASSED"});
  }
  const bool always = admission == Admission::kAlways;
  if (!always && service.state.closed()) return ServerDraining();
  ASSIGN_OR_RETURN(auto caller,
                   CallerOf(ShownBy(context, service.identity.rules().tenant_header), service));
  record.tenant = caller.tenant.id();
  record.credential = caller.credential;
  RETURN_IF_ERROR(CheckRoles(caller, needed));
  const Pressure memory = service.memory.level();
  if (!always && memory >= Pressure::kShort) return ShortOfMemory(memory);
  return caller;
}

absl::StatusOr<Caller> StillAdmitted(const Shown& shown, const ServiceContext& service,
                                     Roles needed) {
  ASSIGN_OR_RETURN(auto caller, CallerOf(shown, service));
  RETURN_IF_ERROR(CheckRoles(caller, needed));
  return caller;
}

absl::Status TokenizerCallsFull() {
  return MakeError(absl::StatusCode::kResourceExhausted, "too many texts wait to be made tokens",
                   {.reason = "QUEUE_FULL", .retry_after = kTokenizerRetry});
}

absl::Status FormatCallsFull() {
  return MakeError(absl::StatusCode::kResourceExhausted, "too many formats wait to be compiled",
                   {.reason = "QUEUE_FULL", .retry_after = kFormatRetry});
}

TaskOwner OwnerOf(const Caller& caller) {
  return {.name = caller.tenant.id(),
          .is_operator = caller.roles.HasAny({Role::kStatsAll, Role::kAdmin})};
}

absl::Status CheckModel(const std::string& model, const std::string& served) {
  if (model == served) return absl::OkStatus();
  ErrorDetail detail{.reason = "MODEL_NOT_FOUND", .metadata = {{"served_model", served}}};
  if (model.size() <= kMaxEchoedBytes) detail.metadata["model"] = model;
  return MakeError(absl::StatusCode::kNotFound, "model: this server does not serve that model",
                   std::move(detail));
}

}  // namespace eta
