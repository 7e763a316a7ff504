// Keys that tenants' programs show: `eta_ID_SECRET`. ID says which key it is and may be logged;
// SECRET is 32 random bytes in base64url. The server keeps a digest only. A fast digest is enough
// because the secret is drawn, not chosen: there is nothing to guess (NIST SP 800-63B, 5.1.2.2,
// asks for slow ones below 112 bits).
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

// A fresh one. INVALID_ARGUMENT for an `id` that is none, INTERNAL without randomness.
absl::StatusOr<std::string> MakeApiKey(const std::string& id);

// Equal bytes, in a time that depends on their number only.
bool EqualSecrets(std::string_view a, std::string_view b);

}  // namespace eta
