// The caller of a call, and what the caller may do.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "engine/base/tenant.h"

namespace eta {

enum class Role : uint8_t {
  kGenerate,   // Generate, Tokenize, Detokenize; reading profiles
  kCalibrate,  // Calibrate, CancelCalibration; reading and changing profiles
  kStats,      // Stats, the tenant's own
  kStatsAll,   // Stats, all tenants'
  kAdmin,      // calls that concern the whole server: the level of the log
  kRoute,      // what a router sees and does of all tenants: KV events, FlushCache
};

inline constexpr std::array<std::pair<Role, std::string_view>, 6> kRoleNames = {{
    {Role::kGenerate, "generate"},
    {Role::kCalibrate, "calibrate"},
    {Role::kStats, "stats"},
    {Role::kStatsAll, "stats_all"},
    {Role::kAdmin, "admin"},
    {Role::kRoute, "route"},
}};

constexpr std::optional<Role> ParseRole(std::string_view name) {
  for (const auto& [role, known] : kRoleNames) {
    if (known == name) return role;
  }
  return std::nullopt;
}

// A set of roles. There is no default: code that needs or grants roles names them.
class Roles {
 public:
  constexpr Roles(std::initializer_list<Role> roles) {
    for (const Role role : roles) Add(role);
  }
  static constexpr Roles None() { return Roles(std::initializer_list<Role>{}); }
  static constexpr Roles All() {
    return {Role::kGenerate, Role::kCalibrate, Role::kStats,
            Role::kStatsAll, Role::kAdmin,     Role::kRoute};
  }

  constexpr void Add(Role role) { bits_ |= Bit(role); }
  constexpr bool Has(Role role) const { return (bits_ & Bit(role)) != 0; }
  constexpr bool HasAny(Roles others) const { return (bits_ & others.bits_) != 0; }
  constexpr bool empty() const { return bits_ == 0; }
  constexpr Roles operator&(Roles others) const {
    Roles both = *this;
    both.bits_ &= others.bits_;
    return both;
  }
  friend constexpr bool operator==(Roles, Roles) = default;

 private:
  static constexpr uint32_t Bit(Role role) { return uint32_t{1} << static_cast<uint32_t>(role); }

  uint32_t bits_ = 0;
};

// "generate,stats"; empty for none.
std::string Names(Roles roles);

struct Caller {
  Tenant tenant;
  Roles roles;
  // How the caller is known, never the secret: "api_key:ID", "jwt:ISSUER/KID", "spiffe://...",
  // "certificate", "header", "none". For the log.
  std::string credential;
};

}  // namespace eta
