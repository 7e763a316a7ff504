// lint: untrusted-input, fuzz-covered
#include "service/identity/base64url.h"

#include "absl/strings/escaping.h"

namespace eta {

std::optional<std::string> DecodeBase64Url(std::string_view text) {
  std::string bytes;
  if (!absl::WebSafeBase64Unescape({text.data(), text.size()}, &bytes)) return std::nullopt;
  if (absl::WebSafeBase64Escape(bytes) != text) return std::nullopt;
  return bytes;
}

}  // namespace eta
