// The header in which tests name their tenant, if nobody has to prove an identity.
#pragma once

namespace eta::testing {

inline constexpr char kTenantHeader[] = "x-eta-tenant";

}  // namespace eta::testing
