// The operator's file of who may call (--identity): JSON, read strictly.
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
// Each list may be absent, but the file must name somebody. A tenant may have any number of valid
// keys at a time, so that keys can be changed one program after another. The file holds no secret.
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

// A peer that its certificate identifies.
struct Peer {
  // Absent: a proxy, which names the tenant of each call in --tenant_header.
  std::optional<Tenant> tenant;
  Roles roles;  // a proxy's stats_all, admin and route: for --admin_tenants only
};

struct IdentityFile {
  std::map<std::string, ApiKey, std::less<>> api_keys;  // by their ids
  TokenIssuers issuers;
  std::map<std::string, Peer, std::less<>> peers;  // by their SPIFFE ids, compared as bytes

  bool HasProxies() const;
};

// INVALID_ARGUMENT, naming the field, for any deviation from the form above.
absl::StatusOr<IdentityFile> ParseIdentityFile(std::string_view text);

}  // namespace eta
