// Any bytes as the file of --tenants: refused in a readable sentence, or limits within their
// bounds.
#include <cmath>
#include <cstdint>
#include <string_view>

#include "engine/base/tenant.h"
#include "engine/request/request.h"
#include "service/limits/limits_file.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

void CheckLimit(const eta::TenantLimit& limit) {
  using eta::fuzz::Require;
  Require(limit.max_calls >= 0 && limit.burst_tokens >= 0 && limit.max_kv_tokens >= 0);
  Require(std::isfinite(limit.tokens_per_second) && limit.tokens_per_second >= 0);
  Require(limit.tokens_per_second == 0 || limit.burst_tokens >= 1);
  Require(limit.weight >= eta::TenantShare::kMinWeight &&
          limit.weight <= eta::TenantShare::kMaxWeight);
  Require(limit.max_calibrations >= 0);
  Require(limit.profiles.versions >= 0 && limit.profiles.bytes >= 0);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto table = eta::ParseLimits(text);
  if (!table.ok()) {
    eta::fuzz::RequireReadable(table.status());
    return 0;
  }
  CheckLimit(table->others);
  eta::fuzz::Require(table->named.size() <= eta::kMaxLimitedTenants);
  for (const auto& [name, limit] : table->named) {
    eta::fuzz::Require(eta::Tenant::Parse(name).ok());
    CheckLimit(limit);
  }
  return 0;
}
