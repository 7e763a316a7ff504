// Base64 as tokens and their keys write it (RFC 4648, section 5, without padding).
#pragma once

#include <optional>
#include <string>
#include <string_view>

namespace eta {

// Absent for a character outside the alphabet, padding, an impossible length or stray last bits. So
// each content has one text, and no token has a second spelling. (absl's function accepts all
// four.)
std::optional<std::string> DecodeBase64Url(std::string_view text);

}  // namespace eta
