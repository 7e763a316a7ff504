// Any bytes as what a call shows of its sender. Nobody gets in who holds none of the secrets, nor
// with more roles than his entry grants; tokens of any header and claims are signed here too, so
// that what is behind the signature's check is reached.
//
// Input: a byte of flags, the peer's SPIFFE id, the tenants' header, then the authorization, or
// with kSigned a token's header and claims, each to the end of its line.
#include <openssl/evp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "service/identity/api_key.h"
#include "service/identity/identity.h"
#include "tests/fuzz/checked_error.h"

namespace {

using eta::Role;
using eta::Roles;
using eta::fuzz::Require;

constexpr uint8_t kSigned = 1;
constexpr uint8_t kCertified = 2;
constexpr uint8_t kWithHeader = 4;
constexpr uint8_t kOnlyThisHost = 8;
constexpr uint8_t kTwice = 16;
constexpr uint8_t kWithoutFile = 32;
constexpr uint8_t kFlipABit = 64;

// Private key of the tests' issuer: Ed25519, RFC 8037, appendix A.
constexpr unsigned char kPrivate[32] = {
    0x9d, 0x61, 0xb1, 0x9d, 0xef, 0xfd, 0x5a, 0x60, 0xba, 0x84, 0x4a, 0xf4, 0x92, 0xec, 0x2c, 0xc4,
    0x44, 0x49, 0xc5, 0x69, 0x7b, 0x32, 0x69, 0x19, 0x70, 0x3b, 0xac, 0x03, 0x1c, 0xae, 0x7f, 0x60};
constexpr char kPublic[] = "11qYAYKxCrfVS_7TyWQHOg7hcvPapiMlrwIaaPcHURo";
constexpr char kSecret[] = "AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";
const std::chrono::system_clock::time_point kNow{std::chrono::seconds(1'800'000'000)};

eta::IdentityFile MakeFile() {
  const auto digest = [](const char* id) {
    return absl::BytesToHexString(eta::ApiKeyDigest(absl::StrCat("eta_", id, "_", kSecret)));
  };
  return *eta::ParseIdentityFile(absl::StrCat(
      R"({"api_keys": [{"id": "acme-1", "tenant": "acme", "roles": ["generate"], "sha256": ")",
      digest("acme-1"), R"("}, {"id": "old", "tenant": "acme", "roles": ["generate"], "sha256": ")",
      digest("old"),
      R"(", "expires": "2020-01-31T00:00:00Z"}],
          "jwt": [{"issuer": "i", "audiences": ["eta"], "tenant_claim": "t", "roles_claim": "r",
                   "roles": ["generate", "stats"],
                   "keys": [{"kid": "k", "algorithm": "EdDSA",
                             "jwk": {"kty": "OKP", "crv": "Ed25519", "x": ")",
      kPublic, R"("}}]},
                  {"issuer": "j", "audiences": ["eta"], "tenant": "jane", "roles": ["calibrate"],
                   "leeway_seconds": 0,
                   "keys": [{"kid": "k", "algorithm": "EdDSA",
                             "jwk": {"kty": "OKP", "crv": "Ed25519", "x": ")",
      kPublic, R"("}}, {"kid": "k2", "algorithm": "EdDSA",
                             "jwk": {"kty": "OKP", "crv": "Ed25519", "x": ")",
      kPublic, R"("}}]}],
          "peers": [{"spiffe_id": "spiffe://o/web", "tenant": "web", "roles": ["generate"]},
                    {"spiffe_id": "spiffe://o/proxy", "proxy": true,
                     "roles": ["generate", "stats", "admin"]}]})"));
}

std::string Sign(const std::string& message) {
  static EVP_PKEY* const key =
      EVP_PKEY_new_raw_private_key(EVP_PKEY_ED25519, nullptr, kPrivate, sizeof(kPrivate));
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(),
                                                                        EVP_MD_CTX_free);
  std::string signature(64, '\0');
  size_t size = signature.size();
  Require(EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, key) == 1 &&
          EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size,
                         reinterpret_cast<const unsigned char*>(message.data()),
                         message.size()) == 1);
  return signature;
}

std::string Token(eta::fuzz::InputReader& reader, bool flip) {
  const std::string header(reader.Until('\n'));
  const std::string claims(reader.rest());
  const std::string message =
      absl::StrCat(absl::WebSafeBase64Escape(header), ".", absl::WebSafeBase64Escape(claims));
  std::string signature = Sign(message);
  if (flip) signature[claims.size() % signature.size()] ^= 1;
  return absl::StrCat("Bearer ", message, ".", absl::WebSafeBase64Escape(signature));
}

// The most that anybody can be here who is not believed without a credential.
Roles MostOf(const eta::Caller& caller) {
  if (caller.credential == "api_key:acme-1") return {Role::kGenerate};
  if (caller.credential.starts_with("jwt:i ")) return {Role::kGenerate, Role::kStats};
  if (caller.credential.starts_with("jwt:j ")) return {Role::kCalibrate};
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
  if (shown.certified) shown.spiffe_id = spiffe_id;
  if (!authorization.empty()) shown.authorization.push_back(authorization);
  if (has(kTwice)) shown.authorization.push_back(authorization);
  eta::IdentityRules rules;
  rules.only_this_host = has(kOnlyThisHost);
  if (has(kWithHeader)) {
    rules.tenant_header = "x-tenant";
    rules.admin_tenants = {"ops"};
    if (!tenants.empty()) shown.tenants.push_back(tenants);
  }
  const eta::IdentityFile* const known = has(kWithoutFile) ? nullptr : &file;
  const auto caller = eta::Identify(shown, rules, known, kNow);
  if (!caller.ok()) {
    eta::fuzz::RequireReadable(caller.status());
    Require(caller.status().code() == absl::StatusCode::kUnauthenticated ||
            caller.status().code() == absl::StatusCode::kPermissionDenied);
    Require(caller.status().message().size() < 80);  // fixed words, nothing of what was shown
    return 0;
  }
  Require(!has(kTwice) || authorization.empty() || known == nullptr);
  if (caller->credential == "header") {
    Require(rules.only_this_host || known == nullptr);
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
