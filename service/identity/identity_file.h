// Who may call, as the operator's file says (--identity): JSON, read strictly.
//
//   {"api_keys": [{"id": "acme-1", "tenant": "acme", "roles": ["generate", "stats"],
//                  "sha256": "<64 hexadecimal digits>", "expires": "2027-01-31T00:00:00Z"}],
//    "jwt": [{"issuer": "https://login.example.org", "audiences": ["eta"],
//             "keys": [{"kid": "k1", "algorithm": "ES256", "jwk": {...}}],
//             "tenant_claim": "tenant", "roles_claim": "roles", "roles": ["generate"],
//             "leeway_seconds": 60}],
//    "peers": [{"spiffe_id": "spiffe://example.org/ns/llm/sa/web", "tenant": "acme",
//               "roles": ["generate"]},
//              {"spiffe_id": "spiffe://example.org/ns/edge/sa/envoy", "proxy": true,
//               "roles": ["generate", "stats"]}]}
//
// Each list may be absent, but somebody must be named. A tenant may have any number of keys that
// are valid at a time, so that keys can be changed one program after another. There is no secret in
// the file.
#pragma once

#include <chrono>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "service/identity/caller.h"
#include "service/identity/json_web_token.h"

namespace eta {

inline constexpr size_t kMaxIdentityFileBytes = size_t{4} << 20;

struct ApiKey {
  Tenant tenant;
  Roles roles;
  std::string digest;  // ApiKeyDigest of the key
  std::optional<std::chrono::system_clock::time_point> expires;
};

// A peer that is known by its certificate.
struct Peer {
  // Absent: a proxy, which names the tenant of each call in --tenant_header.
  std::optional<Tenant> tenant;
  Roles roles;  // through a proxy stats_all and admin are for --admin_tenants only
};

struct IdentityFile {
  std::map<std::string, ApiKey, std::less<>> api_keys;  // by their ids
  TokenIssuers issuers;
  std::map<std::string, Peer, std::less<>> peers;  // by their SPIFFE ids, compared as bytes

  bool HasProxies() const;
};

// INVALID_ARGUMENT, naming the field, for anything that is not exactly as above.
absl::StatusOr<IdentityFile> ParseIdentityFile(std::string_view text);

}  // namespace eta
