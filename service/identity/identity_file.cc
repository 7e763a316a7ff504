// lint: untrusted-input, fuzz-covered
#include "service/identity/identity_file.h"

#include <algorithm>
#include <set>
#include <utility>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "engine/base/json/json_fields.h"
#include "engine/base/status_macros.h"
#include "nlohmann/json.hpp"
#include "service/identity/api_key.h"

namespace eta {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxFileDepth = 8;
constexpr size_t kMaxNameBytes = 2048;  // of issuers, audiences, claims and SPIFFE ids
constexpr size_t kMaxSpiffeBytes = 2048;
constexpr int64_t kMaxLeewaySeconds = 600;
constexpr size_t kDigestCharacters = 64;

Tenant TenantIn(JsonFields& fields, const std::string& field) {
  auto tenant = Tenant::Parse(fields.Text(field));
  if (tenant.ok()) return *std::move(tenant);
  fields.Fail(field, "must be 1 to 255 printable ASCII characters without spaces");
  return *Tenant::Parse("-");
}

Roles RolesIn(JsonFields& fields) {
  Roles roles = Roles::None();
  for (const Json& name : fields.Array("roles")) {
    const auto role =
        name.is_string() ? ParseRole(name.get_ref<const std::string&>()) : std::nullopt;
    if (!role || roles.Has(*role)) {
      fields.Fail("roles",
                  "must be different ones of generate, calibrate, stats, stats_all, admin, "
                  "route");
      break;
    }
    roles.Add(*role);
  }
  if (roles.empty()) fields.Fail("roles", "must name at least one");
  return roles;
}

// Reads a required text of limited length.
std::string NameIn(JsonFields& fields, const std::string& field) {
  std::string name = fields.Text(field);
  if (name.empty() || name.size() > kMaxNameBytes) {
    fields.Fail(field, absl::StrCat("must have 1 to ", kMaxNameBytes, " bytes"));
  }
  return name;
}

std::string Place(const std::string& list, size_t index) {
  return absl::StrCat(list, "[", index, "].");
}

// Reads every entry of a list that may be absent.
template <typename Read>
absl::Status ForEachEntry(const Json& object, JsonFields& fields, const std::string& list,
                          const Read& read) {
  if (!object.contains(list)) return absl::OkStatus();
  size_t index = 0;
  for (const Json& entry : fields.Array(list)) {
    const std::string place = Place(list, index++);
    static const Json kNothing = Json::object();
    JsonFields entry_fields(entry.is_object() ? entry : kNothing, place);
    RETURN_IF_ERROR(read(entry, entry_fields));
  }
  return fields.status();
}

absl::Status ReadApiKey(const Json& entry, JsonFields& fields, IdentityFile& file) {
  const std::string id = fields.Text("id");
  if (!IsApiKeyId(id)) fields.Fail("id", "must be 1 to 64 of a-z 0-9 -");
  ApiKey key{.tenant = TenantIn(fields, "tenant"), .roles = RolesIn(fields)};
  const std::string digest = fields.Text("sha256");
  if (digest.size() != kDigestCharacters ||
      !std::all_of(digest.begin(), digest.end(), absl::ascii_isxdigit)) {
    fields.Fail("sha256", "must be 64 hexadecimal digits");
  } else {
    key.digest = absl::HexStringToBytes(digest);
  }
  for (const auto& [other_id, other] : file.api_keys) {
    if (other.digest == key.digest) fields.Fail("sha256", "is another key's too");
  }
  if (entry.contains("expires")) {
    absl::Time time;
    if (absl::ParseTime(absl::RFC3339_full, fields.Text("expires"), &time, nullptr)) {
      key.expires = absl::ToChronoTime(time);
    } else {
      fields.Fail("expires", "must be a time such as 2027-01-31T00:00:00Z");
    }
  }
  RETURN_IF_ERROR(fields.Finish());
  if (!file.api_keys.emplace(id, std::move(key)).second) fields.Fail("id", "is there twice");
  return fields.status();
}

absl::Status ReadTokenKey(const Json& entry, JsonFields& fields, TokenIssuer& issuer) {
  const std::string name = entry.contains("kid") ? NameIn(fields, "kid") : std::string();
  const auto algorithm = ParseTokenAlgorithm(fields.Text("algorithm"));
  if (!algorithm) fields.Fail("algorithm", "must be ES256, RS256 or EdDSA");
  const bool pem = entry.contains("pem");
  if (pem == entry.contains("jwk"))
    fields.Fail("pem", "or jwk must be there, and only one of them");
  const std::string text = pem ? fields.Text("pem") : std::string();
  const Json& jwk = pem ? entry : fields.Object("jwk");
  RETURN_IF_ERROR(fields.Finish());
  auto key = pem ? TokenKey::FromPem(*algorithm, text) : TokenKey::FromJwk(*algorithm, jwk);
  if (!key.ok()) {
    fields.Fail(pem ? "pem" : "jwk", std::string(key.status().message()));
    return fields.status();
  }
  if (!issuer.keys.emplace(name, *std::move(key)).second) fields.Fail("kid", "is there twice");
  return fields.status();
}

absl::Status ReadIssuer(const Json& entry, JsonFields& fields, const std::string& place,
                        IdentityFile& file) {
  TokenIssuer issuer;
  issuer.issuer = NameIn(fields, "issuer");
  for (const Json& audience : fields.Array("audiences")) {
    if (audience.is_string() && !audience.get_ref<const std::string&>().empty()) {
      issuer.audiences.push_back(audience.get<std::string>());
    } else {
      fields.Fail("audiences", "must be texts");
    }
  }
  if (issuer.audiences.empty()) fields.Fail("audiences", "must name at least one");
  const bool fixed = entry.contains("tenant");
  if (fixed == entry.contains("tenant_claim")) {
    fields.Fail("tenant", "or tenant_claim must be there, and only one of them");
  } else if (fixed) {
    issuer.tenant = TenantIn(fields, "tenant");
  } else {
    issuer.tenant_claim = NameIn(fields, "tenant_claim");
  }
  issuer.roles = RolesIn(fields);
  if (entry.contains("roles_claim")) issuer.roles_claim = NameIn(fields, "roles_claim");
  if (entry.contains("leeway_seconds")) {
    issuer.leeway = std::chrono::seconds(fields.Integer("leeway_seconds", 0, kMaxLeewaySeconds));
  }
  const Json& keys = fields.Array("keys");
  if (keys.empty()) fields.Fail("keys", "must hold at least one");
  RETURN_IF_ERROR(fields.Finish());
  size_t index = 0;
  for (const Json& key : keys) {
    static const Json kNothing = Json::object();
    JsonFields key_fields(key.is_object() ? key : kNothing,
                          absl::StrCat(place, Place("keys", index++)));
    RETURN_IF_ERROR(ReadTokenKey(key, key_fields, issuer));
  }
  const std::string name = issuer.issuer;
  if (!file.issuers.emplace(name, std::move(issuer)).second) {
    fields.Fail("issuer", "is there twice");
  }
  return fields.status();
}

// True for scheme, trust domain and path in the characters of the SPIFFE standard.
bool IsSpiffeId(const std::string& id) {
  constexpr std::string_view kSpiffeScheme = "spiffe://";
  if (!id.starts_with(kSpiffeScheme) || id.size() > kMaxSpiffeBytes) return false;
  const std::string_view rest = std::string_view(id).substr(kSpiffeScheme.size());
  const size_t slash = rest.find('/');
  return slash != std::string_view::npos && slash > 0 && slash + 1 < rest.size() &&
         rest.back() != '/' && std::all_of(rest.begin(), rest.end(), [](char c) {
           return absl::ascii_isalnum(c) ||
                  std::string_view("-._/").find(c) != std::string_view::npos;
         });
}

absl::Status ReadPeer(const Json& entry, JsonFields& fields, IdentityFile& file) {
  const std::string id = fields.Text("spiffe_id");
  if (!IsSpiffeId(id)) fields.Fail("spiffe_id", "must be spiffe://TRUST-DOMAIN/PATH");
  Peer peer{.tenant = std::nullopt, .roles = RolesIn(fields)};
  if (entry.contains("proxy")) {
    if (fields.IsNull("proxy") || entry["proxy"] != true) fields.Fail("proxy", "must be true");
  } else {
    peer.tenant = TenantIn(fields, "tenant");
  }
  RETURN_IF_ERROR(fields.Finish());
  if (!file.peers.emplace(id, std::move(peer)).second) fields.Fail("spiffe_id", "is there twice");
  return fields.status();
}

}  // namespace

