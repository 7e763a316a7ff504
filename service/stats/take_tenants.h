// What tenants may use and use now, from everybody who knows.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "engine/base/tenant.h"
#include "engine/engine.h"
#include "service/calls/service_context.h"
#include "service/limits/tenant_ledger.h"

namespace eta {

struct TenantHolding {
  TenantUse use;
  bool named = false;                // by the limits
  TenantQueue queue;                 // its requests in the engine
  int32_t calibrations = 0;          // that run
  std::optional<ProfileUse> stored;  // absent: not known
};

// By name; of one tenant if it is given. Takes the locks of what it reads one after another.
std::vector<TenantHolding> TakeTenants(const ServiceContext& service,
                                       const std::optional<Tenant>& tenant = std::nullopt);

}  // namespace eta
