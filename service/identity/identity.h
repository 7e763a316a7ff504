// Says whose call it is; no other place does. It looks at what the call shows, in this order:
//
// - The `authorization` "Bearer KEY" or "Bearer TOKEN", if there is a file. It must be valid, or
//   the call is refused, whatever else it shows. Two values are refused.
// - The SPIFFE id of the peer's certificate. It is a tenant's, or that of a proxy, which names the
//   tenant.
// - With --tenant_header, the tenant in that metadata, from a trusted sender. With a file that is a
//   proxy of the file. Without a file it is anybody, if only processes of this host can reach the
//   server or a flag explicitly lets others in.
// - Without a file and without a header all calls belong to tenant "default", with all roles.
//
// A call is refused too if an untrusted sender names a tenant in the header, or if the header names
// another tenant than the credential's. All refusals of identity have one text; the reason goes to
// the log.
#pragma once

#include <chrono>
#include <memory>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "engine/base/mutex.h"
#include "engine/base/threads/watched_files.h"
#include "service/identity/caller.h"
#include "service/identity/identity_file.h"

namespace eta {

inline constexpr char kDefaultTenant[] = "default";
inline constexpr char kAuthorizationKey[] = "authorization";

// What a call shows about its sender.
struct Shown {
  std::vector<std::string_view> authorization;  // every value of that metadata
  std::vector<std::string_view> tenants;        // every value of --tenant_header
  bool certified = false;  // its peer has a certificate that --tls_client_ca verifies
  std::string spiffe_id;   // of the certificate, spiffe://...; empty: none, or several
};

// A copy of Shown, for a call whose metadata may be gone when it is asked for.
class KeptShown {
 public:
  KeptShown() = default;
  explicit KeptShown(const Shown& shown);
  Shown Get() const;

 private:
  std::vector<std::string> authorization_, tenants_;
  bool certified_ = false;
  std::string spiffe_id_;
};

struct IdentityRules {
  std::string tenant_header;               // empty: calls name no tenant
  std::vector<std::string> admin_tenants;  // the header's tenants that may get stats_all and admin
  // Without a file the header is believed only if one of these is true: nobody else can reach the
  // server; or others can, and the operator said that they are believed.
  bool only_this_host = true;
  bool allow_unauthenticated = false;
};

// UNAUTHENTICATED (CREDENTIAL_INVALID; or TENANT_REQUIRED if only the header is missing or
// malformed), PERMISSION_DENIED (TENANT_MISMATCH). `file` may be null.
absl::StatusOr<Caller> Identify(const Shown& shown, const IdentityRules& rules,
                                const IdentityFile* file,
                                std::chrono::system_clock::time_point now);

// The reason for the log why a call was refused; empty if none is known.
std::string DenialOf(const absl::Status& status);

// PERMISSION_DENIED for a caller who has none of the roles. The reason is ADMIN_REQUIRED if exactly
// that role is needed, else ROLE_REQUIRED.
absl::Status CheckRoles(const Caller& caller, Roles needed);

// Thread-safe.
class Identity {
 public:
  // An empty `path` means no file. `report` is told of reloads (WatchedFiles). INVALID_ARGUMENT for
  // a file that is refused or does not fit the rules.
  static absl::StatusOr<std::unique_ptr<Identity>> Open(const std::string& path,
                                                        IdentityRules rules, bool has_client_ca,
                                                        WatchedFiles::Report report);

  absl::StatusOr<Caller> Of(const Shown& shown) const;
  // The tenants that are known before they call: those that the file names, the header's
  // admin_tenants, and "default" where calls name none.
  std::set<Tenant> KnownTenants() const;
  const IdentityRules& rules() const { return rules_; }
  // Null without a file.
  WatchedFiles* file() const { return watched_.get(); }

 private:
  explicit Identity(IdentityRules rules) : rules_(std::move(rules)) {}
  absl::Status Apply(const std::string& content, bool has_client_ca);
  std::shared_ptr<const IdentityFile> Current() const;

  const IdentityRules rules_;
  mutable Mutex mutex_;
  std::shared_ptr<const IdentityFile> current_ GUARDED_BY(mutex_);
  std::unique_ptr<WatchedFiles> watched_;  // last: its thread uses the others
};

}  // namespace eta
