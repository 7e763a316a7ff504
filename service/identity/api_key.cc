// lint: untrusted-input, fuzz-covered
#include "service/identity/api_key.h"

#include <openssl/crypto.h>
#include <openssl/rand.h>
#include <openssl/sha.h>

#include <algorithm>

#include "absl/strings/ascii.h"
#include "absl/strings/escaping.h"

namespace eta {
namespace {

constexpr size_t kMaxIdBytes = 64;
constexpr size_t kSecretBytes = 32;
constexpr size_t kSecretCharacters = 43;

}  // namespace

bool IsApiKeyId(std::string_view id) {
  return !id.empty() && id.size() <= kMaxIdBytes && std::all_of(id.begin(), id.end(), [](char c) {
    return absl::ascii_islower(c) || absl::ascii_isdigit(c) || c == '-';
  });
}

std::optional<ShownApiKey> ParseApiKey(std::string_view key) {
  if (!key.starts_with(kApiKeyPrefix)) return std::nullopt;
  key.remove_prefix(kApiKeyPrefix.size());
  const size_t end = key.find('_');
  if (end == std::string_view::npos) return std::nullopt;
  const ShownApiKey read{.id = key.substr(0, end), .secret = key.substr(end + 1)};
  const bool drawn = read.secret.size() == kSecretCharacters &&
                     std::all_of(read.secret.begin(), read.secret.end(), [](char c) {
                       return absl::ascii_isalnum(c) || c == '-' || c == '_';
                     });
  if (!drawn || !IsApiKeyId(read.id)) return std::nullopt;
  return read;
}

std::string ApiKeyDigest(std::string_view key) {
  std::string digest(SHA256_DIGEST_LENGTH, '\0');
  SHA256(reinterpret_cast<const unsigned char*>(key.data()), key.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

absl::StatusOr<std::string> MakeApiKey(const std::string& id) {
  if (!IsApiKeyId(id)) {
    return absl::InvalidArgumentError("a key's id must be 1 to 64 of a-z 0-9 -");
  }
  std::string secret(kSecretBytes, '\0');
  if (RAND_bytes(reinterpret_cast<unsigned char*>(secret.data()), kSecretBytes) != 1) {
    return absl::InternalError("no random bytes are to be had");
  }
  const std::string text = absl::WebSafeBase64Escape(secret);
  OPENSSL_cleanse(secret.data(), secret.size());
  return std::string(kApiKeyPrefix) + id + "_" + text;
}

bool EqualSecrets(std::string_view a, std::string_view b) {
  return a.size() == b.size() && CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace eta
