// Signed tokens of an issuer that the operator trusts: JSON Web Tokens, RFC 7519, with the cautions
// of RFC 8725.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "service/identity/caller.h"
#include "service/identity/token_key.h"

namespace eta {

inline constexpr size_t kMaxTokenBytes = 8192;

struct TokenIssuer {
  std::string issuer;                    // `iss`, compared as bytes
  std::vector<std::string> audiences;    // `aud` must name one of them
  std::map<std::string, TokenKey> keys;  // by `kid`; a token without one needs a single key here
  // Exactly one is set: the tenant of all its tokens, or the claim that names the tenant.
  std::optional<Tenant> tenant;
  std::string tenant_claim;
  Roles roles = Roles::None();      // the most roles that its tokens can grant
  std::string roles_claim;          // a text of words, or a list; empty: every token grants `roles`
  std::chrono::seconds leeway{60};  // tolerance for clocks that differ
};

// Issuers by their `issuer`.
using TokenIssuers = std::map<std::string, TokenIssuer, std::less<>>;

// Says whose token it is. Required are `iss`, `aud`, `exp` and the tenant; `nbf` and `iat` must not
// lie in the future. Roles of other programs in the claim are ignored. UNAUTHENTICATED with the
// fault as a sentence for the log. The sentence has nothing of the token in it, and never goes to
// the client.
absl::StatusOr<Caller> VerifyToken(std::string_view token, const TokenIssuers& issuers,
                                   std::chrono::system_clock::time_point now);

}  // namespace eta
