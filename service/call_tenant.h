// Whose call it is: the one place that says so.
#pragma once

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "calibration/tenant.h"
#include "grpcpp/server_context.h"

namespace eta {

inline constexpr char kDefaultTenant[] = "default";

// The tenant that the call's metadata names under `header`, which a proxy in front must set and
// take from nobody else; UNAUTHENTICATED (TENANT_REQUIRED), in the same words for whatever is wrong
// with it. With no header configured every call is of kDefaultTenant.
absl::StatusOr<Tenant> TenantOf(const grpc::ServerContextBase& context, const std::string& header);

// INVALID_ARGUMENT for a `header` that cannot be a key of text metadata, or is one of gRPC's own.
absl::Status CheckTenantHeader(const std::string& header);

}  // namespace eta
