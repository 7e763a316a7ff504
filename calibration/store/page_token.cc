#include "calibration/store/page_token.h"

#include "absl/strings/escaping.h"
#include "engine/error.h"
#include "engine/sha256.h"

namespace eta {
namespace {

constexpr size_t kMaxTokenBytes = 256;
constexpr size_t kTagBytes = 16;

// It tells tokens apart; it keeps no secret, since a page shows a tenant its own profiles only.
std::string Tag(const Tenant& tenant, std::string_view listing, std::string_view last) {
  std::string bytes = tenant.id();
  bytes.append("\n").append(listing).append("\n").append(last);
  const auto digest = Sha256Hex(bytes);
  return digest.ok() ? digest->substr(0, kTagBytes) : std::string();
}

}  // namespace

std::string MakePageToken(const Tenant& tenant, std::string_view listing, std::string_view last) {
  return absl::WebSafeBase64Escape(Tag(tenant, listing, last).append(last));
}

absl::StatusOr<std::string> ReadPageToken(const Tenant& tenant, std::string_view listing,
                                          std::string_view token) {
  if (token.empty()) return std::string();
  std::string decoded;
  if (token.size() <= kMaxTokenBytes && absl::WebSafeBase64Unescape(std::string(token), &decoded) &&
      decoded.size() > kTagBytes) {
    std::string last = decoded.substr(kTagBytes);
    if (MakePageToken(tenant, listing, last) == token) return last;
  }
  return InvalidField("page_token", "is not from the page before");
}

absl::Status CheckPageSize(const ProfilePage& page) {
  if (page.size >= 1 && page.size <= 1000) return absl::OkStatus();
  return InvalidField("page_size", "must be in [1, 1000]");
}

}  // namespace eta
