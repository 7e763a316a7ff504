// Who may see and change what is not of one tenant alone.
#pragma once

#include <algorithm>

#include "calibration/tenant.h"
#include "service/server_options.h"

namespace eta {

// True for the operator's tenants, and for everybody where calls name no tenant.
inline bool IsAdmin(const Tenant& tenant, const ServerOptions& options) {
  const auto& admins = options.admin_tenants;
  return options.tenant_header.empty() ||
         std::find(admins.begin(), admins.end(), tenant.id()) != admins.end();
}

}  // namespace eta
