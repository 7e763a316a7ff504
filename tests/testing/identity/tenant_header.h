// The header of calls in which tests name their tenant, where nobody has to prove who he is.
#pragma once

namespace eta::testing {

inline constexpr char kTenantHeader[] = "x-eta-tenant";

}  // namespace eta::testing
