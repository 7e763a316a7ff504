// API keys of tenants' programs: `eta_ID_SECRET`. ID names the key and may be logged. SECRET is 32
// random bytes in base64url. The server keeps only a digest. A fast digest is enough, because the
// secret is random: there is nothing to guess (NIST SP 800-63B, 5.1.2.2, asks for slow ones below
// 112 bits).
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"

namespace eta {

inline constexpr std::string_view kApiKeyPrefix = "eta_";

// The two parts of a key; absent for what has not exactly their form.
struct ShownApiKey {
  std::string_view id;      // 1 to 64 of a-z 0-9 -
  std::string_view secret;  // 43 characters
};
std::optional<ShownApiKey> ParseApiKey(std::string_view key);
bool IsApiKeyId(std::string_view id);

// SHA-256 of the whole key, 32 bytes.
std::string ApiKeyDigest(std::string_view key);

// Makes a new key. INVALID_ARGUMENT for a malformed `id`, INTERNAL without randomness.
absl::StatusOr<std::string> MakeApiKey(const std::string& id);

// True for equal bytes. The time depends only on their number.
bool EqualSecrets(std::string_view a, std::string_view b);

}  // namespace eta