bool IdentityFile::HasProxies() const {
  return std::any_of(peers.begin(), peers.end(),
                     [](const auto& peer) { return !peer.second.tenant; });
}

absl::StatusOr<IdentityFile> ParseIdentityFile(std::string_view text) {
  ASSIGN_OR_RETURN(const auto tree,
                   ParseStrictJson("file", text, kMaxIdentityFileBytes, kMaxFileDepth));
  const Json& object = tree.root();
  IdentityFile file;
  JsonFields fields(object, "");
  RETURN_IF_ERROR(ForEachEntry(
      object, fields, "api_keys",
      [&](const Json& entry, JsonFields& of_entry) { return ReadApiKey(entry, of_entry, file); }));
  size_t index = 0;
  RETURN_IF_ERROR(ForEachEntry(object, fields, "jwt", [&](const Json& entry, JsonFields& of_entry) {
    return ReadIssuer(entry, of_entry, Place("jwt", index++), file);
  }));
  RETURN_IF_ERROR(ForEachEntry(
      object, fields, "peers",
      [&](const Json& entry, JsonFields& of_entry) { return ReadPeer(entry, of_entry, file); }));
  RETURN_IF_ERROR(fields.Finish());
  if (file.api_keys.empty() && file.issuers.empty() && file.peers.empty()) {
    return absl::InvalidArgumentError("names nobody who may call");
  }
  return file;
}

}  // namespace eta
