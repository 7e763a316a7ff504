#include "service/call_tenant.h"

#include <algorithm>
#include <string_view>

#include "absl/strings/ascii.h"
#include "absl/strings/match.h"
#include "engine/error.h"

namespace eta {

absl::StatusOr<Tenant> TenantOf(const grpc::ServerContextBase& context, const std::string& header) {
  if (header.empty()) return Tenant::Parse(kDefaultTenant);
  const auto& metadata = context.client_metadata();
  const auto found = metadata.find(header);
  if (found != metadata.end() && metadata.count(header) == 1) {
    auto tenant = Tenant::Parse({found->second.data(), found->second.size()});
    if (tenant.ok()) return tenant;
  }
  return MakeError(absl::StatusCode::kUnauthenticated, "the call does not name its tenant",
                   {.reason = "TENANT_REQUIRED"});
}

absl::Status CheckTenantHeader(const std::string& header) {
  const bool allowed = std::all_of(header.begin(), header.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-' || c == '_' || c == '.';
  });
  if (allowed && !absl::EndsWith(header, "-bin") && !absl::StartsWith(header, "grpc-")) {
    return absl::OkStatus();
  }
  return absl::InvalidArgumentError(
      "--tenant_header: must be a metadata key of a-z 0-9 - _ . that does not end with -bin nor "
      "begin with grpc-");
}

}  // namespace eta
