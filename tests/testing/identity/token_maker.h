// Tokens for tests: keys of every kind, and tokens that a hostile client could sign with them.
#pragma once

#include <openssl/evp.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "nlohmann/json.hpp"
#include "service/identity/token_key.h"

namespace eta::testing {

inline constexpr int64_t kNow = 1'800'000'000;  // 2027-01-15T08:00:00Z
inline const std::chrono::system_clock::time_point kClock{std::chrono::seconds(kNow)};

class SigningKey {
 public:
  explicit SigningKey(TokenAlgorithm algorithm, unsigned rsa_bits = 2048);

  TokenAlgorithm algorithm() const { return algorithm_; }
  // "BEGIN PUBLIC KEY" and "BEGIN PRIVATE KEY".
  std::string PublicPem() const;
  std::string PrivatePem() const;
  nlohmann::json Jwk() const;
  // The signature in the form of tokens.
  std::string Sign(const std::string& message) const;

 private:
  const TokenAlgorithm algorithm_;
  const std::shared_ptr<EVP_PKEY> key_;
};

std::string Base64Url(const std::string& bytes);
// HMAC-SHA256, as used by HS256.
std::string HmacSha256(const std::string& key, const std::string& message);

// Signs `header` and `claims` unchanged.
std::string MakeToken(const SigningKey& key, const nlohmann::json& header,
                      const nlohmann::json& claims);
// Signs `claims` with the header that belongs to the key.
std::string MakeToken(const SigningKey& key, const std::string& kid, const nlohmann::json& claims);

}  // namespace eta::testing
