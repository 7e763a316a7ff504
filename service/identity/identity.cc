// lint: untrusted-input, fuzz-covered
#include "service/identity/identity.h"

#include <algorithm>
#include <optional>
#include <set>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "engine/base/error.h"
#include "engine/base/status_macros.h"
#include "service/identity/api_key.h"

namespace eta {
namespace {

using std::chrono::system_clock;

constexpr char kDenialPayload[] = "eta.denial";
constexpr char kFlag[] = "--identity";
constexpr absl::string_view kBearerScheme = "bearer ";

absl::Status Because(absl::Status status, const std::string& why) {
  status.SetPayload(kDenialPayload, absl::Cord(why));
  return status;
}

absl::Status Unknown(const std::string& why) {
  return Because(
      MakeError(absl::StatusCode::kUnauthenticated, "the call's credential is missing or not valid",
                {.reason = "CREDENTIAL_INVALID"}),
      why);
}

absl::StatusOr<Caller> ByApiKey(std::string_view key, const IdentityFile& file,
                                system_clock::time_point now) {
  const auto shown = ParseApiKey(key);
  if (!shown) return Unknown("api key: it cannot be read");
  // A key that nobody has costs what a wrong one does.
  static const std::string kNobodys(ApiKeyDigest("").size(), '\0');
  const auto found = file.api_keys.find(shown->id);
  const bool known = found != file.api_keys.end();
  const bool equal = EqualSecrets(ApiKeyDigest(key), known ? found->second.digest : kNobodys);
  const std::string credential = "api_key:" + std::string(shown->id);
  if (!known) return Unknown(credential + " is not known");
  if (!equal) return Unknown(credential + " has another secret");
  if (found->second.expires && now >= *found->second.expires) {
    return Unknown(credential + " has expired");
  }
  return Caller{
      .tenant = found->second.tenant, .roles = found->second.roles, .credential = credential};
}

absl::StatusOr<Caller> ByAuthorization(std::string_view value, const IdentityFile& file,
                                       system_clock::time_point now) {
  if (!absl::StartsWithIgnoreCase({value.data(), value.size()}, kBearerScheme))
    return Unknown("authorization: no Bearer");
  value.remove_prefix(kBearerScheme.size());
  if (value.size() > kMaxTokenBytes) return Unknown("authorization: it is too long");
  if (value.starts_with(kApiKeyPrefix)) return ByApiKey(value, file, now);
  auto caller = VerifyToken(value, file.issuers, now);
  if (!caller.ok()) return Unknown(std::string(caller.status().message()));
  return caller;
}

// The one tenant that the header names. UNAUTHENTICATED, in the same words for every fault.
absl::StatusOr<Tenant> NamedTenant(const Shown& shown) {
  if (shown.tenants.size() == 1) {
    auto tenant = Tenant::Parse(shown.tenants.front());
    if (tenant.ok()) return tenant;
  }
  return Because(
      MakeError(absl::StatusCode::kUnauthenticated, "the call does not name its tenant",
                {.reason = "TENANT_REQUIRED"}),
      shown.tenants.empty() ? "tenant header: missing" : "tenant header: no name, or there twice");
}

constexpr Roles kRolesOfTenants = {Role::kGenerate, Role::kCalibrate, Role::kStats};
constexpr Roles kRolesOfOperators = {Role::kStatsAll, Role::kAdmin, Role::kRoute};

// The caller that the header names, from a trusted sender, with at most the roles `most`. Only the
// operator's tenants get the roles that concern all tenants.
absl::StatusOr<Caller> ByHeader(const Shown& shown, const IdentityRules& rules, Roles most,
                                std::string credential) {
  ASSIGN_OR_RETURN(auto tenant, NamedTenant(shown));
  const auto& admins = rules.admin_tenants;
  const bool admin = std::find(admins.begin(), admins.end(), tenant.id()) != admins.end();
  return Caller{.tenant = std::move(tenant),
                .roles = admin ? most : most & kRolesOfTenants,
                .credential = std::move(credential)};
}

// Refuses the file if an entry cannot work with the server's flags, so that no entry is inert.
absl::Status CheckEntriesWork(const IdentityFile& file, const IdentityRules& rules,
                              bool has_client_ca) {
  const auto wrong = [](absl::string_view why) {
    return absl::InvalidArgumentError(absl::StrCat("peers: ", why));
  };
  if (!file.peers.empty() && !has_client_ca) {
    return wrong("need --tls_client_ca, which verifies certificates");
  }
  if (!file.HasProxies()) {
    if (rules.tenant_header.empty()) return absl::OkStatus();
    return wrong("none is a proxy, so nobody could set --tenant_header");
  }
  if (rules.tenant_header.empty()) {
    return wrong("a proxy needs --tenant_header, in which it names the tenant");
  }
  const bool operates = std::any_of(file.peers.begin(), file.peers.end(), [](const auto& peer) {
    return !peer.second.tenant && peer.second.roles.HasAny(kRolesOfOperators);
  });
  if (operates && rules.admin_tenants.empty()) {
    return wrong(
        "a proxy's stats_all, admin and route are for --admin_tenants only, and it names "
        "none");
  }
  if (!operates && !rules.admin_tenants.empty()) {
    return wrong(
        "no proxy has stats_all, admin or route, which are all that --admin_tenants could "
        "get");
  }
  return absl::OkStatus();
}

}  // namespace

KeptShown::KeptShown(const Shown& shown)
    : authorization_(shown.authorization.begin(), shown.authorization.end()),
      tenants_(shown.tenants.begin(), shown.tenants.end()),
      certified_(shown.certified),
      spiffe_id_(shown.spiffe_id) {}

Shown KeptShown::Get() const {
  return {.authorization = {authorization_.begin(), authorization_.end()},
          .tenants = {tenants_.begin(), tenants_.end()},
          .certified = certified_,
          .spiffe_id = spiffe_id_};
}

absl::StatusOr<Caller> Identify(const Shown& shown, const IdentityRules& rules,
                                const IdentityFile* file, system_clock::time_point now) {
  const Peer* peer = nullptr;
  if (file != nullptr && shown.certified) {
    const auto found = file->peers.find(shown.spiffe_id);
    if (found != file->peers.end()) peer = &found->second;
  }
  const bool by_proxy = peer != nullptr && !peer->tenant;
  // A front passes on what strangers send, also over this host's own sockets. So with a file only
  // peers that it names as proxies are believed.
  const bool believed =
      by_proxy || (file == nullptr && (rules.only_this_host || rules.allow_unauthenticated));
  if (!shown.tenants.empty() && !believed) {
    return Unknown("tenant header: from a peer that is no trusted proxy");
  }

  if (file != nullptr && !shown.authorization.empty()) {
    if (shown.authorization.size() > 1) return Unknown("authorization: there twice");
    auto caller = ByAuthorization(shown.authorization.front(), *file, now);
    if (!caller.ok() || shown.tenants.empty()) return caller;
    ASSIGN_OR_RETURN(const auto named, NamedTenant(shown));
    if (named == caller->tenant) return caller;
    return Because(MakeError(absl::StatusCode::kPermissionDenied,
                             "the call names another tenant than its credential is of",
                             {.reason = "TENANT_MISMATCH"}),
                   absl::StrCat("tenant header: not the tenant of ", caller->credential));
  }
  if (by_proxy) return ByHeader(shown, rules, peer->roles, shown.spiffe_id);
  if (peer != nullptr) {
    return Caller{.tenant = *peer->tenant, .roles = peer->roles, .credential = shown.spiffe_id};
  }
  if (file != nullptr) {
    if (!shown.certified) return Unknown("nothing shown");
    return Unknown(shown.spiffe_id.empty() ? "certificate: without a SPIFFE id"
                                           : absl::StrCat(shown.spiffe_id, " is not known"));
  }
  if (!rules.tenant_header.empty()) {
    if (believed) return ByHeader(shown, rules, Roles::All(), "header");
    return Unknown("nothing shown");
  }
  return Caller{.tenant = *Tenant::Parse(kDefaultTenant),
                .roles = Roles::All(),
                .credential = !shown.spiffe_id.empty() ? shown.spiffe_id
                              : shown.certified        ? "certificate"
                                                       : "none"};
}

std::string DenialOf(const absl::Status& status) {
  const auto payload = status.GetPayload(kDenialPayload);
  return payload ? std::string(*payload) : std::string();
}

absl::Status CheckRoles(const Caller& caller, Roles needed) {
  if (caller.roles.HasAny(needed)) return absl::OkStatus();
  ErrorDetail detail{.reason = "ROLE_REQUIRED", .metadata = {{"roles", Names(needed)}}};
  if (needed == Roles{Role::kAdmin}) detail.reason = "ADMIN_REQUIRED";
  return Because(MakeError(absl::StatusCode::kPermissionDenied,
                           "the credential's roles do not cover this method", std::move(detail)),
                 "roles: has " + (caller.roles.empty() ? "none" : Names(caller.roles)));
}

absl::StatusOr<std::unique_ptr<Identity>> Identity::Open(const std::string& path,
                                                         IdentityRules rules, bool has_client_ca,
                                                         WatchedFiles::Report report) {
  std::unique_ptr<Identity> identity(new Identity(std::move(rules)));
  if (path.empty()) return identity;
  ASSIGN_OR_RETURN(
      identity->watched_,
      WatchedFiles::Open(
          {.files = {{.name = kFlag, .path = path}}, .max_bytes = kMaxIdentityFileBytes},
          [raw = identity.get(), has_client_ca](const std::vector<std::string>& contents) {
            return raw->Apply(contents.front(), has_client_ca);
          },
          std::move(report)));
  return identity;
}

absl::Status Identity::Apply(const std::string& content, bool has_client_ca) {
  auto file = ParseIdentityFile(content);
  const absl::Status fits =
      file.ok() ? CheckEntriesWork(*file, rules_, has_client_ca) : file.status();
  if (!fits.ok()) return absl::InvalidArgumentError(absl::StrCat(kFlag, ": ", fits.message()));
  auto taken = std::make_shared<const IdentityFile>(*std::move(file));
  const MutexLock lock(mutex_);
  current_ = std::move(taken);
  return absl::OkStatus();
}

std::shared_ptr<const IdentityFile> Identity::Current() const {
  const MutexLock lock(mutex_);
  return current_;
}

std::set<Tenant> Identity::KnownTenants() const {
  std::set<Tenant> tenants;
  const std::shared_ptr<const IdentityFile> file = Current();
  if (file != nullptr) {
    for (const auto& [id, key] : file->api_keys) tenants.insert(key.tenant);
    for (const auto& [name, issuer] : file->issuers) {
      if (issuer.tenant) tenants.insert(*issuer.tenant);
    }
    for (const auto& [id, peer] : file->peers) {
      if (peer.tenant) tenants.insert(*peer.tenant);
    }
  }
  for (const std::string& name : rules_.admin_tenants) {
    if (const auto tenant = Tenant::Parse(name); tenant.ok()) tenants.insert(*tenant);
  }
  if (file == nullptr && rules_.tenant_header.empty()) {
    tenants.insert(*Tenant::Parse(kDefaultTenant));
  }
  return tenants;
}

absl::StatusOr<Caller> Identity::Of(const Shown& shown) const {
  const std::shared_ptr<const IdentityFile> file = Current();
  return Identify(shown, rules_, file.get(), system_clock::now());
}

}  // namespace eta
