// Public keys that check the signatures of tokens. Each key is pinned to one algorithm; the
// algorithm that a token names only has to agree. Signatures with shared secrets (HS256 and so on)
// are not implemented at all, so no public key can be taken for a secret.
//
// OpenSSL is used directly. Of Debian 12's libraries libjwt 1.10 and cjose 0.6 have no EdDSA and
// choose the algorithm by the token, and cpp-jwt is not maintained. They would save one call.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "nlohmann/json_fwd.hpp"

struct evp_pkey_st;

namespace eta {

enum class TokenAlgorithm : uint8_t { kES256, kRS256, kEdDSA };

// The algorithm's name in tokens: "ES256", "RS256", "EdDSA".
std::string_view Name(TokenAlgorithm algorithm);
std::optional<TokenAlgorithm> ParseTokenAlgorithm(std::string_view name);

// Immutable; any number of threads may verify.
class TokenKey {
 public:
  // Reads a public key of the algorithm's kind: EC on P-256, RSA of 2048 to 8192 bits, or Ed25519.
  // INVALID_ARGUMENT, without the text in it, for anything else, also for a private key.
  static absl::StatusOr<TokenKey> FromPem(TokenAlgorithm algorithm, const std::string& pem);
  // Reads a JSON Web Key (RFC 7517) likewise. Its `use`, `alg` and `key_ops` must fit if they are
  // present. Other members are ignored, as the RFC asks.
  static absl::StatusOr<TokenKey> FromJwk(TokenAlgorithm algorithm, const nlohmann::json& jwk);

  TokenAlgorithm algorithm() const { return algorithm_; }

  // True if `signature` is this key's signature of `message`. It has the form of tokens: for ES256
  // r and s, 32 bytes each.
  bool Verifies(std::string_view message, std::string_view signature) const;

 private:
  using Handle = std::shared_ptr<evp_pkey_st>;

  TokenKey(TokenAlgorithm algorithm, Handle key) : algorithm_(algorithm), key_(std::move(key)) {}
  static absl::StatusOr<TokenKey> Checked(TokenAlgorithm algorithm, Handle key);

  TokenAlgorithm algorithm_;
  Handle key_;
};

}  // namespace eta
