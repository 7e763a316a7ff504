// Any bytes as the file of --identity: refused in a readable sentence, or entries within their
// limits, somebody among them, and taken exactly with the flags that make each of them work.
#include <algorithm>
#include <cstdint>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "service/identity/api_key.h"
#include "service/identity/identity.h"
#include "service/identity/identity_file.h"
#include "tests/testing/base/temp_folder.h"
#include "tests/testing/fuzz/checked_error.h"

namespace {

using eta::fuzz::Require;

constexpr eta::Roles kRolesOfOperators = {eta::Role::kStatsAll, eta::Role::kAdmin,
                                          eta::Role::kRoute};

// With flags that the file's length chooses: twelve times as many files as if each met them all.
void CheckWithFlags(const eta::IdentityFile& file, std::string_view text) {
  static const eta::TempFolder folder(eta::FastParent());
  constexpr uint32_t kFlags[] = {0, 1, 2, 3, 6, 7};
  const uint32_t flags = kFlags[text.size() % std::size(kFlags)];
  const bool client_ca = (flags & 1) != 0;
  const bool header = (flags & 2) != 0;
  eta::IdentityRules rules;
  if (header) rules.tenant_header = "x-tenant";
  rules.only_this_host = (flags & 4) != 0;
  const bool admins = text.size() / std::size(kFlags) % 2 != 0;
  if (admins) rules.admin_tenants = {"ops"};
  const auto identity = eta::Identity::Open(folder.Write("identity.json", text), rules, client_ca,
                                            [](const absl::Status&) {});
  const bool operates = std::any_of(file.peers.begin(), file.peers.end(), [](const auto& peer) {
    return !peer.second.tenant && peer.second.roles.HasAny(kRolesOfOperators);
  });
  const bool fits = (file.peers.empty() || client_ca) && file.HasProxies() == header &&
                    (!header || operates == admins);
  Require(identity.ok() == fits);
  if (!identity.ok()) return eta::fuzz::RequireReadable(identity.status());
  Require(!(*identity)->Of({.tenants = {"acme"}}).ok());
  const std::set<eta::Tenant> known = (*identity)->KnownTenants();
  for (const auto& [id, key] : file.api_keys) Require(known.contains(key.tenant));
  for (const auto& [id, peer] : file.peers) Require(!peer.tenant || known.contains(*peer.tenant));
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto file = eta::ParseIdentityFile(text);
  if (!file.ok()) {
    eta::fuzz::RequireReadable(file.status());
    return 0;
  }
  Require(!file->api_keys.empty() || !file->issuers.empty() || !file->peers.empty());
  for (const auto& [id, key] : file->api_keys) {
    Require(eta::IsApiKeyId(id) && key.digest.size() == 32 && !key.roles.empty());
    const auto made = eta::MakeApiKey(id);
    Require(made.ok() && eta::ParseApiKey(*made)->id == id);
  }
  Require(!eta::MakeApiKey("").ok());
  for (const auto& [name, issuer] : file->issuers) {
    Require(name == issuer.issuer && !name.empty() && !issuer.audiences.empty());
    Require(!issuer.keys.empty() && !issuer.roles.empty() && issuer.leeway.count() >= 0);
    Require(issuer.tenant.has_value() == issuer.tenant_claim.empty());
  }
  for (const auto& [id, peer] : file->peers) {
    Require(id.starts_with("spiffe://") && !peer.roles.empty());
  }
  CheckWithFlags(*file, text);
  return 0;
}
