// Signed tokens of an issuer that the operator trusts (JSON Web Tokens, RFC 7519; RFC 8725 says
// what to mind).
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
  // The tenant of all its tokens, or the claim that names it: one of the two.
  std::optional<Tenant> tenant;
  std::string tenant_claim;
  Roles roles = Roles::None();      // the most that a token of it can grant
  std::string roles_claim;          // a text of words, or a list; empty: every token grants `roles`
  std::chrono::seconds leeway{60};  // for clocks that differ
};

// By their `issuer`.
using TokenIssuers = std::map<std::string, TokenIssuer, std::less<>>;

// Whose token it is. Required: `iss`, `aud`, `exp` and what names the tenant; `nbf` and `iat` must
// not lie ahead. Roles of other programs in the claim are passed over. UNAUTHENTICATED, with what
// is wrong as a sentence for the log (and nothing of the token in it), never for the client.
absl::StatusOr<Caller> VerifyToken(std::string_view token, const TokenIssuers& issuers,
                                   std::chrono::system_clock::time_point now);

}  // namespace eta
