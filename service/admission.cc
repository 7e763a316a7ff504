#include "service/admission.h"

#include <chrono>
#include <utility>

#include "engine/error.h"
#include "service/call_tenant.h"
#include "service/store_status.h"

namespace eta {
namespace {

constexpr std::chrono::milliseconds kMemoryRetry{1000};
constexpr size_t kMaxEchoedBytes = 64;  // of a name from the request in an error's metadata

}  // namespace

Clock::time_point SteadyDeadline(const grpc::ServerContextBase& context) {
  using std::chrono::system_clock;
  const system_clock::time_point deadline = context.deadline();
  if (deadline == system_clock::time_point::max()) return Clock::time_point::max();
  return Clock::now() + (deadline - system_clock::now());
}

absl::StatusOr<Tenant> Admit(const grpc::ServerContextBase& context, const CallParts& parts,
                             Admission admission) {
  if (SteadyDeadline(context) <= Clock::now()) {
    return MakeError(absl::StatusCode::kDeadlineExceeded,
                     "the deadline passed before the call arrived", {.reason = "DEADLINE_PASSED"});
  }
  const bool always = admission == Admission::kAlways;
  if (!always && parts.state.closed()) return ServerDraining();
  if (!always && parts.memory.High()) {
    return MakeError(absl::StatusCode::kResourceExhausted, "the server is short of memory",
                     {.reason = "MEMORY_PRESSURE", .retry_after = kMemoryRetry});
  }
  return TenantOf(context, parts.options.tenant_header);
}

absl::Status CheckModel(const std::string& model, const std::string& served) {
  if (model == served) return absl::OkStatus();
  ErrorDetail detail{.reason = "MODEL_NOT_FOUND", .metadata = {{"served_model", served}}};
  if (model.size() <= kMaxEchoedBytes) detail.metadata["model"] = model;
  return MakeError(absl::StatusCode::kNotFound, "model: this server does not serve that model",
                   std::move(detail));
}

}  // namespace eta
