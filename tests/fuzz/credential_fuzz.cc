// Any bytes as what a call shows of its sender. Nobody gets in who holds none of the secrets, nor
// with more roles than his entry grants; tokens of any header and claims are signed here too, so
// that what is behind the signature's check is reached.
//
// Input: a byte of flags, the peer's SPIFFE id, the tenants' header, then the authorization, or
// with kSigned a token's header and claims, each to the end of its line.
#include <chrono>
#include <cstdint>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/identity/api_key.h"
#include "service/identity/identity.h"
#include "tests/testing/fuzz/checked_error.h"
#include "tests/testing/identity/token_maker.h"

namespace {

using eta::Role;
using eta::Roles;
using eta::TokenAlgorithm;
using eta::fuzz::Require;
using eta::testing::SigningKey;

constexpr uint8_t kSigned = 1;
constexpr uint8_t kCertified = 2;
constexpr uint8_t kWithHeader = 4;
constexpr uint8_t kOnlyThisHost = 8;
constexpr uint8_t kTwice = 16;
constexpr uint8_t kWithoutFile = 32;
constexpr uint8_t kFlipABit = 64;
constexpr uint8_t kAllowUnauthenticated = 128;

constexpr char kSecret[] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const std::chrono::system_clock::time_point kNow{std::chrono::seconds(1'800'000'000)};

struct Keys {
  SigningKey eddsa{TokenAlgorithm::kEdDSA};
  SigningKey es256{TokenAlgorithm::kES256};
  SigningKey rs256{TokenAlgorithm::kRS256};
};
const Keys& SigningKeys() {
  static const Keys keys;
  return keys;
}

eta::IdentityFile MakeFile() {
  const auto digest = [](const char* id) {
    return absl::BytesToHexString(eta::ApiKeyDigest(absl::StrCat("eta_", id, "_", kSecret)));
  };
  const auto key = [](const char* kid, const SigningKey& signing) {
    return absl::StrCat(R"({"kid": ")", kid, R"(", "algorithm": ")",
                        std::string(eta::Name(signing.algorithm())), R"(", "jwk": )",
                        signing.Jwk().dump(), "}");
  };
  const Keys& keys = SigningKeys();
  return *eta::ParseIdentityFile(absl::StrCat(
      R"({"api_keys": [{"id": "acme-1", "tenant": "acme", "roles": ["generate"], "sha256": ")",
      digest("acme-1"), R"("}, {"id": "old", "tenant": "acme", "roles": ["generate"], "sha256": ")",
      digest("old"),
      R"(", "expires": "2020-01-31T00:00:00Z"}],
          "jwt": [{"issuer": "i", "audiences": ["eta"], "tenant_claim": "t", "roles_claim": "r",
                   "roles": ["generate", "stats"],
                   "keys": [)",
      key("k", keys.eddsa), R"(]},
                  {"issuer": "j", "audiences": ["eta"], "tenant": "jane", "roles": ["calibrate"],
                   "leeway_seconds": 0,
                   "keys": [)",
      key("k", keys.eddsa), ", ", key("k2", keys.eddsa), R"(]},
                  {"issuer": "m", "audiences": ["eta"], "tenant": "max", "roles": ["stats"],
                   "keys": [)",
      key("e", keys.es256), ", ", key("r", keys.rs256), R"(]}],
          "peers": [{"spiffe_id": "spiffe://o/web", "tenant": "web", "roles": ["generate"]},
                    {"spiffe_id": "spiffe://o/proxy", "proxy": true,
                     "roles": ["generate", "stats", "admin"]}]})"));
}

// The key that a token's header asks for.
const SigningKey& KeyFor(const std::string& header) {
  const Keys& keys = SigningKeys();
  if (absl::StrContains(header, "\"ES256\"")) return keys.es256;
  return absl::StrContains(header, "\"RS256\"") ? keys.rs256 : keys.eddsa;
}

std::string Token(eta::fuzz::InputReader& reader, bool flip) {
  const std::string header(reader.Until('\n'));
  const std::string claims(reader.rest());
  const std::string message =
      absl::StrCat(absl::WebSafeBase64Escape(header), ".", absl::WebSafeBase64Escape(claims));
  std::string signature = KeyFor(header).Sign(message);
  if (flip) signature[claims.size() % signature.size()] ^= 1;
  return absl::StrCat("Bearer ", message, ".", absl::WebSafeBase64Escape(signature));
}

// The most that anybody can be here who is not believed without a credential.
Roles MostOf(const eta::Caller& caller) {
  if (caller.credential == "api_key:acme-1") return {Role::kGenerate};
  if (caller.credential.starts_with("jwt:i ")) return {Role::kGenerate, Role::kStats};
  if (caller.credential.starts_with("jwt:j ")) return {Role::kCalibrate};
  if (caller.credential.starts_with("jwt:m ")) return {Role::kStats};
  if (caller.credential == "spiffe://o/web") return {Role::kGenerate};
  if (caller.credential == "spiffe://o/proxy") {
    Roles most{Role::kGenerate, Role::kStats};
    if (caller.tenant.id() == "ops") most.Add(Role::kAdmin);
    return most;
  }
  return Roles::None();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const eta::IdentityFile file = MakeFile();
  eta::fuzz::InputReader reader(data, size);
  const uint8_t flags = reader.Byte();
  const auto has = [flags](uint8_t flag) { return (flags & flag) != 0; };
  const std::string spiffe_id(reader.Until('\n'));
  const std::string tenants(reader.Until('\n'));
  const std::string authorization =
      has(kSigned) ? Token(reader, has(kFlipABit)) : std::string(reader.rest());

  eta::Shown shown;
  shown.certified = has(kCertified);
  // gRPC gives no other.
  if (shown.certified && spiffe_id.starts_with("spiffe://")) shown.spiffe_id = spiffe_id;
  if (!authorization.empty()) shown.authorization.push_back(authorization);
  if (has(kTwice)) shown.authorization.push_back(authorization);
  eta::IdentityRules rules;
  rules.only_this_host = has(kOnlyThisHost);
  rules.allow_unauthenticated = has(kAllowUnauthenticated);
  if (has(kWithHeader)) {
    rules.tenant_header = "x-tenant";
    rules.admin_tenants = {"ops"};
    if (!tenants.empty()) shown.tenants.push_back(tenants);
  }
  const eta::IdentityFile* const known = has(kWithoutFile) ? nullptr : &file;
  const eta::KeptShown kept(shown);
  const auto caller = eta::Identify(kept.Get(), rules, known, kNow);
  if (!caller.ok()) {
    eta::fuzz::RequireReadable(caller.status());
    Require(caller.status().code() == absl::StatusCode::kUnauthenticated ||
            caller.status().code() == absl::StatusCode::kPermissionDenied);
    Require(caller.status().message().size() < 80);  // fixed words, nothing of what was shown
    Require(!eta::DenialOf(caller.status()).empty());
    return 0;
  }
  Require(!has(kTwice) || authorization.empty() || known == nullptr);
  if (caller->credential == "header") {
    Require(known == nullptr && (rules.only_this_host || rules.allow_unauthenticated));
    Require(caller->tenant.id() == tenants);
    Require(tenants == "ops" || !caller->roles.Has(Role::kAdmin));
  } else if (known != nullptr) {
    Require((caller->roles & MostOf(*caller)) == caller->roles);
    if (caller->credential.starts_with("jwt:")) Require(has(kSigned) && !has(kFlipABit));
    if (caller->credential.starts_with("api_key:")) {
      Require(absl::EndsWith(authorization, absl::StrCat("eta_acme-1_", kSecret)));
    }
    if (caller->credential.starts_with("spiffe:")) Require(has(kCertified));
    if (!shown.tenants.empty()) Require(caller->tenant.id() == tenants);
  }
  for (const Role role : {Role::kGenerate, Role::kAdmin}) {
    const absl::Status allowed = eta::CheckRoles(*caller, {role});
    Require(allowed.ok() == caller->roles.Has(role));
  }
  return 0;
}
