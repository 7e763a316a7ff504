// Says whose call it is: the one place that does. By what the call shows, in this order:
//
// - An `authorization` of "Bearer KEY" or "Bearer TOKEN": it must be good, or the call is refused,
//   whatever else it shows. Two are refused.
// - The SPIFFE id of its peer's certificate: a tenant's, or a proxy's, which names the tenant.
// - Where --tenant_header is set, the tenant that this metadata names, from whoever is trusted to:
//   a proxy of the file; without a file anybody, where only processes of this host (or whom a flag
//   lets in aloud) can reach the server.
// - Without a file and a header all calls are of tenant "default", with all roles.
//
// A tenant named in the header by somebody who is not trusted to, or other than the credential's,
// is refused too. Every refusal of who it is has one text; why goes to the log.
#pragma once

#include <chrono>
#include <memory>
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

// What a call shows of its sender.
struct Shown {
  std::vector<std::string_view> authorization;  // every value of that metadata
  std::vector<std::string_view> tenants;        // every value of --tenant_header
  bool certified = false;                       // its peer has a certificate of --tls_client_ca
  std::string spiffe_id;                        // in it, spiffe://...; empty: none, or several
};

// The same of a call whose metadata may be gone by the time that it is asked for.
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
  std::vector<std::string> admin_tenants;  // of the header; only they get stats_all and admin by it
  // Without a file the header is believed only if one of these holds: nobody else can reach the
  // server; others can, and the operator said that they are believed.
  bool only_this_host = true;
  bool allow_unauthenticated = false;
};

// UNAUTHENTICATED (CREDENTIAL_INVALID; TENANT_REQUIRED where only the header is missing or no
// name), PERMISSION_DENIED (TENANT_MISMATCH). `file` may be null.
absl::StatusOr<Caller> Identify(const Shown& shown, const IdentityRules& rules,
                                const IdentityFile* file,
                                std::chrono::system_clock::time_point now);

// Why a call was refused, for the log; empty: nothing is known.
std::string DenialOf(const absl::Status& status);

// PERMISSION_DENIED (ADMIN_REQUIRED where that is what is needed, else ROLE_REQUIRED) for who has
// none of the roles.
absl::Status CheckRoles(const Caller& caller, Roles needed);

// Thread-safe.
class Identity {
 public:
  // `path` empty: no file. `report` hears of reloads (WatchedFiles). INVALID_ARGUMENT for a file
  // that is refused, or does not go with the rules.
  static absl::StatusOr<std::unique_ptr<Identity>> Open(const std::string& path,
                                                        IdentityRules rules, bool has_client_ca,
                                                        WatchedFiles::Report report);

  absl::StatusOr<Caller> Of(const Shown& shown) const;
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
